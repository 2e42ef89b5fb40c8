#include "transport/ucx/ucx_library.h"

#include <string_view>
#include <utility>

#include <afd/version.h>

#include "base/dynamic_library.h"

namespace afd::transport {
namespace {

constexpr const char* kSymbol = "afd_ucx_wire_v1";

Result<const AfdUcxWireV1*> find_wire() {
  const auto of_the_library = [](const Error& error) {
    return fail(error.code, std::string("library '") + kUcxLibrary + "': " + error.message);
  };
  const Result<base::DynamicLibrary> library = base::DynamicLibrary::open(kUcxLibrary);
  if (!library) {
    if (base::is_absent(library.error())) {
      return fail(ErrorCode::kUnavailable, kUcxLibraryAbsent);
    }
    return of_the_library(library.error());
  }
  const Result<void*> symbol = library->symbol(kSymbol);
  if (!symbol) {
    return of_the_library(symbol.error());
  }
  const auto* const wire = static_cast<const AfdUcxWireV1*>(*symbol);
  const std::string_view tag = wire->struct_bytes != sizeof(AfdUcxWireV1) ? "another release"
                               : wire->build_tag == nullptr               ? ""
                                                                          : wire->build_tag;
  if (tag != AFD_BUILD_TAG) {
    return of_the_library({ErrorCode::kUnavailable, "it was built as '" + std::string(tag) +
                                                        "', expected '" AFD_BUILD_TAG "'"});
  }
  return wire;
}

class LoadedWireMaker final : public WireMaker {
 public:
  explicit LoadedWireMaker(UcxOptions options) : options_(std::move(options)) {}
  Result<std::unique_ptr<Wire>> make(WireReceiver& receiver) const override {
    const Result<const AfdUcxWireV1*> library = find_wire();
    if (!library) {
      return fail(library.error());
    }
    return (*library)->make_maker(options_)->make(receiver);
  }

 private:
  const UcxOptions options_;
};

}  // namespace

std::unique_ptr<WireMaker> load_ucx_wire_maker(UcxOptions options) {
  return std::make_unique<LoadedWireMaker>(std::move(options));
}

}  // namespace afd::transport
