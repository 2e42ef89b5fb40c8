// `afd config check`: the effective configuration, or what is wrong with it.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include <afd/config.h>
#include <afd/factory.h>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/layout_check.h"
#include "cli/plugins.h"
#include "cli/text_file.h"

namespace afd::cli {
namespace {

constexpr std::string_view kCommand = "config check";
constexpr std::string_view kHint =
    "`echo '{}' | afd config check -` prints every key with its default";

// What a configuration may have (parse_afd_config).
constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20;

struct ConfigFlags {
  std::string file;
  bool strict = false;
};

/// The `afd` section: of an `additional_config` object, or the file itself.
Result<AfdConfig> parse(const std::string& text, const ParseConfigOptions& options) {
  const Result<bool> wrapped = has_afd_config(text);
  // What is no JSON at all is told of as the section, since nobody knows what it was to be.
  return wrapped && *wrapped ? parse_required_afd_config(text, options)
                             : parse_afd_config(text, options);
}

int check(const ConfigFlags& flags) {
  Result<std::string> text = read_text_file(flags.file, kConfigBytesMax);
  if (!text) {
    return report_usage(kCommand, text.error());
  }
  const ConnectorFactory factory = known_connectors();
  Result<AfdConfig> config =
      parse(*text, {.connector_names = factory.connector_names(), .strict_topology = flags.strict});
  if (!config) {
    return report_failure(kCommand, config.error(), kHint);
  }
  // The connector's own section, where its class can be loaded here.
  if (Result<std::string> extra =
          factory.parse_connector_extra_info(config->connector, config->connector_extra_config);
      !extra) {
    if (extra.error().code != ErrorCode::kUnavailable) {
      return report_failure(kCommand, extra.error());
    }
    std::fprintf(stderr, "note: connector_extra_config was not checked: %s\n",
                 extra.error().message.c_str());
  } else {
    config->connector_extra_config = *std::move(extra);
  }
  if (const std::string note = layout_note(factory, *config); !note.empty()) {
    std::fprintf(stderr, "note: %s\n", note.c_str());
  }
  std::printf("%s\n", to_json(*config).c_str());
  return kExitOk;
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_status) {
  CLI::App* config = app.add_subcommand("config", "Look at configurations");
  config->require_subcommand(1);
  CLI::App* command = config->add_subcommand(
      "check", "Print the effective configuration of an `afd` section, or what is wrong with it");
  auto flags = std::make_shared<ConfigFlags>();
  command
      ->add_option("FILE", flags->file,
                   "JSON: the section, or an object with an `afd` key; - reads stdin")
      ->required();
  command->add_flag("--strict", flags->strict,
                    "Apply the reference's topology rules to P2pNcclAFDConnector");
  command->callback([flags, &exit_status] { exit_status = check(*flags); });
}

}  // namespace afd::cli
