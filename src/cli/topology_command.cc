// `afd topology`: who talks to whom.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <afd/factory.h>
#include <afd/topology.h>

#include "builtin/default_connector.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/layout_check.h"
#include "cli/plugins.h"
#include "core/rank_mapping.h"

namespace afd::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TopologyFlags {
  std::int64_t num_attention_ranks = 1;
  std::int64_t num_ffn_ranks = 1;
  std::string connector{kDefaultConnector};
  bool strict = false;
  bool json = false;
};

std::string joined(const std::vector<std::uint32_t>& numbers) {
  std::string text;
  for (const std::uint32_t number : numbers) {
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  }
  return text.empty() ? "-" : text;
}

Json mapping_json(const RankMapping& mapping) {
  Json json = {{"role", to_string(mapping.role)},
               {"role_rank", mapping.role_rank},
               {"world_rank", mapping.world_rank},
               {"subgroup", mapping.subgroup_index},
               {"peers", mapping.peers}};
  if (mapping.role == Role::kAttention) {
    json["sends_control_to"] = mapping.dp_metadata_destinations;
  } else {
    json["receives_control_from"] = mapping.dp_metadata_source;
  }
  return json;
}

void print_mapping(const RankMapping& mapping) {
  const bool attention = mapping.role == Role::kAttention;
  std::printf("%5u  %-9s %-5u %-9u %-5s %-16s %s %s\n", mapping.world_rank,
              std::string(to_string(mapping.role)).c_str(), mapping.role_rank,
              mapping.subgroup_index, attention ? "ffn" : "attn", joined(mapping.peers).c_str(),
              attention ? "to" : "from",
              attention ? joined(mapping.dp_metadata_destinations).c_str()
                        : std::to_string(mapping.dp_metadata_source).c_str());
}

int run(const TopologyFlags& flags) {
  const ConnectorFactory factory = known_connectors();
  // Who talks to whom is for a connector to say (CAM's asynchronous one, for one, has no subgroups
  // and other world ranks). Those that can be loaded here have the rule of afd/topology.h.
  if (const Result<const ConnectorClass*> loaded = factory.get_connector_class(flags.connector);
      !loaded) {
    return report("topology", loaded.error());
  }
  Result<void> legal =
      flags.strict ? validate_strict_topology(flags.num_attention_ranks, flags.num_ffn_ranks)
                   : validate_topology(flags.num_attention_ranks, flags.num_ffn_ranks);
  if (!legal) {
    return report_usage("topology", legal.error());
  }
  Json ranks = Json::array();
  if (!flags.json) {
    std::printf("world  role      rank  subgroup  peers                  control\n");
  }
  for (const auto& [role, count] : {std::pair{Role::kFfn, flags.num_ffn_ranks},
                                    std::pair{Role::kAttention, flags.num_attention_ranks}}) {
    for (std::int64_t rank = 0; rank < count; ++rank) {
      Result<RankMapping> mapping = build_rank_mapping_without_members(
          flags.num_attention_ranks, flags.num_ffn_ranks, role, rank);
      if (!mapping) {
        return report_usage("topology", mapping.error());
      }
      if (flags.json) {
        ranks.push_back(mapping_json(*mapping));
      } else {
        print_mapping(*mapping);
      }
    }
  }
  AfdConfig config{.connector = flags.connector};
  config.num_attention_ranks = static_cast<std::uint32_t>(flags.num_attention_ranks);
  config.num_ffn_ranks = static_cast<std::uint32_t>(flags.num_ffn_ranks);
  const std::string note = layout_note(factory, config);
  if (flags.json) {
    Json json = {{"num_attention_ranks", flags.num_attention_ranks},
                 {"num_ffn_ranks", flags.num_ffn_ranks},
                 {"connector", flags.connector},
                 {"ranks", std::move(ranks)}};
    if (!note.empty()) {
      json["note"] = note;
    }
    std::printf("%s\n", json.dump().c_str());
  } else if (!note.empty()) {
    std::printf("note: %s\n", note.c_str());
  }
  return kExitOk;
}

}  // namespace

void add_topology_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("topology", "Show who talks to whom");
  auto flags = std::make_shared<TopologyFlags>();
  command->add_option("--attention-ranks", flags->num_attention_ranks, "Number of attention ranks")
      ->required();
  command->add_option("--ffn-ranks", flags->num_ffn_ranks, "Number of FFN ranks")->required();
  command
      ->add_option("--connector", flags->connector,
                   "Registered connector; a note says if it refuses this layout")
      ->capture_default_str();
  command->add_flag("--strict", flags->strict,
                    "Refuse what the reference refuses: A < F, and A that F does not divide");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &exit_status] { exit_status = run(*flags); });
}

}  // namespace afd::cli
