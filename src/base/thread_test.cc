#include "base/thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cpu.h"
#include "base/cpu_place.h"
#include "base/no_threads.h"

namespace afd::base {
namespace {

using ::testing::StartsWith;

TEST(ThreadTest, Runs) {
  int value = 0;
  Result<std::thread> thread = start_thread([&] { value = 1; });
  ASSERT_TRUE(thread);
  thread->join();
  EXPECT_EQ(value, 1);
}

TEST(ThreadTest, SaysThatTheSystemHasNone) {
  const NoThreads none;
  const Result<std::thread> thread = start_thread([] {});
  ASSERT_FALSE(thread);
  EXPECT_EQ(thread.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(thread.error().message, StartsWith("cannot start a thread: "));
}

TEST(ThreadTest, WithoutThreadsTheDistanceOfProcessorsIsNotKnown) {
  const std::vector<std::uint32_t> cpus = allowed_cpus();
  const NoThreads none;
  const Result<double> trip = line_round_trip_ns(cpus.front(), cpus.back());
  ASSERT_FALSE(trip);
  EXPECT_EQ(trip.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace afd::base
