#include "base/cpu.h"

#include <sched.h>

#include <gtest/gtest.h>

namespace afd::base {
namespace {

TEST(CpuTest, PinsThisThread) {
  const auto before = allowed_cpus();
  ASSERT_FALSE(before.empty());
  ASSERT_TRUE(pin_this_thread({before.back()}));
  EXPECT_EQ(allowed_cpus(), std::vector<std::uint32_t>{before.back()});
  EXPECT_EQ(::sched_getcpu(), static_cast<int>(before.back()));
  ASSERT_TRUE(pin_this_thread(before));
  EXPECT_EQ(allowed_cpus(), before);
}

TEST(CpuTest, RefusesProcessorsThatAreNotThere) {
  const auto before = allowed_cpus();
  const Result<void> pinned = pin_this_thread({65'000, 70'000});
  ASSERT_FALSE(pinned);
  EXPECT_EQ(pinned.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(pinned.error().message,
            "cannot run on processors [65000, 70000]: Invalid argument (errno 22)");
  EXPECT_EQ(allowed_cpus(), before);
}

}  // namespace
}  // namespace afd::base
