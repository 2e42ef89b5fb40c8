// `afd connectors`: which there are, where they come from, whether they can run here.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <afd/factory.h>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/plugins.h"

namespace afd::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string_view device_name(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kCuda:
      return "cuda";
    case DeviceType::kCudaHost:
      return "cuda_host";
    case DeviceType::kRocm:
      return "rocm";
    case DeviceType::kRocmHost:
      return "rocm_host";
    case DeviceType::kExtDev:
      return "ext_dev";
  }
  return "unknown";
}

Json capabilities_json(const Capabilities& capabilities) {
  Json devices = Json::array();
  for (const DeviceType device : capabilities.devices) {
    devices.push_back(device_name(device));
  }
  Json dtypes = Json::array();
  for (const DType dtype : capabilities.dtypes) {
    dtypes.push_back(to_string(dtype));
  }
  return {{"devices", std::move(devices)},
          {"dtypes", std::move(dtypes)},
          {"num_stages_max", capabilities.num_stages_max},
          {"in_place_buffers", capabilities.in_place_buffers},
          {"progressive_rows", capabilities.progressive_rows},
          {"router_logits", capabilities.router_logits},
          {"topk", capabilities.topk},
          {"graph_safe", capabilities.graph_safe},
          {"any_ratio", capabilities.any_ratio},
          {"cross_process", capabilities.cross_process},
          {"cross_host", capabilities.cross_host},
          {"network_calls", capabilities.network_calls}};
}

int run(bool json) {
  Json list = Json::array();
  for (const ConnectorInfo& info : known_connectors().describe()) {
    if (json) {
      Json entry = {{"name", info.name}, {"origin", info.origin}, {"available", info.available}};
      if (!info.why_not.empty()) {
        entry["why_not"] = info.why_not;
      }
      if (!info.capabilities.devices.empty()) {
        entry["capabilities"] = capabilities_json(info.capabilities);
      }
      list.push_back(std::move(entry));
      continue;
    }
    std::printf("%-24s %-36s %s\n", info.name.c_str(), info.origin.c_str(),
                info.available ? "available" : "not available");
    if (!info.why_not.empty()) {
      std::printf("  %s\n", info.why_not.c_str());
    }
  }
  if (json) {
    // What it quotes (a path, a plug-in's words) need not be UTF-8.
    std::printf("%s\n", Json{{"connectors", std::move(list)}}
                            .dump(-1, ' ', false, Json::error_handler_t::replace)
                            .c_str());
  }
  return kExitOk;
}

}  // namespace

void add_connectors_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand(
      "connectors", "List the connectors, where they come from, and whether they can run here");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print one JSON object");
  command->callback([json, &exit_status] { exit_status = run(*json); });
}

}  // namespace afd::cli
