// Every golden output of models/: the 20 best logits after each prompt, greedy tokens, and per
// layer what the residual stream and the routing look like.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "model/json_file.h"
#include "model/model.h"
#include "model/model_testing.h"

namespace afd::model {
namespace {

using Json = nlohmann::json;

std::vector<std::string> models() {
  std::vector<std::string> directories = {std::string(AFD_MODELS) + "/austen-moe"};
  for (const auto& entry : std::filesystem::directory_iterator(AFD_MODELS "/variants")) {
    directories.push_back(entry.path().string());
  }
  std::sort(directories.begin(), directories.end());
  return directories;
}

std::string name_of(const std::string& directory) {
  std::string name = std::filesystem::path(directory).filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class ModelGolden : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Result<TestModel> loaded = TestModel::load(GetParam());
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_.emplace(*std::move(loaded));
    const Result<std::string> text = read_text_file(GetParam() + "/golden.json", 1u << 24);
    ASSERT_TRUE(text) << text.error().message;
    cases_ = Json::parse(*text)["cases"];
    ASSERT_FALSE(cases_.empty());
  }

  std::optional<TestModel> model_;
  Json cases_;
};

TEST(ModelsTest, NoneIsLeftOut) {
  EXPECT_EQ(models().size(), 14u);
}

TEST_P(ModelGolden, TheBestLogitsAfterThePromptAreTheReferences) {
  for (const Json& golden : cases_) {
    const auto prompt = golden["prompt_ids"].get<std::vector<std::int32_t>>();
    SCOPED_TRACE("prompt of " + std::to_string(prompt.size()) + " ids");
    TestSequence sequence(*model_, prompt.size());
    const std::vector<float> logits = sequence.forward(prompt);

    const auto [min, max] = std::minmax_element(logits.begin(), logits.end());
    const double spread = golden["logits_spread"].get<double>();
    EXPECT_NEAR(*max - *min, spread, 1e-4 * spread);
    const auto ids = golden["top_ids"].get<std::vector<std::size_t>>();
    const auto wanted = golden["top_logits_fp32"].get<std::vector<double>>();
    ASSERT_EQ(ids.size(), 20u);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ASSERT_LT(ids[i], logits.size());
      EXPECT_NEAR(logits[ids[i]], wanted[i], 1e-4 * spread) << "id " << ids[i];
    }
  }
}

TEST_P(ModelGolden, GreedyTokensAreTheReferences) {
  for (const Json& golden : cases_) {
    const auto prompt = golden["prompt_ids"].get<std::vector<std::int32_t>>();
    SCOPED_TRACE("prompt of " + std::to_string(prompt.size()) + " ids");
    const auto wanted = golden["greedy_ids"].get<std::vector<std::int32_t>>();
    const std::vector<std::int32_t> ids = greedy(*model_, prompt, wanted.size());
    const auto near_ties = golden["near_ties"].get<std::vector<std::size_t>>();
    const auto first = static_cast<std::size_t>(
        std::mismatch(ids.begin(), ids.end(), wanted.begin(), wanted.end()).first - ids.begin());
    if (std::ranges::count(near_ties, first) != 0) {
      continue;  // from a near tie on, another choice is not an error
    }
    EXPECT_EQ(ids, wanted);
  }
}

void expect_near_relative(double found, double wanted, const char* what, std::uint32_t layer_idx) {
  EXPECT_NEAR(found, wanted, 1e-5 * std::max(1.0, std::abs(wanted)))
      << what << " of layer " << layer_idx;
}

TEST_P(ModelGolden, EveryLayerLooksAsInTheReferencesTrace) {
  std::size_t traces = 0;
  for (const Json& golden : cases_) {
    if (!golden.contains("trace_fp32")) {
      continue;
    }
    ++traces;
    const auto prompt = golden["prompt_ids"].get<std::vector<std::int32_t>>();
    const Json& trace = golden["trace_fp32"];
    const ModelConfig& config = model_->config();
    ASSERT_EQ(trace.size(), config.num_hidden_layers);

    const std::size_t top_k = config.num_experts_per_tok;
    std::vector<std::int32_t> topk_ids(prompt.size() * top_k);
    std::vector<float> topk_weights(prompt.size() * top_k);
    TestSequence sequence(*model_, prompt.size());
    sequence.on_layer = [&](std::uint32_t layer_idx, bool after_ffn,
                            std::span<const float> residual, std::span<const float> hidden) {
      double sum = 0.0;
      double squares = 0.0;
      for (float value : residual) {
        sum += value;
        squares += static_cast<double>(value) * value;
      }
      const Json& layer = trace[layer_idx];
      const std::string when = after_ffn ? "after_ffn" : "after_attention";
      expect_near_relative(sum / static_cast<double>(residual.size()), layer[when + "_mean"],
                           "mean", layer_idx);
      expect_near_relative(std::sqrt(squares), layer[when + "_l2"], "norm", layer_idx);
      ASSERT_EQ(layer.contains("topk_ids"), config.is_moe_layer(layer_idx));
      if (after_ffn || !config.is_moe_layer(layer_idx)) {
        return;
      }
      Scratch scratch;
      model_->ffn->route(layer_idx, hidden.data(), prompt.size(), nullptr, topk_ids.data(),
                         topk_weights.data(), scratch);
      for (std::size_t row = 0; row < prompt.size(); ++row) {
        for (std::size_t rank = 0; rank < top_k; ++rank) {
          EXPECT_EQ(topk_ids[row * top_k + rank], layer["topk_ids"][row][rank])
              << "layer " << layer_idx << ", row " << row << ", rank " << rank;
          EXPECT_NEAR(topk_weights[row * top_k + rank],
                      layer["topk_weights"][row][rank].get<double>(),
                      1e-5 * std::max(1.0, config.routed_scaling_factor))
              << "layer " << layer_idx << ", row " << row << ", rank " << rank;
        }
      }
    };
    sequence.forward(prompt);
  }
  EXPECT_EQ(traces, 1u);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelGolden, ::testing::ValuesIn(models()),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace afd::model
