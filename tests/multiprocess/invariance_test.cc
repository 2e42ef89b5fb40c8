// The logits' bits do not depend on how the work is cut: batch, chunks, stages, connector, gate.
#include <string>
#include <vector>

#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
const std::string kMoeVariant = std::string(AFD_MODELS) + "/variants/v3_groups_16";

class InvarianceTest : public ::testing::Test {
 protected:
  InvarianceTest() {
    std::string lines;
    for (int idx = 0; idx < 9; ++idx) {
      std::vector<int> ids;
      for (int position = 0; position < 3 + 17 * idx % 40; ++position) {
        ids.push_back((7 + 31 * idx + 13 * position) % 120);
      }
      lines += Json{{"prompt_ids", ids}, {"max_new_tokens", 6 + idx}}.dump() + "\n";
    }
    prompts_ = folder_.write("prompts.jsonl", lines);
  }

  Json run(const std::string& model, std::vector<std::string> args) const {
    args.insert(args.end(), {"--prompts", prompts_, "--logits-sha256"});
    return afd_run(model, args);
  }

  std::vector<std::string> hashes(const std::string& model, std::vector<std::string> args) const {
    return logits_hashes(run(model, std::move(args)));
  }

  TempFolder folder_;
  std::string prompts_;
};

using Arguments = std::vector<std::string>;

Arguments operator+(Arguments first, const Arguments& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

TEST_F(InvarianceTest, BatchMixes) {
  const std::vector<std::string> base = hashes(kModel, {"--colocated", "--threads", "1"});
  ASSERT_EQ(base.size(), 9u);
  EXPECT_NE(base[0], base[1]);
  const Arguments layout = {"--attention-ranks", "2", "--ffn-ranks", "1", "--stages", "2"};
  for (const Arguments& mix :
       {Arguments{"--max-num-seqs", "1"}, Arguments{"--max-num-seqs", "3"},
        Arguments{"--max-num-tokens", "1"}, Arguments{"--max-num-tokens", "5"},
        Arguments{"--max-num-tokens", "7", "--max-num-seqs", "2"}}) {
    EXPECT_EQ(hashes(kModel, mix + Arguments{"--colocated", "--threads", "2"}), base)
        << Json(mix).dump() << " colocated";
    EXPECT_EQ(hashes(kModel, mix + layout), base) << Json(mix).dump();
  }
}

TEST_F(InvarianceTest, ThreadsOfAColocatedRun) {
  const std::vector<std::string> base = hashes(kModel, {"--colocated", "--threads", "1"});
  ASSERT_EQ(base.size(), 9u);
  for (const char* threads : {"2", "3", "5"}) {
    EXPECT_EQ(hashes(kModel, {"--colocated", "--threads", threads}), base) << threads;
  }
}

TEST_F(InvarianceTest, Connectors) {
  const std::vector<std::string> base = hashes(kModel, {"--colocated"});
  ASSERT_EQ(base.size(), 9u);
  for (const char* connector : {"InProcessAFDConnector", "P2pAFDConnector", "P2pShmAFDConnector"}) {
    for (const char* stages : {"1", "8"}) {
      EXPECT_EQ(hashes(kModel, {"--connector", connector, "--attention-ranks", "3", "--ffn-ranks",
                                "2", "--stages", stages}),
                base)
          << connector << ", " << stages << " stages";
    }
  }
}

TEST_F(InvarianceTest, TheGateOnEitherSide) {
  for (const std::string& model : {kModel, kMoeVariant}) {
    const std::vector<std::string> base = hashes(model, {"--colocated"});
    ASSERT_EQ(base.size(), 9u);
    EXPECT_EQ(hashes(model, {"--colocated", "--gate-on-attention"}), base) << model;
    for (const Arguments& layout :
         {Arguments{"--attention-ranks", "1", "--ffn-ranks", "1"},
          Arguments{"--attention-ranks", "4", "--ffn-ranks", "2", "--stages", "2"},
          Arguments{"--attention-ranks", "1", "--ffn-ranks", "2", "--stages", "3"}}) {
      EXPECT_EQ(hashes(model, layout + Arguments{"--gate-on-attention"}), base)
          << model << " " << Json(layout).dump();
    }
  }
}

TEST_F(InvarianceTest, WhereRanksRun) {
  const std::vector<std::string> base = hashes(kModel, {"--colocated"});
  ASSERT_EQ(base.size(), 9u);
  EXPECT_EQ(hashes(kModel, {"--attention-ranks", "4", "--ffn-ranks", "2", "--stages", "2",
                            "--placement", "anywhere"}),
            base);
}

TEST_F(InvarianceTest, SampledTokensDependOnTheSeedAndNotOnTheLayout) {
  const auto tokens = [&](Arguments args) {
    std::vector<std::vector<int>> all;
    const Json report = run(kModel, args + Arguments{"--temperature", "1.1"});
    for (const Json& output : report.at("outputs")) {
      all.push_back(output.at("token_ids").get<std::vector<int>>());
    }
    return all;
  };
  const auto base = tokens({"--colocated", "--seed", "5"});
  EXPECT_EQ(tokens({"--seed", "5", "--attention-ranks", "4", "--ffn-ranks", "2", "--stages", "2"}),
            base);
  EXPECT_EQ(tokens({"--seed", "5", "--attention-ranks", "2", "--max-num-tokens", "4"}), base);
  EXPECT_NE(tokens({"--colocated", "--seed", "6"}), base);
}

}  // namespace
}  // namespace afd::testing
