// The wire over UCX (libucp 1.13 or later): one worker, active messages.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <afd/result.h>

#include "transport/wire.h"

namespace afd::transport {

struct UcxOptions {
  std::string transports;   ///< as UCX_TLS: "tcp", "posix,cma"; empty: UCX's choice
  std::string net_devices;  ///< as UCX_NET_DEVICES: "eth0"; empty: UCX's choice
};

class UcxWireMaker final : public WireMaker {
 public:
  explicit UcxWireMaker(UcxOptions options) : options_(std::move(options)) {}
  /// @return kUnavailable  UCX finds no device that the options allow, or no memory
  Result<std::unique_ptr<Wire>> make(WireReceiver& receiver) const override;

 private:
  const UcxOptions options_;
};

}  // namespace afd::transport
