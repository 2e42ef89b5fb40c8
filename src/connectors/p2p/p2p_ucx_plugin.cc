// `P2pUcxAFDConnector`: the P2P connector over UCX, in a shared object of its own, so that libafd
// does not need UCX. What the factory sees of it is one constant; another is for `P2pAFDConnector`.
#include <utility>

#include <afd/plugin.h>

#include "connectors/p2p/p2p_class.h"
#include "transport/remote/remote_transport.h"
#include "transport/ucx/ucx_wire.h"

namespace afd::p2p {
namespace {

std::unique_ptr<transport::Transport> make_transport(const ConnectorParams& params,
                                                     std::uint32_t world_rank) {
  // The class has checked them.
  const P2pSettings settings =
      *parse_p2p_settings(params.config.connector_extra_config, /*uses_ucx=*/true);
  return transport::make_remote_transport(
      {.world_rank = world_rank,
       .wire_maker = std::make_unique<transport::UcxWireMaker>(ucx_options(settings))});
}

/// What init would meet.
Result<void> try_ucx() {
  struct Deaf final : transport::WireReceiver {
    bool on_arrival(const transport::Arrival&) noexcept override { return false; }
  } deaf;
  Result<std::unique_ptr<transport::Wire>> wire = transport::UcxWireMaker({}).make(deaf);
  if (!wire) {
    return fail(std::move(wire).error());
  }
  return {};
}

Capabilities ucx_capabilities() {
  Capabilities capabilities = p2p_capabilities(/*cross_process=*/true);
  capabilities.cross_host = true;
  capabilities.network_calls = true;
  return capabilities;
}

const ConnectorClass* p2p_ucx_connector_class() {
  static const P2pClass instance({.name = "P2pUcxAFDConnector",
                                  .maker = &make_transport,
                                  .capabilities = ucx_capabilities(),
                                  .uses_ucx = true,
                                  .probe = &try_ucx});
  return &instance;
}

}  // namespace
}  // namespace afd::p2p

extern "C" AFD_EXPORT const AfdConnectorPluginV1 afd_connector_plugin_v1 = {
    sizeof(AfdConnectorPluginV1), AFD_BUILD_TAG, "P2pUcxAFDConnector",
    &afd::p2p::p2p_ucx_connector_class};

extern "C" AFD_EXPORT const AfdUcxWireV1 afd_ucx_wire_v1 = {
    sizeof(AfdUcxWireV1), AFD_BUILD_TAG,
    [](afd::transport::UcxOptions options) -> std::unique_ptr<afd::transport::WireMaker> {
      return std::make_unique<afd::transport::UcxWireMaker>(std::move(options));
    }};
