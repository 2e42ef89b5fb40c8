#include "transport/mapped/copy_plan.h"

#include <gtest/gtest.h>

namespace afd::transport {
namespace {

using base::CopyKind;

constexpr std::uint64_t kLarge = 64 * 1024;

/// Makes `num` large copies that cost this much a KiB.
void copy(CopyChooser& chooser, int num, std::uint64_t memcpy_ticks, std::uint64_t stream_ticks) {
  for (int i = 0; i < num; ++i) {
    const CopyPlan plan = chooser.plan(kLarge);
    chooser.took(plan.kind, kLarge,
                 64 * (plan.kind == CopyKind::kMemcpy ? memcpy_ticks : stream_ticks));
  }
}

/// What it does most of the time.
CopyKind habit(CopyChooser& chooser) {
  return chooser.plan(4096).kind;
}

TEST(CopyChooserTest, StreamsWhereLinesComeSlowlyAndStopsWhenTheyComeFastAgain) {
  CopyChooser chooser;
  copy(chooser, 4, 100, 100);
  EXPECT_EQ(habit(chooser), CopyKind::kMemcpy);
  copy(chooser, 100, 300, 100);
  EXPECT_EQ(habit(chooser), CopyKind::kStreaming);
  copy(chooser, 200, 100, 100);
  EXPECT_EQ(habit(chooser), CopyKind::kMemcpy);
}

TEST(CopyChooserTest, LooksBothWaysNowAndThen) {
  CopyChooser chooser;
  int num_looks[2] = {};
  for (int i = 0; i < 128; ++i) {
    const CopyPlan plan = chooser.plan(kLarge);
    if (plan.look) {
      ++num_looks[plan.kind == CopyKind::kMemcpy ? 0 : 1];
    }
  }
  EXPECT_EQ(num_looks[0], 2);
  EXPECT_EQ(num_looks[1], 2);
}

TEST(CopyChooserTest, KnowsAfterTwoLargeTransfers) {
  CopyChooser chooser;
  copy(chooser, 2, 300, 100);
  EXPECT_EQ(chooser.plan(4096).kind, CopyKind::kStreaming);
}

TEST(CopyChooserTest, AnInterruptIsNoReasonToStream) {
  CopyChooser chooser;
  copy(chooser, 10, 100, 100);
  copy(chooser, 2, 100'000, 100);
  EXPECT_EQ(habit(chooser), CopyKind::kMemcpy);
}

TEST(CopyChooserTest, SmallTransfersAreNeverStreamed) {
  CopyChooser chooser;
  copy(chooser, 10, 1000, 100);
  EXPECT_EQ(chooser.plan(2048).kind, CopyKind::kMemcpy);
  EXPECT_EQ(chooser.plan(2049).kind, CopyKind::kStreaming);
}

TEST(CopyPieceTest, IsAMultipleOfALineAndGrowsWithTheSize) {
  std::uint64_t last = 0;
  for (std::uint64_t size = 1; size < std::uint64_t{1} << 32; size *= 2) {
    EXPECT_EQ(copy_piece_bytes(size) % 64, 0U);
    EXPECT_GE(copy_piece_bytes(size), last);
    last = copy_piece_bytes(size);
  }
  EXPECT_EQ(last, 64U * 1024);
}

}  // namespace
}  // namespace afd::transport
