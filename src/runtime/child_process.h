// A process that this one starts, watches and ends.
//
// Threads: one at a time. start() forks: call it while this process has no other thread that holds
// a lock which the C library needs.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <afd/result.h>

#include "base/fd.h"

namespace afd::runtime {

struct ChildOptions {
  std::string program;            ///< Path; "/proc/self/exe" for this program.
  std::vector<std::string> args;  ///< argv[0] included.
  /// Descriptors that the child gets as 3, 4, ... in this order.
  std::vector<int> inherited_fds;
  std::vector<std::uint32_t> cpus;  ///< Where it may run; empty: as this process.
};

/// How a child ended.
struct ExitStatus {
  int exit_code = 0;  ///< Meaningless where `signal` is not 0.
  int signal = 0;
  bool known = true;  ///< Not where this process ignores SIGCHLD or reaped the child elsewhere.
  bool ok() const { return known && signal == 0 && exit_code == 0; }
};
/// "exit status 3", "killed by signal 9 (Killed)" or "exit status unknown".
std::string to_string(ExitStatus status);

/// "signal 9 (Killed)"; "signal 40" where it has no name.
std::string signal_text(int signal);

/// Owns the process: one that still runs is killed and reaped by the destructor.
class ChildProcess {
 public:
  /// Its stdin is empty; stdout and stderr go to output(). When this process dies it is continued
  /// (SIGCONT), should it be stopped, but not ended: it watches an inherited socket for that.
  static Result<ChildProcess> start(const ChildOptions& options);

  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  /// Whether it stands still by a signal or under a debugger (/proc).
  bool is_stopped() const;
  /// Non-blocking read end of what it prints.
  int output() const { return output_.get(); }

  /// How it ended, once it has. Does not wait.
  std::optional<ExitStatus> poll();
  /// No effect once poll() returned a status.
  void send_signal(int signal) const;

 private:
  ChildProcess(pid_t pid, base::Fd output) : pid_(pid), output_(std::move(output)) {}
  void end() noexcept;

  pid_t pid_ = -1;
  base::Fd output_;
  std::optional<ExitStatus> status_;
};

}  // namespace afd::runtime
