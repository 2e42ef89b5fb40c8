#include "transport/mapped/window_layout.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::transport {
namespace {

TEST(WindowLayoutTest, AWindowWithoutAChannelIsOnePage) {
  const Result<WindowLayout> layout = layout_window(nullptr);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->window_bytes, kPageBytes);
}

TEST(WindowLayoutTest, NothingOverlapsAndLandingMemoryStartsOnPages) {
  ChannelGeometry geometry;
  geometry.num_peers = 3;
  geometry.num_stages = 2;
  geometry.a2f_bytes = {10'000, 77, 0, 4096};
  geometry.f2a_bytes = {64, 1, 0, 0};
  geometry.control_slots = 5;
  geometry.control_bytes_max = 100;
  const Result<WindowLayout> layout = layout_window(&geometry);
  ASSERT_TRUE(layout);

  std::vector<std::pair<std::uint64_t, std::uint64_t>> regions = {
      {0, sizeof(WindowHeader)},
      {WindowLayout::kDoorbellOffset, sizeof(Doorbell)},
      {layout->signals, 2 * 2 * 3 * sizeof(SignalLine)},
      {layout->control_ring, sizeof(ControlRing)},
      {layout->control_slots, 5 * layout->control_slot_bytes}};
  for (std::size_t direction = 0; direction < 2; ++direction) {
    const auto& bytes = direction == 0 ? geometry.a2f_bytes : geometry.f2a_bytes;
    for (std::size_t stage = 0; stage < 2; ++stage) {
      for (std::size_t part = 0; part < kPartsMax; ++part) {
        const std::uint64_t start =
            layout->landing[direction][part] + stage * layout->stage_bytes[direction];
        EXPECT_EQ(start % kPageBytes, 0U);
        regions.emplace_back(start, bytes[part]);
      }
    }
  }
  std::sort(regions.begin(), regions.end());
  for (std::size_t i = 1; i < regions.size(); ++i) {
    EXPECT_GE(regions[i].first, regions[i - 1].first + regions[i - 1].second) << i;
  }
  EXPECT_LE(regions.back().first + regions.back().second, layout->window_bytes);
  EXPECT_EQ(layout->window_bytes % kPageBytes, 0U);
  EXPECT_GE(layout->control_slot_bytes, 8U + 100U);
}

TEST(WindowLayoutTest, RefusesWhatCannotBe) {
  const auto error_of = [](auto change) {
    ChannelGeometry geometry;
    geometry.a2f_bytes[0] = 1024;
    geometry.control_bytes_max = 64;
    change(geometry);
    const Result<WindowLayout> layout = layout_window(&geometry);
    EXPECT_FALSE(layout);
    EXPECT_EQ(layout.error().code, ErrorCode::kInvalidArgument);
    return layout.error().message;
  };
  EXPECT_EQ(error_of([](ChannelGeometry& g) { g.num_peers = 0; }),
            "num_peers is 0, expected 1 to 65536");
  EXPECT_EQ(error_of([](ChannelGeometry& g) { g.num_stages = 70'000; }),
            "num_stages is 70000, expected 1 to 65536");
  EXPECT_EQ(error_of([](ChannelGeometry& g) { g.control_slots = 0; }),
            "control_slots is 0, expected 1 to 65536");
  EXPECT_THAT(error_of([](ChannelGeometry& g) { g.f2a_bytes[3] = ~std::uint64_t{0}; }),
              ::testing::HasSubstr("is beyond what fits"));
  EXPECT_THAT(error_of([](ChannelGeometry& g) { g.control_bytes_max = ~std::uint64_t{0}; }),
              ::testing::HasSubstr("control_bytes_max is 18446744073709551615"));
  EXPECT_THAT(error_of([](ChannelGeometry& g) {
                g.num_stages = 65'536;
                g.num_peers = 65'536;
                g.control_slots = 65'536;
                g.control_bytes_max = std::uint64_t{1} << 30;
              }),
              ::testing::HasSubstr("is beyond what fits"));
}

}  // namespace
}  // namespace afd::transport
