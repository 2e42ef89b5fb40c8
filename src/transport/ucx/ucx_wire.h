// The wire over UCX (libucp 1.13 or later): one worker, active messages.
#pragma once

#include <memory>
#include <utility>

#include <afd/result.h>

#include "transport/ucx/ucx_library.h"
#include "transport/wire.h"

namespace afd::transport {

class UcxWireMaker final : public WireMaker {
 public:
  explicit UcxWireMaker(UcxOptions options) : options_(std::move(options)) {}
  /// @return kUnavailable  UCX finds no device that the options allow, or no memory
  Result<std::unique_ptr<Wire>> make(WireReceiver& receiver) const override;

 private:
  const UcxOptions options_;
};

}  // namespace afd::transport
