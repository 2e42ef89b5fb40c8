#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>

#include <CLI/CLI.hpp>

#include <afd/version.h>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/parse_error.h"
#include "cli/plugins.h"
#include "cli/text_output.h"

namespace {

/// A closed 0, 1 or 2 would be the next file that is opened, a segment of shared memory say, and be
/// printed into. They stay as useless as they were: what reads or writes gets EBADF.
bool hold_standard_files() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 &&
        ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!hold_standard_files()) {
    return afd::cli::kExitFailed;
  }
  // A file that may not grow is an error of the write, not the end of the process.
  ::signal(SIGXFSZ, SIG_IGN);
  int exit_status = afd::cli::kExitOk;
  if (afd::Result<void> usable = afd::cli::check_plugins(); !usable) {
    return afd::cli::report_usage("", usable.error(),
                                  "AFD_PLUGINS holds NAME=LIBRARY,NAME=LIBRARY; unset it to go on "
                                  "without plug-ins");
  }
  CLI::App app("Attention-FFN disaggregation for Mixture-of-Experts models", "afd");
  app.set_version_flag("--version", "afd " AFD_VERSION);
  app.set_help_all_flag("--help-all", "Help of every command");
  app.require_subcommand(1);
  app.fallthrough();  // --plugin may stand behind the command's name.
  afd::cli::add_plugin_flag(app);
  afd::cli::add_run_command(app, exit_status);
  afd::cli::add_rank_command(app, exit_status);
  afd::cli::add_topology_command(app, exit_status);
  afd::cli::add_config_command(app, exit_status);
  afd::cli::add_connectors_command(app, exit_status);
  afd::cli::add_bench_command(app, exit_status);
  afd::cli::add_doctor_command(app, exit_status);
  afd::cli::read_numbers_as_decimal(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return afd::cli::end_of_parsing(app, error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "afd: %s\n", error.what());
    return afd::cli::kExitFailed;
  }
  // What was printed may lie in a buffer still, or be lost already.
  if (const int error = afd::cli::flush_stdout(); error != 0 && exit_status == afd::cli::kExitOk) {
    std::fprintf(stderr, "afd: stdout cannot be written: %s\n", std::strerror(error));
    return afd::cli::kExitFailed;
  }
  return exit_status;
}
