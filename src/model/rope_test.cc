#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace afd::model {
namespace {

ModelConfig config_of(std::uint32_t rope_dim, std::uint32_t num_positions) {
  ModelConfig config;
  config.qk_nope_head_dim = 32;
  config.qk_rope_head_dim = rope_dim;
  config.max_position_embeddings = num_positions;
  return config;
}

TEST(RopeTest, AnglesGrowWithThePositionAndShrinkWithThePair) {
  const Rope rope(config_of(16, 4000));
  ASSERT_EQ(rope.num_pairs(), 8u);
  std::vector<float> cosines(8);
  std::vector<float> sines(8);
  for (std::uint32_t position : {0u, 1u, 255u, 256u, 257u, 1000u, 3999u}) {
    rope.angles(position, cosines.data(), sines.data());
    for (std::size_t pair = 0; pair < 8; ++pair) {
      const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(pair) / 16.0);
      EXPECT_NEAR(cosines[pair], std::cos(angle), 1e-7) << position << ", " << pair;
      EXPECT_NEAR(sines[pair], std::sin(angle), 1e-7) << position << ", " << pair;
    }
  }
}

TEST(RopeTest, RotatesInterleavedPairs) {
  const float cosines[] = {0.0f, 1.0f};
  const float sines[] = {1.0f, 0.0f};
  float x[] = {1.0f, 2.0f, 3.0f, 4.0f};
  rotate_pairs(cosines, sines, 2, x);
  EXPECT_EQ(x[0], -2.0f);
  EXPECT_EQ(x[1], 1.0f);
  EXPECT_EQ(x[2], 3.0f);
  EXPECT_EQ(x[3], 4.0f);
}

TEST(RopeTest, YarnSlowsTheSlowPairsAndKeepsTheFastOnes) {
  ModelConfig config = config_of(16, 4000);
  config.yarn = YarnScaling{.factor = 40.0,
                            .mscale = 1.0,
                            .mscale_all_dim = 1.0,
                            .original_max_position_embeddings = 4000};
  const Rope plain(config_of(16, 4000));
  const Rope yarn(config);
  std::vector<float> cosines(8);
  std::vector<float> sines(8);
  std::vector<float> yarn_cosines(8);
  std::vector<float> yarn_sines(8);
  plain.angles(1, cosines.data(), sines.data());
  yarn.angles(1, yarn_cosines.data(), yarn_sines.data());
  EXPECT_EQ(yarn_sines[0], sines[0]);
  EXPECT_NEAR(yarn_sines[7], sines[7] / 40.0, 1e-9);
}

TEST(RopeTest, TheSoftmaxScaleHasYarnsShareSquared) {
  ModelConfig config = config_of(16, 4000);
  EXPECT_FLOAT_EQ(attention_softmax_scale(config), 1.0f / std::sqrt(48.0f));
  config.yarn = YarnScaling{.factor = 40.0, .mscale_all_dim = 0.5};
  const double mscale = 0.1 * 0.5 * std::log(40.0) + 1.0;
  EXPECT_FLOAT_EQ(attention_softmax_scale(config),
                  static_cast<float>(mscale * mscale / std::sqrt(48.0)));
}

}  // namespace
}  // namespace afd::model
