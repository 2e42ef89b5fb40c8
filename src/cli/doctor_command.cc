// `afd doctor`: what this machine has, as far as it matters here.
#include <cstdio>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/exit_status.h"

namespace afd::cli {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorFlags {
  bool json = false;
  bool sweep = false;
};

int run(const DoctorFlags& flags) {
  Json list = Json::array();
  bool healthy = true;
  for (const DoctorCheck& check : doctor_checks({.sweep = flags.sweep})) {
    const Finding finding = check.look();
    healthy = healthy && finding.health != Health::kProblem;
    if (flags.json) {
      list.push_back({{"name", check.name},
                      {"health", std::string(to_string(finding.health))},
                      {"found", finding.found}});
    } else {
      std::printf("%-7s  %-14s  %s\n", std::string(to_string(finding.health)).c_str(), check.name,
                  finding.found.c_str());
      std::fflush(stdout);
    }
  }
  if (flags.json) {
    // What it quotes (a path, a plug-in's words) need not be UTF-8.
    std::printf("%s\n", Json{{"healthy", healthy}, {"checks", std::move(list)}}
                            .dump(-1, ' ', false, Json::error_handler_t::replace)
                            .c_str());
  }
  return healthy ? kExitOk : kExitFailed;
}

}  // namespace

void add_doctor_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Check this machine: shared memory, processors, clocks, limits, devices. Status 1 if "
      "something keeps a job from running");
  auto flags = std::make_shared<DoctorFlags>();
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->add_flag("--sweep", flags->sweep,
                    "Remove shared memory that dead processes left behind");
  command->callback([flags, &exit_status] { exit_status = run(*flags); });
}

}  // namespace afd::cli
