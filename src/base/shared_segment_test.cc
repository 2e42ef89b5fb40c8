#include "base/shared_segment.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fd.h"

namespace afd::base {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

constexpr std::uint64_t kBytes = 256 * 4096;

/// The exit status of `body`, run in a child process.
int run_forked(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool has_name(const std::string& name) {
  const auto segments = list_segments();
  return std::any_of(segments.begin(), segments.end(),
                     [&](const LeftSegment& segment) { return segment.name == name; });
}

long minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(SharedSegmentTest, BothEndsSeeTheSameZeroedBytes) {
  Result<SharedSegment> owner = SharedSegment::create(kBytes);
  ASSERT_TRUE(owner) << owner.error().message;
  EXPECT_EQ(owner->size(), kBytes);
  EXPECT_TRUE(std::all_of(owner->data(), owner->data() + kBytes,
                          [](std::byte byte) { return byte == std::byte{0}; }));
  const int status = run_forked([&] {
    const Result<SharedSegment> peer = SharedSegment::open(owner->name(), kBytes);
    if (!peer) {
      return 1;
    }
    std::memcpy(peer->data() + kBytes - 4, "abc", 4);
    return 0;
  });
  ASSERT_EQ(status, 0);
  EXPECT_STREQ(reinterpret_cast<const char*>(owner->data() + kBytes - 4), "abc");
}

TEST(SharedSegmentTest, IsPrivateToTheUserAndHasAnUnguessableName) {
  const Result<SharedSegment> first = SharedSegment::create(kBytes);
  const Result<SharedSegment> second = SharedSegment::create(kBytes);
  ASSERT_TRUE(first);
  ASSERT_TRUE(second);
  const std::string pattern = "/afd-" + std::to_string(::getpid()) + "-[0-9a-f]+";
  EXPECT_THAT(first->name(), MatchesRegex(pattern));
  EXPECT_NE(first->name(), second->name());
  struct stat status {};
  ASSERT_EQ(::stat(("/dev/shm" + first->name()).c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
}

TEST(SharedSegmentTest, ItsNameGoesOnceAndTheMemoryStays) {
  Result<SharedSegment> segment = SharedSegment::create(kBytes);
  ASSERT_TRUE(segment);
  EXPECT_TRUE(has_name(segment->name()));
  segment->remove_name();
  segment->remove_name();
  EXPECT_FALSE(has_name(segment->name()));
  segment->data()[0] = std::byte{1};
  const Result<SharedSegment> late = SharedSegment::open(segment->name(), kBytes);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(late.error().message, "cannot open shared memory " + segment->name() +
                                      ": No such file or directory (errno 2); both ranks must see "
                                      "the same /dev/shm");
}

TEST(SharedSegmentTest, AForkedChildDoesNotRemoveItsParentsName) {
  Result<SharedSegment> segment = SharedSegment::create(kBytes);
  ASSERT_TRUE(segment);
  ASSERT_EQ(run_forked([&] {
              segment->remove_name();
              return 0;
            }),
            0);
  EXPECT_TRUE(has_name(segment->name()));
}

TEST(SharedSegmentTest, UsingItCausesNoPageFault) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers fault in their own memory";
#endif
  const Result<SharedSegment> owner = SharedSegment::create(kBytes);
  ASSERT_TRUE(owner);
  const auto faults_of_writing = [](const SharedSegment& segment) {
    const long before = minor_faults();
    for (std::uint64_t offset = 0; offset < kBytes; offset += 4096) {
      segment.data()[offset] = std::byte{1};
    }
    return minor_faults() - before;
  };
  minor_faults();  // The first call may bring its own code in.
  EXPECT_EQ(faults_of_writing(*owner), 0);
  EXPECT_EQ(run_forked([&] {
              const Result<SharedSegment> peer = SharedSegment::open(owner->name(), kBytes);
              minor_faults();
              faults_of_writing(*peer);  // The stack of a new process.
              const Result<SharedSegment> again = SharedSegment::open(owner->name(), kBytes);
              return again && faults_of_writing(*again) == 0 ? 0 : 1;
            }),
            0);
}

TEST(SharedSegmentTest, SaysHowMuchIsMissing) {
  const Result<SharedSegment> segment = SharedSegment::create(std::uint64_t{1} << 50);
  ASSERT_FALSE(segment);
  EXPECT_EQ(segment.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(segment.error().message,
              MatchesRegex("too little shared memory: 1125899906842624 bytes needed, [0-9]+ free "
                           "in /dev/shm, [0-9]+ missing"));
  const Result<SharedSegment> beyond = SharedSegment::create(~std::uint64_t{0});
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kUnavailable);
}

bool write_file(const char* path, const std::string& text) {
  const Fd fd(::open(path, O_WRONLY | O_CLOEXEC));
  return ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// Gives this process a mount table of its own: at once for root, else through a user namespace in
/// which it is root.
bool own_mounts() {
  const uid_t uid = ::getuid();
  const gid_t gid = ::getgid();
  if (::unshare(CLONE_NEWNS) != 0 &&
      (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 ||
       !write_file("/proc/self/uid_map", "0 " + std::to_string(uid) + " 1") ||
       !write_file("/proc/self/setgroups", "deny") ||
       !write_file("/proc/self/gid_map", "0 " + std::to_string(gid) + " 1"))) {
    return false;
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

/// In a child with a /dev/shm of its own of `options`; exit status 77 if this system allows none.
int run_with_own_shm(const char* options, const std::function<int()>& body) {
  return run_forked([&] {
    if (!own_mounts() || ::mount("tmpfs", "/dev/shm", "tmpfs", 0, options) != 0) {
      return 77;
    }
    return body();
  });
}

TEST(SharedSegmentTest, AFullFileSystemIsAnErrorAndLeavesNothing) {
  const int status = run_with_own_shm("size=1m", [] {
    const Result<SharedSegment> fits = SharedSegment::create(512 << 10);
    const Result<SharedSegment> too_big = SharedSegment::create(768 << 10);
    if (!fits || too_big || too_big.error().code != ErrorCode::kUnavailable ||
        too_big.error().message !=
            "too little shared memory: 786432 bytes needed, 524288 free in "
            "/dev/shm, 262144 missing") {
      std::fprintf(stderr, "%s\n", too_big ? "fitted" : too_big.error().message.c_str());
      return 1;
    }
    return list_segments().size() == 1 ? 0 : 2;
  });
  if (status == 77) {
    GTEST_SKIP() << "needs the right to mount a tmpfs in a user namespace";
  }
  EXPECT_EQ(status, 0);
}

TEST(SharedSegmentTest, RefusesWhatIsNotASegmentsName) {
  const Result<SharedSegment> owner = SharedSegment::create(kBytes);
  ASSERT_TRUE(owner);
  const std::string hex(40, 'a');
  const std::vector<std::string> names = {std::string(),
                                          std::string("/"),
                                          std::string("/etc/passwd"),
                                          "/afd-1-" + hex + "/x",
                                          "/afd-1-../../etc/passwd" + hex,
                                          "/afd--" + hex,
                                          "/afd-0-" + hex,
                                          "/afd-01-" + hex,
                                          "/afd--1-" + hex,
                                          "/afd-99999999999999999999-" + hex,
                                          "/afd-1-" + hex + "a",
                                          "/afd-1-" + std::string(40, 'A'),
                                          "afd-1-" + hex,
                                          "/afd-1-" + std::string(40, '\0'),
                                          owner->name() + '\0',
                                          owner->name().substr(1),
                                          "/afd-1",
                                          "/afd-1-",
                                          "/afd-1x" + hex,
                                          std::string(100'000, 'a')};
  for (const std::string& name : names) {
    const Result<SharedSegment> segment = SharedSegment::open(name, kBytes);
    ASSERT_FALSE(segment) << name;
    EXPECT_EQ(segment.error().code, ErrorCode::kProtocolMismatch) << name;
    EXPECT_EQ(segment.error().message, "not the name of a shared-memory segment");
  }
}

TEST(SharedSegmentTest, RefusesAnotherSizeAndWhatIsNoFile) {
  const Result<SharedSegment> owner = SharedSegment::create(kBytes);
  ASSERT_TRUE(owner);
  const Result<SharedSegment> larger = SharedSegment::open(owner->name(), kBytes + 4096);
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_THAT(larger.error().message, HasSubstr(" has 1048576 bytes, expected 1052672"));

  // A link to somewhere else is not followed.
  const std::string link = "/afd-" + std::to_string(::getpid()) + "-" + std::string(40, 'b');
  ASSERT_EQ(::symlink(("/dev/shm" + owner->name()).c_str(), ("/dev/shm" + link).c_str()), 0);
  const Result<SharedSegment> linked = SharedSegment::open(link, kBytes);
  ::unlink(("/dev/shm" + link).c_str());
  ASSERT_FALSE(linked);
  EXPECT_EQ(linked.error().code, ErrorCode::kUnavailable);
}

/// Runs `body`, with EXPECT and ASSERT in it, where no other test sweeps; at least, where this
/// system allows that.
void run_undisturbed(const std::function<void()>& body) {
  const int status = run_with_own_shm("size=64m", [&] {
    body();
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == 77) {
    body();
  } else {
    EXPECT_EQ(status, 0) << "see above";
  }
}

/// Makes two segments in a child that is then killed; returns its process number.
pid_t leave_two_segments() {
  std::array<int, 2> pipe_fds{};
  EXPECT_EQ(::pipe2(pipe_fds.data(), O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const Result<SharedSegment> first = SharedSegment::create(kBytes);
    const Result<SharedSegment> second = SharedSegment::create(kBytes);
    const char ready = first && second ? 'y' : 'n';
    (void)!::write(pipe_fds[1], &ready, 1);
    ::raise(SIGKILL);
  }
  char ready = 0;
  EXPECT_EQ(::read(pipe_fds[0], &ready, 1), 1);
  EXPECT_EQ(ready, 'y');
  int status = 0;
  ::waitpid(pid, &status, 0);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  return pid;
}

/// A file of a segment's name, as `creator` would have made it.
Fd make_file_of(pid_t creator) {
  const std::string name = "/dev/shm/afd-" + std::to_string(creator) + "-" + std::string(40, 'c');
  return Fd(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
}

TEST(SharedSegmentTest, WhatADeadProcessLeftIsListedAndSwept) {
  run_undisturbed([] {
    const pid_t pid = leave_two_segments();
    const Result<SharedSegment> of_the_living = SharedSegment::create(kBytes);
    ASSERT_TRUE(of_the_living);
    std::size_t num_left = 0;
    for (const LeftSegment& segment : list_segments()) {
      if (segment.creator == pid) {
        ++num_left;
        EXPECT_FALSE(segment.creator_alive);
        EXPECT_EQ(segment.size_bytes, kBytes);
      }
      if (segment.name == of_the_living->name()) {
        EXPECT_TRUE(segment.creator_alive);
      }
    }
    EXPECT_EQ(num_left, 2U);
    EXPECT_EQ(sweep_segments(pid), 2U);
    EXPECT_EQ(sweep_segments(pid), 0U);
    EXPECT_TRUE(has_name(of_the_living->name()));

    leave_two_segments();
    leave_two_segments();
    EXPECT_GE(sweep_segments(), 4U);
    EXPECT_TRUE(has_name(of_the_living->name()));
  });
}

TEST(SharedSegmentTest, TheNumberOfALivingProcessDoesNotKeepWhatADeadOneLeft) {
  run_undisturbed([] {
    ASSERT_TRUE(make_file_of(::getpid()));  // had by another before, which is dead
    EXPECT_EQ(sweep_segments(::getpid()), 1U);
  });
}

TEST(SharedSegmentTest, ALivingCreatorOfAnUnknownNumberKeepsItsSegment) {
  constexpr pid_t kNobody = 0x7fffffff;  // beyond every pid_max: of another container, say
  const Fd file = make_file_of(kNobody);
  ASSERT_TRUE(file);
  const bool held = ::flock(file.get(), LOCK_EX | LOCK_NB) == 0;  // else another test swept it
  struct stat status {};
  ::fstat(file.get(), &status);
  if (held && status.st_nlink == 1) {
    EXPECT_EQ(sweep_segments(kNobody), 0U);
    sweep_segments();
    ::fstat(file.get(), &status);
    EXPECT_EQ(status.st_nlink, 1U);
  }
  ::flock(file.get(), LOCK_UN);
  sweep_segments(kNobody);
  ::fstat(file.get(), &status);
  EXPECT_EQ(status.st_nlink, 0U);
}

TEST(SharedSegmentTest, AForkedChildsSweepSparesItsParent) {
  Result<SharedSegment> segment = SharedSegment::create(kBytes);
  ASSERT_TRUE(segment);
  EXPECT_EQ(run_forked([&] {
              sweep_segments();
              return has_name(segment->name()) ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(has_name(segment->name()));
}

TEST(SharedSegmentTest, ASweepTakesNothingThatIsJustBeingMade) {
  const pid_t sweeper = ::fork();
  if (sweeper == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
      sweep_segments();
    }
  }
  int num_taken = 0;
  for (int i = 0; i < 2'000; ++i) {
    const Result<SharedSegment> segment = SharedSegment::create(4096);
    num_taken += segment && SharedSegment::open(segment->name(), 4096) ? 0 : 1;
    const Result<SharedName> fifo = SharedName::create(SharedName::Kind::kFifo);
    num_taken += fifo && open_shared_name(fifo->text(), SharedName::Kind::kFifo) ? 0 : 1;
  }
  ::kill(sweeper, SIGKILL);
  ::waitpid(sweeper, nullptr, 0);
  EXPECT_EQ(num_taken, 0);
}

TEST(SharedSegmentTest, AFifoHasANameOnlyAsLongAsItsCreatorWants) {
  Result<SharedName> fifo = SharedName::create(SharedName::Kind::kFifo);
  ASSERT_TRUE(fifo) << fifo.error().message;
  const std::string name = fifo->text();
  struct stat status {};
  ASSERT_EQ(::stat(("/dev/shm" + name).c_str(), &status), 0);
  EXPECT_TRUE(S_ISFIFO(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  const Result<Fd> peer = open_shared_name(name, SharedName::Kind::kFifo);
  ASSERT_TRUE(peer) << peer.error().message;
  EXPECT_EQ(open_shared_name(name, SharedName::Kind::kMemory).error().code,
            ErrorCode::kProtocolMismatch);
  EXPECT_EQ(SharedSegment::open(name, 4096).error().code, ErrorCode::kProtocolMismatch);

  const Fd own = fifo->remove();
  EXPECT_FALSE(has_name(name));
  ASSERT_EQ(::write(peer->get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(own.get(), &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
}

TEST(SharedSegmentTest, AFifoOfADeadCreatorIsSwept) {
  const pid_t child = ::fork();
  if (child == 0) {
    const Result<SharedName> fifo = SharedName::create(SharedName::Kind::kFifo);
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(sweep_segments(child), 1U);
}

TEST(SharedSegmentTest, HoldsADescriptorOnlyWhileItHasAName) {
  const int next_fd = ::dup(0);
  ::close(next_fd);
  Result<SharedSegment> segment = SharedSegment::create(kBytes);
  ASSERT_TRUE(segment);
  SharedSegment moved = *std::move(segment);
  EXPECT_NE(::fcntl(next_fd, F_GETFD) & FD_CLOEXEC, 0);
  moved.remove_name();
  EXPECT_EQ(::fcntl(next_fd, F_GETFD), -1);
}

TEST(SharedSegmentTest, NothingOfThisProcessIsLeft) {
  { const Result<SharedSegment> segment = SharedSegment::create(kBytes); }
  EXPECT_EQ(sweep_segments(::getpid()), 0U);
}

}  // namespace
}  // namespace afd::base
