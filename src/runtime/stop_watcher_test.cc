#include "runtime/stop_watcher.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/no_threads.h"

namespace afd::runtime {
namespace {

using ::testing::HasSubstr;

bool is_blocked(int signal) {
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return ::sigismember(&now, signal) == 1;
}

TEST(StopWatcherTest, CallsOnASignal) {
  std::promise<void> stopped;
  const auto watcher = StopWatcher::start({SIGUSR1}, -1, [&] { stopped.set_value(); });
  ASSERT_TRUE(watcher) << watcher.error().message;
  ::kill(::getpid(), SIGUSR1);
  stopped.get_future().wait();
}

TEST(StopWatcherTest, DrainsFirstAndStopsAtTheSecondSignalOrWhenItTakesTooLong) {
  for (const bool second : {true, false}) {
    std::promise<void> drained;
    std::promise<void> stopped;
    const auto watcher = StopWatcher::start(
        {SIGUSR1}, -1, [&] { stopped.set_value(); },
        StopWatcher::Drain{.signal = SIGUSR1,
                           .limit = std::chrono::milliseconds(second ? 60'000 : 20),
                           .on_drain = [&] {
                             drained.set_value();
                             return true;
                           }});
    ASSERT_TRUE(watcher) << watcher.error().message;
    ::kill(::getpid(), SIGUSR1);
    drained.get_future().wait();
    if (second) {
      EXPECT_EQ((*watcher)->stopped_by(), StopWatcher::kNotStopped);
      ::kill(::getpid(), SIGUSR1);
    }
    stopped.get_future().wait();
    EXPECT_EQ((*watcher)->stopped_by(), second ? SIGUSR1 : StopWatcher::kDrainTooLong);
  }
}

TEST(StopWatcherTest, StopsAtOnceWhereThereIsNothingToDrain) {
  std::promise<void> stopped;
  const auto watcher = StopWatcher::start(
      {SIGUSR1}, -1, [&] { stopped.set_value(); },
      StopWatcher::Drain{.signal = SIGUSR1,
                         .limit = std::chrono::milliseconds(60'000),
                         .on_drain = [] { return false; }});
  ASSERT_TRUE(watcher) << watcher.error().message;
  ::kill(::getpid(), SIGUSR1);
  stopped.get_future().wait();
  EXPECT_EQ((*watcher)->stopped_by(), StopWatcher::kNothingToDrain);
}

TEST(StopWatcherTest, TheProcessEndsAlsoWhenTheCallNeverReturns) {
  const auto stop_in_vain = [](bool leaves) {
    ::alarm(20);  // If it did not end, this would be how.
    std::promise<void> called;
    auto watcher = StopWatcher::start({SIGUSR1}, -1, [&] {
      called.set_value();
      for (;;) {
        ::pause();
      }
    });
    ::kill(::getpid(), SIGUSR1);
    called.get_future().wait();
    if (leaves) {
      watcher->reset();
    }
    for (;;) {
      ::pause();
    }
  };
  EXPECT_EXIT(stop_in_vain(false), ::testing::ExitedWithCode(1), "");
  EXPECT_EXIT(stop_in_vain(true), ::testing::ExitedWithCode(1), "");
}

// Whatever it lacks, the signals mean again what they meant before: Ctrl-C must end the process.
TEST(StopWatcherTest, WithoutAThreadItIsAnError) {
  ASSERT_FALSE(is_blocked(SIGUSR2));
  const base::NoThreads none;
  const auto watcher = StopWatcher::start({SIGUSR2}, -1, [] {});
  ASSERT_FALSE(watcher);
  EXPECT_EQ(watcher.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(watcher.error().message, HasSubstr("cannot start a thread: "));
  EXPECT_FALSE(is_blocked(SIGUSR2));
}

TEST(StopWatcherTest, WithoutDescriptorsItIsAnError) {
  ASSERT_FALSE(is_blocked(SIGUSR2));
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int next_fd = ::dup(0);
  ASSERT_GE(next_fd, 0);
  ::close(next_fd);
  for (const int num_left : {0, 1}) {
    rlimit few = before;
    few.rlim_cur = static_cast<rlim_t>(next_fd + num_left);
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto watcher = StopWatcher::start({SIGUSR2}, -1, [] {});
    ::setrlimit(RLIMIT_NOFILE, &before);
    ASSERT_FALSE(watcher);
    EXPECT_EQ(watcher.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(watcher.error().message, HasSubstr("Too many open files"));
    EXPECT_FALSE(is_blocked(SIGUSR2));
  }
}

}  // namespace
}  // namespace afd::runtime
