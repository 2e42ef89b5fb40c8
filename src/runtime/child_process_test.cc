#include "runtime/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

ChildProcess start(const std::string& script, std::vector<int> fds = {}) {
  Result<ChildProcess> child = ChildProcess::start({.program = "/bin/sh",
                                                    .args = {"sh", "-c", script},
                                                    .inherited_fds = std::move(fds),
                                                    .cpus = {}});
  EXPECT_TRUE(child) << child.error().message;
  return *std::move(child);
}

/// Everything it prints, until the pipe ends.
std::string output_of(const ChildProcess& child) {
  std::string text;
  for (;;) {
    pollfd fd = {.fd = child.output(), .events = POLLIN, .revents = 0};
    ::poll(&fd, 1, -1);
    char buffer[256];
    const ssize_t got = ::read(child.output(), buffer, sizeof(buffer));
    if (got <= 0) {
      return text;
    }
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

ExitStatus wait(ChildProcess& child) {
  for (;;) {
    if (const std::optional<ExitStatus> status = child.poll()) {
      return *status;
    }
    ::usleep(1000);
  }
}

TEST(ChildProcessTest, CollectsWhatItPrintsAndHowItEnds) {
  ChildProcess child = start("echo out; echo err >&2; exit 3");
  EXPECT_EQ(output_of(child), "out\nerr\n");
  const ExitStatus status = wait(child);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(to_string(status), "exit status 3");
  EXPECT_EQ(to_string(*child.poll()), "exit status 3");
}

TEST(ChildProcessTest, SaysWhichSignalKilledIt) {
  ChildProcess child = start("kill -TERM $$");
  EXPECT_EQ(to_string(wait(child)), "killed by signal 15 (Terminated)");
}

TEST(ChildProcessTest, ASignalWithoutANameHasItsNumber) {
  EXPECT_EQ(signal_text(40), "signal 40");
  ChildProcess child = start("kill -40 $$");
  EXPECT_EQ(to_string(wait(child)), "killed by signal 40");
}

TEST(ChildProcessTest, WhereSigchldIsIgnoredTheStatusIsUnknown) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  ChildProcess child = start("exit 0");
  const ExitStatus status = wait(child);
  ::signal(SIGCHLD, before);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(to_string(status), "exit status unknown");
}

TEST(ChildProcessTest, InheritsDescriptorsInOrder) {
  const base::Fd first(::memfd_create("first", MFD_CLOEXEC));
  const base::Fd second(::memfd_create("second", MFD_CLOEXEC));
  ASSERT_EQ(::write(first.get(), "1\n", 2), 2);
  ASSERT_EQ(::write(second.get(), "2\n", 2), 2);
  ::lseek(first.get(), 0, SEEK_SET);
  ::lseek(second.get(), 0, SEEK_SET);
  ChildProcess child =
      start("cat <&3; cat <&4; ls /proc/self/fd | wc -l", {first.get(), second.get()});
  // 0 to 4, and the one that ls reads the folder with.
  EXPECT_EQ(output_of(child), "1\n2\n6\n");
  EXPECT_TRUE(wait(child).ok());
}

TEST(ChildProcessTest, AProgramThatIsNotThereEndsWith127) {
  Result<ChildProcess> child = ChildProcess::start(
      {.program = "/no/such/program", .args = {"x"}, .inherited_fds = {}, .cpus = {}});
  ASSERT_TRUE(child);
  EXPECT_EQ(wait(*child).exit_code, 127);
}

TEST(ChildProcessTest, IsKilledAndReapedWithItsObject) {
  pid_t pid = -1;
  {
    const ChildProcess child = start("exec sleep 1000");
    pid = child.pid();
    ASSERT_EQ(::kill(pid, 0), 0);
  }
  EXPECT_EQ(::kill(pid, 0), -1);
}

}  // namespace
}  // namespace afd::runtime
