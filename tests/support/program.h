// A program under test: started with its output collected, signalled, awaited, and looked at for
// what it left behind.
//
// Threads: one at a time per object.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

namespace afd::testing {

struct Ended {
  int exit_code = -1;  ///< -1: ended by `signal`, or it did not end in time
  int signal = 0;
  bool timed_out = false;
  std::string out;
  std::string err;
  std::chrono::milliseconds elapsed{0};  ///< From wait() on.
};

/// For messages of assertions.
std::string describe(const Ended& ended);

class Program {
 public:
  /// Starts args[0]. Its descendants become this process's children when their parent dies (so that
  /// nothing escapes leftover_processes()).
  explicit Program(const std::vector<std::string>& args);
  /// Kills it and every descendant that is known.
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int signal_number) const;

  /// Processes of `afd rank` that it has started by now: role and number are as in their arguments.
  struct RankProcess {
    pid_t pid = 0;
    std::string role;
    int role_rank = 0;
  };
  std::vector<RankProcess> ranks();
  /// Waits until there are as many. @return those found in the end
  std::vector<RankProcess> await_ranks(std::size_t num_ranks, std::chrono::milliseconds limit);

  /// Waits until it has printed `text` to stderr. @return false when it ends or the time is up
  bool await_stderr(const std::string& text, std::chrono::milliseconds limit);

  /// Whether it has ended; wait() then returns at once.
  bool has_ended() const;

  /// Waits for its end; kills it when the time is up.
  Ended wait(std::chrono::milliseconds limit);

  /// Notes which sockets it and its ranks have at this moment, so that leftovers() can look for
  /// them once nobody tells any longer whose they are. @return how many it has noted by now
  std::size_t note_sockets();

  /// What is left of it after wait(): rank processes that were seen and still run (after `grace`),
  /// shared-memory segments whose creator was one of them, and noted sockets. A line each; empty is
  /// good.
  std::string leftovers(std::chrono::milliseconds grace);

 private:
  void remember(const std::vector<RankProcess>& found);

  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::string out_text_;
  std::string err_text_;
  bool ended_ = false;
  std::vector<pid_t> seen_;
  std::set<std::string> sockets_;  ///< Their inodes.
};

/// Waits until the process is in this state of /proc/PID/stat: 'T' is stopped. @return false when
/// the time is up
bool await_state(pid_t pid, char state, std::chrono::milliseconds limit);

/// Starts and awaits.
Ended run_program(const std::vector<std::string>& args,
                  std::chrono::milliseconds limit = std::chrono::seconds(60));

/// A folder of its own, removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }
  /// Writes a file into it. @return its path
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace afd::testing
