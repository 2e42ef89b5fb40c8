#include "model/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace afd::model {
namespace {

ModelConfig config_of(TopkMethod method, std::uint32_t experts, std::uint32_t top_k) {
  ModelConfig config;
  config.model_type = method == TopkMethod::kNoauxTc ? "deepseek_v3" : "deepseek_v2";
  config.topk_method = method;
  config.scoring_func =
      method == TopkMethod::kNoauxTc ? ScoringFunc::kSigmoid : ScoringFunc::kSoftmax;
  config.n_routed_experts = experts;
  config.num_experts_per_tok = top_k;
  return config;
}

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed route(const ModelConfig& config, const std::vector<float>& logits,
             const std::vector<float>& bias = {}) {
  std::vector<float> scratch(routing_scratch_floats(config));
  Routed routed;
  routed.ids.resize(config.num_experts_per_tok);
  routed.weights.resize(config.num_experts_per_tok);
  route_token(config, *kernels_for(InstructionSet::kBest), logits.data(),
              bias.empty() ? nullptr : bias.data(), scratch.data(), routed.ids.data(),
              routed.weights.data());
  return routed;
}

using Ids = std::vector<std::int32_t>;

TEST(RoutingTest, GreedyTakesTheBestWithTheirShareOfAll) {
  ModelConfig config = config_of(TopkMethod::kGreedy, 4, 2);
  config.routed_scaling_factor = 2.0;
  const float log2 = std::log(2.0f);
  const Routed routed = route(config, {0.0f, 2 * log2, log2, 0.0f});  // 1 : 4 : 2 : 1
  EXPECT_EQ(routed.ids, (Ids{1, 2}));
  EXPECT_NEAR(routed.weights[0], 2.0 * 4 / 8, 1e-6);
  EXPECT_NEAR(routed.weights[1], 2.0 * 2 / 8, 1e-6);
}

TEST(RoutingTest, OfEqualsTheLowerIndexWins) {
  EXPECT_EQ(route(config_of(TopkMethod::kGreedy, 5, 3), {1, 2, 2, 2, 1}).ids, (Ids{1, 2, 3}));
}

TEST(RoutingTest, TheSecondGenerationScalesOnlyWhatItDoesNotNormalise) {
  ModelConfig config = config_of(TopkMethod::kGreedy, 4, 2);
  config.norm_topk_prob = true;
  config.routed_scaling_factor = 16.0;
  const Routed routed = route(config, {0.0f, 1.0f, 1.0f, 0.0f});
  EXPECT_NEAR(routed.weights[0] + routed.weights[1], 1.0, 1e-6);
}

TEST(RoutingTest, GroupsArePickedByTheirBestExpert) {
  ModelConfig config = config_of(TopkMethod::kGroupLimitedGreedy, 6, 2);
  config.n_group = 3;
  config.topk_group = 1;
  // The two best experts are 0 and 2, but only the group of the best is open.
  EXPECT_EQ(route(config, {5, 1, 4, 3, 2, 2}).ids, (Ids{0, 1}));
}

TEST(RoutingTest, TheThirdGenerationPicksGroupsByTheirTwoBestAndChoosesWithTheBias) {
  ModelConfig config = config_of(TopkMethod::kNoauxTc, 6, 2);
  config.n_group = 2;
  config.topk_group = 1;
  config.norm_topk_prob = true;
  config.routed_scaling_factor = 2.5;
  // Group 0 has the best expert, group 1 the best two.
  const std::vector<float> logits = {2.0f, -9.0f, -9.0f, 1.0f, 1.0f, -9.0f};
  const Routed routed = route(config, logits, std::vector<float>(6, 0.0f));
  EXPECT_EQ(routed.ids, (Ids{3, 4}));
  EXPECT_NEAR(routed.weights[0], 2.5 * 0.5, 1e-6);
  // The bias moves the choice, not the weights.
  const Routed biased = route(config, logits, {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 1.0f});
  EXPECT_EQ(biased.ids[0], 5);
  EXPECT_LT(biased.weights[0], 0.01);
}

TEST(RoutingTest, AClosedGroupHasChoiceScoreZeroAndNotMinusInfinity) {
  ModelConfig config = config_of(TopkMethod::kNoauxTc, 4, 2);
  config.n_group = 2;
  config.topk_group = 1;
  config.norm_topk_prob = true;
  // The open group's second expert has a negative choice score, so a closed one comes before it.
  const Routed routed = route(config, {3.0f, -3.0f, 0.0f, 0.0f}, {2.0f, -0.5f, -0.4f, -0.4f});
  EXPECT_EQ(routed.ids, (Ids{0, 2}));
}

TEST(RoutingTest, IdsStayDistinctAndInRangeForAnyLogits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (TopkMethod method :
       {TopkMethod::kGreedy, TopkMethod::kGroupLimitedGreedy, TopkMethod::kNoauxTc}) {
    ModelConfig config = config_of(method, 8, 3);
    config.n_group = 4;
    config.topk_group = 2;
    for (const std::vector<float>& logits :
         {std::vector<float>(8, nan), std::vector<float>(8, inf), std::vector<float>(8, -inf),
          std::vector<float>{nan, 1, inf, -inf, 0, nan, inf, 2}}) {
      const Routed routed = route(config, logits, std::vector<float>(8, 0.0f));
      const std::set<std::int32_t> distinct(routed.ids.begin(), routed.ids.end());
      EXPECT_EQ(distinct.size(), 3u);
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), 8);
    }
  }
}

}  // namespace
}  // namespace afd::model
