#include "runtime/rank_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

enum ChildExit { kAsExpected = 0, kStillWoken = 2, kWrongStatus = 3 };

/// In a process of its own, since it sets signals for good: a rank that cannot read its job.
int end_at_once() {
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);  // as the launcher's start of it does
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
    return kWrongStatus;
  }
  const ConnectorFactory factory;
  const RankId id{.role = Role::kFfn, .role_rank = 0};
  if (run_launched_rank(factory, id, /*job_fd=*/-1, ends[1]) != 1) {
    return kWrongStatus;
  }
  int signal = -1;
  ::prctl(PR_GET_PDEATHSIG, &signal);
  return signal == 0 ? kAsExpected : kStillWoken;
}

// SIGCONT would cancel the SIGSTOP of LeakSanitizer, or of a debugger that attaches.
TEST(RankProcessTest, OnceItHasEndedItsLaunchersEndSendsNoSignal) {
  const pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::_exit(end_at_once());
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kAsExpected);
}

}  // namespace
}  // namespace afd::runtime
