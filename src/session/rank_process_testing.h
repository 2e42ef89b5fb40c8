// For tests: one rank in a process of its own.
#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fd.h"
#include "session/session_test_support.h"

namespace afd::session::testing {

// One rank in a process of its own. It tells the test lines of text; the test lets it go on.
class RankProcess {
 public:
  using Body = std::function<void(const RankProcess& self)>;

  explicit RankProcess(const Body& body) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    base::Fd test_end(ends[0]);
    base::Fd rank_end(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // whatever becomes of the test, nothing is left
      channel_ = std::move(rank_end);
      body(*this);
      ::_exit(0);
    }
    channel_ = std::move(test_end);
  }
  ~RankProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  // --- in the test ---

  void signal(int number) const { ASSERT_EQ(::kill(pid_, number), 0); }
  void go_on() const { send_raw(channel_, "\n"); }
  /// The next line; what there is of it once the process has ended, or after a minute.
  std::string line() const {
    std::string text;
    while (true) {
      pollfd ready{.fd = channel_.get(), .events = POLLIN, .revents = 0};
      char c = 0;
      if (::poll(&ready, 1, 60'000) != 1 || ::recv(channel_.get(), &c, 1, 0) != 1 || c == '\n') {
        return text;
      }
      text += c;
    }
  }
  /// The exit status, or minus the signal that ended the process.
  int wait() {
    int status = 0;
    EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  // --- in the process ---

  int fd() const { return channel_.get(); }

  void tell(const std::string& text) const { send_raw(channel_, text + "\n"); }
  void wait_to_go_on() const {
    char c = 0;
    if (::recv(channel_.get(), &c, 1, 0) != 1) {
      ::_exit(3);  // the test is gone
    }
  }

 private:
  pid_t pid_ = -1;
  base::Fd channel_;
};

}  // namespace afd::session::testing
