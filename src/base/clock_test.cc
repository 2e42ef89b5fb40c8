#include "base/clock.h"

#include <chrono>

#include <gtest/gtest.h>

#include "base/cpu.h"

namespace afd::base {
namespace {

TEST(ClockTest, SteadyNsIsTheClockOfDeadlines) {
  const auto before = std::chrono::steady_clock::now().time_since_epoch();
  const std::int64_t now = steady_ns();
  const auto after = std::chrono::steady_clock::now().time_since_epoch();
  EXPECT_GE(now, std::chrono::nanoseconds(before).count());
  EXPECT_LE(now, std::chrono::nanoseconds(after).count());
}

TEST(ClockTest, TicksRunAsTheRateSays) {
  const std::int64_t start_ns = steady_ns();
  const std::uint64_t start = ticks();
  while (steady_ns() - start_ns < 5'000'000) {
  }
  const double ticked_ns = static_cast<double>(ticks() - start) * ns_per_tick();
  const auto ran_ns = static_cast<double>(steady_ns() - start_ns);
  EXPECT_GT(ticked_ns, 4'900'000);
  EXPECT_LT(ticked_ns, ran_ns * 1.01);
}

TEST(ClockTest, CalibrationSaysWhyAndPutsTheAffinityBack) {
  const auto cpus = allowed_cpus();
  const TickRate rate = calibrate_ticks();
  EXPECT_EQ(rate.trusted, rate.why_not.empty()) << rate.why_not;
  EXPECT_NEAR(rate.ns_per_tick, ns_per_tick(), 0.05 * rate.ns_per_tick);
  EXPECT_EQ(allowed_cpus(), cpus);
}

}  // namespace
}  // namespace afd::base
