#include <afd/result.h>

#include <gtest/gtest.h>

#include <cmath>

#include <afd/deadline.h>

namespace afd {
namespace {

TEST(ResultTest, NamesEveryCode) {
  EXPECT_EQ(to_string(ErrorCode::kInvalidArgument), "InvalidArgument");
  EXPECT_EQ(to_string(ErrorCode::kFailedPrecondition), "FailedPrecondition");
  EXPECT_EQ(to_string(ErrorCode::kUnavailable), "Unavailable");
  EXPECT_EQ(to_string(ErrorCode::kWouldBlock), "WouldBlock");
  EXPECT_EQ(to_string(ErrorCode::kDeadlineExceeded), "DeadlineExceeded");
  EXPECT_EQ(to_string(ErrorCode::kPeerLost), "PeerLost");
  EXPECT_EQ(to_string(ErrorCode::kProtocolMismatch), "ProtocolMismatch");
  EXPECT_EQ(to_string(ErrorCode::kInternal), "Internal");
  EXPECT_EQ(to_string(static_cast<ErrorCode>(99)), "Unknown");
}

TEST(ResultTest, ContextStandsInFrontAndTheCodeStays) {
  Error error{ErrorCode::kPeerLost, "connection closed"};
  error = std::move(error).with_context("hello").with_context("connect to ffn rank 3");
  EXPECT_EQ(error,
            (Error{ErrorCode::kPeerLost, "connect to ffn rank 3: hello: connection closed"}));
}

TEST(ResultTest, FailPassesCodeAndMessageThrough) {
  const auto failing = []() -> Result<int> { return fail(ErrorCode::kInternal, "broken"); };
  const auto passing = [&]() -> Result<std::string> { return fail(failing().error()); };
  EXPECT_EQ(passing().error(), (Error{ErrorCode::kInternal, "broken"}));
}

TEST(DeadlineTest, NeverNeverExpires) {
  EXPECT_TRUE(Deadline().is_never());
  EXPECT_EQ(Deadline(), Deadline::never());
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining(), Deadline::Clock::duration::max());
}

TEST(DeadlineTest, DurationsThatAreNegativeOrHugeDoNotWrap) {
  EXPECT_TRUE(Deadline::now().expired());
  EXPECT_TRUE(Deadline::after(std::chrono::hours(-1)).expired());
  EXPECT_EQ(Deadline::after(std::chrono::hours(-1)).remaining(), Deadline::Clock::duration::zero());
  EXPECT_TRUE(Deadline::after(std::chrono::duration<double>(std::nan(""))).expired());
  EXPECT_TRUE(Deadline::after(std::chrono::hours::max()).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::max()).is_never());
  EXPECT_TRUE(Deadline::after(std::chrono::hours::min()).expired());
  const Deadline hour = Deadline::after(std::chrono::hours(1));
  EXPECT_FALSE(hour.expired());
  EXPECT_FALSE(hour.is_never());
  EXPECT_GT(hour.remaining(), std::chrono::minutes(59));
}

}  // namespace
}  // namespace afd
