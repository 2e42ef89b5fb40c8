// What the factory sees: names, capabilities, the connector's own settings.
#include <array>
#include <string>
#include <utility>

#include <afd/extra_config.h>

#include "connectors/p2p/p2p_connector.h"
#include "connectors/p2p/p2p_state.h"
#include "transport/inproc/inproc_transport.h"
#include "transport/shm/shm_transport.h"

namespace afd::p2p {
namespace {

constexpr std::string_view kStrictTopology = "strict_topology";

Capabilities p2p_capabilities() {
  Capabilities capabilities;
  capabilities.devices = {DeviceType::kCpu};
  capabilities.dtypes = {kFloat32, kFloat16, kBFloat16, kFloat64, kInt8, kUInt8, kInt32, kInt64};
  capabilities.num_stages_max = kStagesMax;
  capabilities.in_place_buffers = true;
  capabilities.progressive_rows = true;
  capabilities.router_logits = true;
  capabilities.any_ratio = true;
  return capabilities;
}

Capabilities across_processes(Capabilities capabilities) {
  capabilities.cross_process = true;
  return capabilities;
}

/// @return whether the reference's rule A >= F, A % F == 0 is asked for
Result<bool> parse_strict_topology(std::string_view raw_json) {
  Result<ExtraConfig> extra = ExtraConfig::parse("P2P", raw_json);
  if (!extra) {
    return fail(std::move(extra).error());
  }
  if (Result<void> known = extra->check_keys({kStrictTopology}); !known) {
    return fail(std::move(known).error());
  }
  return extra->boolean(kStrictTopology, false);
}

/// Makes and drops the smallest window there is: what init would meet.
Result<void> try_shared_memory() {
  Result<std::string> blob = transport::make_shm_transport({})->create(nullptr);
  if (!blob) {
    return fail(std::move(blob).error());
  }
  return {};
}

class P2pClass final : public ConnectorClass {
 public:
  P2pClass(std::string name, TransportMaker maker, Capabilities capabilities,
           Result<void> (*probe)())
      : name_(std::move(name)),
        maker_(maker),
        capabilities_(std::move(capabilities)),
        probe_(probe) {}

  std::string_view name() const override { return name_; }
  Result<void> check_available() const override { return probe_(); }
  Capabilities capabilities() const override { return capabilities_; }

  Result<std::string> parse_extra_config(std::string_view raw_json) const override {
    const Result<bool> strict = parse_strict_topology(raw_json);
    if (!strict) {
      return fail(strict.error());
    }
    return std::string(*strict ? R"({"strict_topology":true})" : R"({"strict_topology":false})");
  }

  Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams& params) const override {
    const Result<bool> strict = parse_strict_topology(params.config.connector_extra_config);
    if (!strict) {
      return fail(strict.error());
    }
    if (*strict) {
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
        std::make_unique<P2pConnector>(name_, params, *std::move(layout), maker_, capabilities_));
  }

 private:
  const std::string name_;
  const TransportMaker maker_;
  const Capabilities capabilities_;
  Result<void> (*const probe_)();
};

}  // namespace

const ConnectorClass* in_process_connector_class() {
  static const P2pClass instance(
      "InProcessAFDConnector", [] { return transport::make_inproc_transport({}); },
      p2p_capabilities(), []() -> Result<void> { return {}; });
  return &instance;
}

const ConnectorClass* p2p_shm_connector_class() {
  static const P2pClass instance(
      "P2pShmAFDConnector", [] { return transport::make_shm_transport({}); },
      across_processes(p2p_capabilities()), &try_shared_memory);
  return &instance;
}

}  // namespace afd::p2p
