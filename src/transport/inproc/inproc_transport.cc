#include "transport/inproc/inproc_transport.h"

#include <sys/random.h>

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/mapping.h"
#include "transport/mapped/mapped_transport.h"

namespace afd::transport {
namespace {

/// Windows of this process that can still be found, by token. The memory itself belongs to those
/// who use it and goes with the last of them.
class Registry {
 public:
  static Registry& instance() {
    // Never destroyed: ranks may close while the process exits.
    static Registry* const registry = new Registry;
    return *registry;
  }

  void add(const std::string& token, const std::shared_ptr<base::Mapping>& memory) {
    const std::lock_guard lock(mutex_);
    windows_[token] = memory;
  }
  void remove(const std::string& token) {
    const std::lock_guard lock(mutex_);
    windows_.erase(token);
  }
  std::shared_ptr<base::Mapping> find(const std::string& token) {
    const std::lock_guard lock(mutex_);
    const auto found = windows_.find(token);
    return found == windows_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<base::Mapping>> windows_;
};

class InprocMemory final : public WindowMemory {
 public:
  /// @param token  empty: not the creator
  InprocMemory(std::shared_ptr<base::Mapping> memory, std::string token)
      : memory_(std::move(memory)), token_(std::move(token)) {}
  ~InprocMemory() override { seal(); }

  std::byte* data() const noexcept override { return memory_->data(); }
  std::uint64_t size() const noexcept override { return memory_->size(); }
  void seal() noexcept override {
    if (!token_.empty()) {
      Registry::instance().remove(token_);
      token_.clear();
    }
  }

 private:
  std::shared_ptr<base::Mapping> memory_;  // Owned by every rank that uses the window.
  std::string token_;
};

Result<std::string> new_token() {
  std::array<unsigned char, 16> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return fail(ErrorCode::kUnavailable, "no random bytes");
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    token += static_cast<char>('a' + (byte >> 4));
    token += static_cast<char>('a' + (byte & 15));
  }
  return token;
}

class InprocProvider final : public WindowProvider {
 public:
  Result<std::unique_ptr<WindowMemory>> create(std::uint64_t size_bytes,
                                               std::string* name) override {
    Result<base::Mapping> mapping = base::Mapping::anonymous(size_bytes);
    if (!mapping) {
      return fail(std::move(mapping).error());
    }
    Result<std::string> token = new_token();
    if (!token) {
      return fail(std::move(token).error());
    }
    *name = *token;
    auto memory = std::make_shared<base::Mapping>(*std::move(mapping));
    Registry::instance().add(*token, memory);
    return std::make_unique<InprocMemory>(std::move(memory), *std::move(token));
  }
  Result<std::unique_ptr<WindowMemory>> open(std::string_view name,
                                             std::uint64_t size_bytes) override {
    std::shared_ptr<base::Mapping> memory = Registry::instance().find(std::string(name));
    if (memory == nullptr) {
      return fail(ErrorCode::kUnavailable,
                  "no window of that token in this process; in-process ranks are threads of one");
    }
    if (memory->size() != size_bytes) {
      return fail(ErrorCode::kProtocolMismatch,
                  "the peer's window has " + std::to_string(memory->size()) + " bytes, expected " +
                      std::to_string(size_bytes));
    }
    return std::make_unique<InprocMemory>(std::move(memory), "");
  }
  std::string_view kind() const noexcept override { return "inproc"; }
  std::string_view path_name() const noexcept override { return "memory of this process"; }
};

}  // namespace

std::unique_ptr<Transport> make_inproc_transport(InprocOptions options) {
  return make_mapped_transport(std::make_unique<InprocProvider>(), options.wait);
}

}  // namespace afd::transport
