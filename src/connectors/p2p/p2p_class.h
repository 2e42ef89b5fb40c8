// What the factory sees of a P2P connector: name, capabilities, the connector's own settings.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <afd/factory.h>

#include "connectors/p2p/p2p_state.h"
#include "transport/ucx/ucx_library.h"

namespace afd::p2p {

/// The connector's own settings (connector_extra_config).
struct P2pSettings {
  /// The reference's rule A >= F, A % F == 0 is asked for.
  bool strict_topology = false;
  // Of connectors that may use UCX.
  std::string ucx_transports;   ///< as UCX_TLS; empty: UCX's choice
  std::string ucx_net_devices;  ///< as UCX_NET_DEVICES; empty: UCX's choice
};

class P2pClass final : public ConnectorClass {
 public:
  struct Variant {
    std::string_view name;
    TransportMaker maker = nullptr;
    Capabilities capabilities;
    bool uses_ucx = false;
    Result<void> (*probe)() = nullptr;  ///< what init would meet
  };
  explicit P2pClass(Variant variant) : variant_(std::move(variant)) {}

  std::string_view name() const override { return variant_.name; }
  Result<void> check_available() const override { return variant_.probe(); }
  Capabilities capabilities() const override { return variant_.capabilities; }
  Result<std::string> parse_extra_config(std::string_view raw_json) const override;
  Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams& params) const override;

 private:
  const Variant variant_;
};

Capabilities p2p_capabilities(bool cross_process);

inline transport::UcxOptions ucx_options(const P2pSettings& settings) {
  return {.transports = settings.ucx_transports, .net_devices = settings.ucx_net_devices};
}

/// @param uses_ucx  whether the keys of UCX are known
Result<P2pSettings> parse_p2p_settings(std::string_view raw_json, bool uses_ucx);

}  // namespace afd::p2p
