#include "connectors/p2p/p2p_class.h"

#include <utility>

#include <afd/extra_config.h>

#include "base/shared_name.h"
#include "connectors/p2p/p2p_connector.h"
#include "session/address.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/remote/remote_transport.h"
#include "transport/shm/shm_transport.h"

namespace afd::p2p {
namespace {

constexpr std::string_view kStrictTopology = "strict_topology";
constexpr std::string_view kUcxTransports = "ucx_transports";
constexpr std::string_view kUcxNetDevices = "ucx_net_devices";

/// Makes and drops the smallest window there is: what init would meet.
Result<void> try_shared_memory() {
  Result<std::string> blob = transport::make_shm_transport({})->create(nullptr);
  if (!blob) {
    return fail(std::move(blob).error());
  }
  return {};
}

/// Shared memory for peers on this host, UCX for the others. A job that meets on loopback is on one
/// host and needs no UCX.
std::unique_ptr<transport::Transport> make_choosing_transport(const ConnectorParams& params,
                                                              std::uint32_t world_rank) {
  transport::RemoteOptions options{.world_rank = world_rank,
                                   .shared = transport::make_shm_provider(),
                                   .place = base::shared_place()};
  if (session::is_loopback(params.config.host)) {
    options.wait = {};
  } else {
    // The class has checked them.
    options.wire_maker = transport::load_ucx_wire_maker(
        ucx_options(*parse_p2p_settings(params.config.connector_extra_config, /*uses_ucx=*/true)));
  }
  return transport::make_remote_transport(std::move(options));
}

Capabilities choosing_capabilities() {
  Capabilities capabilities = p2p_capabilities(/*cross_process=*/true);
  capabilities.cross_host = true;
  capabilities.network_calls = true;  // to peers on other hosts
  return capabilities;
}

}  // namespace

Capabilities p2p_capabilities(bool cross_process) {
  Capabilities capabilities;
  capabilities.devices = {DeviceType::kCpu};
  capabilities.dtypes = {kFloat32, kFloat16, kBFloat16, kFloat64, kInt8, kUInt8, kInt32, kInt64};
  capabilities.num_stages_max = kStagesMax;
  capabilities.in_place_buffers = true;
  capabilities.progressive_rows = true;
  capabilities.router_logits = true;
  capabilities.any_ratio = true;
  capabilities.cross_process = cross_process;
  return capabilities;
}

Result<P2pSettings> parse_p2p_settings(std::string_view raw_json, bool uses_ucx) {
  Result<ExtraConfig> extra = ExtraConfig::parse("P2P", raw_json);
  if (!extra) {
    return fail(std::move(extra).error());
  }
  if (Result<void> known =
          uses_ucx ? extra->check_keys({kStrictTopology, kUcxTransports, kUcxNetDevices})
                   : extra->check_keys({kStrictTopology});
      !known) {
    return fail(std::move(known).error());
  }
  const Result<bool> strict = extra->boolean(kStrictTopology, false);
  if (!strict) {
    return fail(strict.error());
  }
  P2pSettings settings{.strict_topology = *strict};
  for (const auto& [key, value] : {std::pair(kUcxTransports, &settings.ucx_transports),
                                   std::pair(kUcxNetDevices, &settings.ucx_net_devices)}) {
    Result<std::string> word = extra->word(key, "");
    if (!word) {
      return fail(std::move(word).error());
    }
    // They go into UCX's settings and come back as this JSON text.
    if (word->find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789,_:.^-") !=
        std::string::npos) {
      return fail(ErrorCode::kInvalidArgument, "P2P " + std::string(key) + " is '" + *word +
                                                   "', expected names with commas between them");
    }
    *value = *std::move(word);
  }
  return settings;
}

Result<std::string> P2pClass::parse_extra_config(std::string_view raw_json) const {
  const Result<P2pSettings> settings = parse_p2p_settings(raw_json, variant_.uses_ucx);
  if (!settings) {
    return fail(settings.error());
  }
  std::string text =
      settings->strict_topology ? R"({"strict_topology":true)" : R"({"strict_topology":false)";
  if (variant_.uses_ucx) {
    text += R"(,"ucx_transports":")" + settings->ucx_transports + R"(","ucx_net_devices":")" +
            settings->ucx_net_devices + '"';
  }
  return text + '}';
}

Result<std::unique_ptr<ConnectorBase>> P2pClass::create(const ConnectorParams& params) const {
  const Result<P2pSettings> settings =
      parse_p2p_settings(params.config.connector_extra_config, variant_.uses_ucx);
  if (!settings) {
    return fail(settings.error());
  }
  if (settings->strict_topology) {
    if (Result<void> legal = validate_strict_topology(params.config.num_attention_ranks,
                                                      params.config.num_ffn_ranks);
        !legal) {
      return fail(std::move(legal).error());
    }
  }
  Result<P2pLayout> layout = P2pLayout::create(params);
  if (!layout) {
    return fail(std::move(layout).error());
  }
  return std::unique_ptr<ConnectorBase>(
      std::make_unique<P2pConnector>(std::string(variant_.name), params, *std::move(layout),
                                     variant_.maker, variant_.capabilities));
}

const ConnectorClass* in_process_connector_class() {
  static const P2pClass instance(
      {.name = "InProcessAFDConnector",
       .maker = [](const ConnectorParams&,
                   std::uint32_t) { return transport::make_inproc_transport({}); },
       .capabilities = p2p_capabilities(/*cross_process=*/false),
       .probe = []() -> Result<void> { return {}; }});
  return &instance;
}

const ConnectorClass* p2p_connector_class() {
  static const P2pClass instance({.name = "P2pAFDConnector",
                                  .maker = &make_choosing_transport,
                                  .capabilities = choosing_capabilities(),
                                  .uses_ucx = true,
                                  .probe = &try_shared_memory});
  return &instance;
}

const ConnectorClass* p2p_shm_connector_class() {
  static const P2pClass instance(
      {.name = "P2pShmAFDConnector",
       .maker = [](const ConnectorParams&,
                   std::uint32_t) { return transport::make_shm_transport({}); },
       .capabilities = p2p_capabilities(/*cross_process=*/true),
       .probe = &try_shared_memory});
  return &instance;
}

}  // namespace afd::p2p
