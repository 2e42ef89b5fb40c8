#include "runtime/view_guard.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

TEST(ViewGuardTest, AnEndWaitsUntilNobodyReadsAndIsSeenByTheNext) {
  ViewGuard guard;
  std::atomic<bool> closed{false};
  std::optional<ViewGuard::Use> use(&guard);
  ASSERT_TRUE(*use);
  std::thread closer([&] { guard.end([&] { closed = true; }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // time to go wrong
  EXPECT_FALSE(closed);
  use.reset();
  closer.join();
  EXPECT_TRUE(closed);
  EXPECT_FALSE(ViewGuard::Use(&guard));
}

TEST(ViewGuardTest, WithoutAGuardNothingEnds) {
  EXPECT_TRUE(ViewGuard::Use(nullptr));
}

}  // namespace
}  // namespace afd::runtime
