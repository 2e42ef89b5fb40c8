#include "base/futex.h"

#include <cerrno>
#include <thread>

#include <gtest/gtest.h>

namespace afd::base {
namespace {

TEST(FutexTest, ReturnsAtOnceIfTheWordDiffers) {
  const std::atomic<std::uint32_t> word{1};
  futex_wait(word, 0, Deadline::never());  // Would hang.
}

TEST(FutexTest, SleepsUntilTheDeadlineAndNotLess) {
  const std::atomic<std::uint32_t> word{1};
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(20));
  while (!deadline.expired()) {
    futex_wait(word, 1, deadline);  // More than once only if a signal came.
  }
  futex_wait(word, 1, deadline);  // In the past: does not hang.
  EXPECT_TRUE(deadline.expired());
}

TEST(FutexTest, WakesSleepersAndKeepsErrno) {
  std::atomic<std::uint32_t> word{0};
  std::thread sleeper([&] {
    while (word.load(std::memory_order_acquire) == 0) {
      futex_wait(word, 0, Deadline::never());
    }
  });
  word.store(1, std::memory_order_release);
  errno = ENOTTY;
  futex_wake_all(word);
  EXPECT_EQ(errno, ENOTTY);
  sleeper.join();
}

}  // namespace
}  // namespace afd::base
