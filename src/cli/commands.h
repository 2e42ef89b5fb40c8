// The subcommands of `afd`. Each adds itself to the application; when it is chosen, its callback
// runs it and stores the exit status.
#pragma once

namespace CLI {
class App;
}

namespace afd::cli {

/// Makes every numeric option of every command read "010" as ten: the parser alone takes it for
/// octal.
void read_numbers_as_decimal(CLI::App& app);

void add_run_command(CLI::App& app, int& exit_status);
void add_rank_command(CLI::App& app, int& exit_status);
void add_topology_command(CLI::App& app, int& exit_status);
void add_config_command(CLI::App& app, int& exit_status);
void add_connectors_command(CLI::App& app, int& exit_status);
void add_bench_command(CLI::App& app, int& exit_status);
void add_doctor_command(CLI::App& app, int& exit_status);

}  // namespace afd::cli
