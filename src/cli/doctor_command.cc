// `afd doctor`: what this machine has.
#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace afd::cli {

void add_doctor_command(CLI::App& app, int& exit_status) {
  (void)app;
  (void)exit_status;
}

}  // namespace afd::cli
