#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::base {
namespace {

TEST(LogTest, WritesMessageThenKeysAndValues) {
  set_log_level(LogLevel::kInfo);
  ::testing::internal::CaptureStderr();
  log(LogLevel::kInfo, "attached", {{"rank", 1}, {"peer", "ffn rank 0"}, {"us", 1.5}});
  log(LogLevel::kDebug, "not written");
  const std::string written = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(written, ::testing::HasSubstr("info: attached rank=1 peer=ffn rank 0 us=1.5"));
  EXPECT_THAT(written, ::testing::Not(::testing::HasSubstr("not written")));
}

TEST(LogTest, OffWritesNothing) {
  set_log_level(LogLevel::kOff);
  EXPECT_FALSE(log_enabled(LogLevel::kError));
  EXPECT_FALSE(log_enabled(LogLevel::kOff));
  ::testing::internal::CaptureStderr();
  log(LogLevel::kError, "not written");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  set_log_level(LogLevel::kWarn);
}

}  // namespace
}  // namespace afd::base
