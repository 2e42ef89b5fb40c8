#include "runtime/sampler.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

TEST(SamplerTest, GreedyTakesTheLowestIdAmongEqualLogits) {
  const std::vector<float> logits = {-1.0f, 2.0f, 0.5f, 2.0f};
  EXPECT_EQ(*choose_token(logits, {}, {}), 1);
}

TEST(SamplerTest, NamesTheRequestWhoseLogitsAreNotNumbers) {
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> logits = {0.0f, odd};
    const Result<std::int32_t> token = choose_token(logits, {}, {.request_idx = 7, .position = 12});
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(token.error().message, "request 7, position 12: the logits are not finite");
  }
  const float low = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(*choose_token(std::vector<float>{low, 1.0f}, {.temperature = 1.0}, {}), 1);
}

// The known answers of the authors' library Random123.
TEST(SamplerTest, PhiloxGivesThePublishedNumbers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplerTest, DrawsWithTheSoftmaxsProbabilities) {
  // Weights 1 : 2 : 5 at temperature 0.5.
  const std::vector<float> logits = {0.0f, 0.5f * std::log(2.0f), 0.5f * std::log(5.0f)};
  std::vector<int> hits(3, 0);
  constexpr int kDraws = 20000;
  for (std::uint32_t position = 0; position < kDraws; ++position) {
    const auto token = choose_token(logits, {.temperature = 0.5, .seed = 11},
                                    {.request_idx = 3, .position = position});
    ASSERT_TRUE(token);
    ++hits[static_cast<std::size_t>(*token)];
  }
  // Five standard deviations.
  EXPECT_NEAR(hits[0], kDraws / 8.0, 5 * std::sqrt(kDraws * 0.125 * 0.875));
  EXPECT_NEAR(hits[1], kDraws / 4.0, 5 * std::sqrt(kDraws * 0.25 * 0.75));
}

TEST(SamplerTest, AVerySmallTemperatureIsGreedy) {
  const std::vector<float> logits = {0.0f, 1.0f, 0.9f};
  EXPECT_EQ(*choose_token(logits, {.temperature = 1e-300, .seed = 5}, {}), 1);
}

TEST(SamplerTest, SeedRequestAndPositionEachChangeTheNumber) {
  const double base = uniform(1, {.request_idx = 1, .position = 1});
  EXPECT_NE(base, uniform(2, {.request_idx = 1, .position = 1}));
  EXPECT_NE(base, uniform(1, {.request_idx = 2, .position = 1}));
  EXPECT_NE(base, uniform(1, {.request_idx = 1, .position = 2}));
  EXPECT_NE(base, uniform(1 + (std::uint64_t{1} << 32), {.request_idx = 1, .position = 1}));
  EXPECT_EQ(base, uniform(1, {.request_idx = 1, .position = 1}));
}

}  // namespace
}  // namespace afd::runtime
