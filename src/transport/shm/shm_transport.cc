#include "transport/shm/shm_transport.h"

#include <utility>

#include "base/shared_segment.h"
#include "transport/mapped/mapped_transport.h"

namespace afd::transport {
namespace {

class ShmMemory final : public WindowMemory {
 public:
  explicit ShmMemory(base::SharedSegment segment) : segment_(std::move(segment)) {}
  std::byte* data() const noexcept override { return segment_.data(); }
  std::uint64_t size() const noexcept override { return segment_.size(); }
  void seal() noexcept override { segment_.remove_name(); }

 private:
  base::SharedSegment segment_;
};

class ShmProvider final : public WindowProvider {
 public:
  Result<std::unique_ptr<WindowMemory>> create(std::uint64_t size_bytes,
                                               std::string* name) override {
    base::sweep_segments();  // what dead ranks left may be what is missing now
    Result<base::SharedSegment> segment = base::SharedSegment::create(size_bytes);
    if (!segment) {
      return fail(std::move(segment).error());
    }
    *name = segment->name();
    return std::make_unique<ShmMemory>(*std::move(segment));
  }
  Result<std::unique_ptr<WindowMemory>> open(std::string_view name,
                                             std::uint64_t size_bytes) override {
    Result<base::SharedSegment> segment = base::SharedSegment::open(name, size_bytes);
    if (!segment) {
      return fail(std::move(segment).error());
    }
    return std::make_unique<ShmMemory>(*std::move(segment));
  }
  std::string_view kind() const noexcept override { return "shm"; }
  std::string_view path_name() const noexcept override { return "shared memory"; }
};

}  // namespace

std::unique_ptr<WindowProvider> make_shm_provider() {
  return std::make_unique<ShmProvider>();
}

std::unique_ptr<Transport> make_shm_transport(ShmOptions options) {
  return make_mapped_transport(make_shm_provider(), options.wait);
}

}  // namespace afd::transport
