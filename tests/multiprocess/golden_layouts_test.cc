// Every checkpoint in models/, in every layout and with 1 to 3 stages: the golden tokens, and the
// logits of the colocated run bit by bit.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

struct Layout {
  int num_attention_ranks;
  int num_ffn_ranks;
};

constexpr Layout kLayouts[] = {{1, 1}, {2, 1}, {4, 2}, {3, 2}, {1, 2}};

std::vector<std::string> checkpoints() {
  std::vector<std::string> names = {"austen-moe"};
  for (const auto& entry : std::filesystem::directory_iterator(AFD_MODELS "/variants")) {
    names.push_back("variants/" + entry.path().filename().string());
  }
  std::sort(names.begin() + 1, names.end());
  return names;
}

class GoldenLayoutsTest : public ::testing::TestWithParam<std::string> {
 protected:
  GoldenLayoutsTest() : model_(std::string(AFD_MODELS) + "/" + GetParam()) {
    std::ifstream(model_ + "/golden.json") >> golden_;
    std::string lines;
    for (const Json& golden_case : golden_.at("cases")) {
      lines += Json{{"prompt_ids", golden_case.at("prompt_ids")},
                    {"max_new_tokens", max_new_tokens(golden_case)}}
                   .dump() +
               "\n";
    }
    prompts_ = folder_.write("prompts.jsonl", lines);
  }

  int end_token() const {
    std::ifstream file(model_ + "/config.json");
    return Json::parse(file).at("eos_token_id").get<int>();
  }
  bool ends_by_itself(const Json& golden_case) const {
    return golden_case.at("greedy_ids").back() == end_token();
  }

  /// The golden tokens, number and end; another choice only where the golden file has a near-tie,
  /// and then an end that fits the tokens.
  void expect_golden_tokens(const Json& report, const std::string& layout) const {
    const Json& cases = golden_.at("cases");
    ASSERT_TRUE(report.is_object()) << layout;
    ASSERT_EQ(report.at("outputs").size(), cases.size()) << layout;
    for (std::size_t idx = 0; idx < cases.size(); ++idx) {
      SCOPED_TRACE(layout + ", prompt " + std::to_string(idx));
      const Json& output = report.at("outputs")[idx];
      const auto wanted = cases[idx].at("greedy_ids").get<std::vector<int>>();
      const auto found = output.at("token_ids").get<std::vector<int>>();
      ASSERT_FALSE(found.empty());
      std::string finish_reason = ends_by_itself(cases[idx]) ? "stop" : "length";
      if (found != wanted) {
        const auto near_ties = cases[idx].at("near_ties").get<std::vector<std::size_t>>();
        const auto position = static_cast<std::size_t>(
            std::mismatch(found.begin(), found.end(), wanted.begin(), wanted.end()).first -
            found.begin());
        ASSERT_TRUE(std::ranges::count(near_ties, position) == 1)
            << "position " << position << " of " << Json(found) << ", expected " << Json(wanted);
        finish_reason = found.back() == end_token() ? "stop" : "length";
        EXPECT_TRUE(finish_reason == "stop" || found.size() == max_new_tokens(cases[idx]))
            << found.size() << " tokens";
      }
      EXPECT_EQ(output.at("finish_reason"), finish_reason);
    }
  }

  /// One more than there are where the end token ends them: it has to stop by itself.
  std::size_t max_new_tokens(const Json& golden_case) const {
    return golden_case.at("greedy_ids").size() + (ends_by_itself(golden_case) ? 1 : 0);
  }

  Json run(std::vector<std::string> args) const {
    args.insert(args.end(), {"--prompts", prompts_, "--logits-sha256"});
    return afd_run(model_, args);
  }

  const std::string model_;
  Json golden_;
  TempFolder folder_;
  std::string prompts_;
};

TEST(CheckpointsTest, NoneIsLeftOut) {
  EXPECT_EQ(checkpoints().size(), 14u);
}

TEST_P(GoldenLayoutsTest, TokensAreGoldenAndLogitsHaveTheSameBitsInEveryLayout) {
  const Json colocated = run({"--colocated", "--threads", "2"});
  expect_golden_tokens(colocated, "colocated");
  const std::vector<std::string> hashes = logits_hashes(colocated);
  for (const Layout& layout : kLayouts) {
    for (const char* stages : {"1", "2", "3"}) {
      const std::string name = std::to_string(layout.num_attention_ranks) + "A" +
                               std::to_string(layout.num_ffn_ranks) + "F, " + stages + " stages";
      const Json report =
          run({"--attention-ranks", std::to_string(layout.num_attention_ranks), "--ffn-ranks",
               std::to_string(layout.num_ffn_ranks), "--stages", stages});
      expect_golden_tokens(report, name);
      EXPECT_EQ(logits_hashes(report), hashes) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, GoldenLayoutsTest, ::testing::ValuesIn(checkpoints()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace afd::testing
