// `afd bench`: measurements for people.
#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace afd::cli {

void add_bench_command(CLI::App& app, int& exit_status) {
  (void)app;
  (void)exit_status;
}

}  // namespace afd::cli
