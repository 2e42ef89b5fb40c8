#include "runtime/histogram.h"

#include <limits>

#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

using std::chrono::nanoseconds;

TEST(HistogramTest, QuantilesAreWithinThreePercent) {
  Histogram subject;
  for (int us = 1; us <= 1000; ++us) {
    subject.record(nanoseconds(us * 1000));
  }
  EXPECT_NEAR(subject.quantile_us(0.5), 500.0, 15.0);
  EXPECT_NEAR(subject.quantile_us(0.99), 990.0, 30.0);
  EXPECT_DOUBLE_EQ(subject.mean_us(), 500.5);
}

TEST(HistogramTest, HoldsEveryDuration) {
  Histogram subject;
  EXPECT_EQ(subject.quantile_us(0.5), 0.0);
  subject.record(nanoseconds(-5));
  EXPECT_EQ(subject.quantile_us(0.5), 0.0);
  subject.record(nanoseconds(7));
  EXPECT_DOUBLE_EQ(subject.quantile_us(1.0), 0.007);
  subject.record(nanoseconds::max());
  EXPECT_NEAR(subject.quantile_us(1.0), 9.2e15, 0.3e15);
}

TEST(HistogramTest, TravelsAsItsFilledBuckets) {
  Histogram sent;
  sent.record(nanoseconds(10));
  sent.record(nanoseconds(123456));
  Histogram received;
  received.record(nanoseconds(123456));
  ASSERT_TRUE(received.add_sparse(sent.sparse(), sent.total_ns()));
  Histogram merged;
  merged.record(nanoseconds(123456));
  merged.merge(sent);
  EXPECT_EQ(received.sparse(), merged.sparse());
  EXPECT_EQ(received.num_samples(), 3u);
  EXPECT_EQ(received.total_ns(), 246922u);

  EXPECT_FALSE(received.add_sparse({{0, 1}, {std::numeric_limits<std::uint32_t>::max(), 1}}, 1));
  EXPECT_EQ(received.num_samples(), 3u);
}

}  // namespace
}  // namespace afd::runtime
