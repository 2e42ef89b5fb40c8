// The built `afd` over several hosts: one `afd rank` each, rows over UCX between hosts and through
// shared memory on one.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "afd_run.h"
#include "tests/support/network.h"
#include "tests/support/program.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr seconds kRunLimit{120};
/// The default heartbeat limit, and what a busy machine may add.
constexpr seconds kLossLimit{5 + 3};

struct Place {
  std::string role;
  int role_rank;
  std::uint32_t host;
};

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    network_ = Network::create(3, &why_not, {.private_shared_memory = true});
    if (!network_) {
      GTEST_SKIP() << why_not;
    }
    secret_ = folder_.write("secret", "what the ranks of this test share\n");
    ASSERT_EQ(::chmod(secret_.c_str(), 0600), 0);
  }

  /// FFN rank 0 has to be on host 0.
  std::vector<std::unique_ptr<Program>> start(const std::vector<Place>& places,
                                              const std::vector<std::string>& more) const {
    std::map<std::string, int> counts;
    for (const Place& place : places) {
      ++counts[place.role];
    }
    std::vector<std::unique_ptr<Program>> ranks;
    for (const Place& place : places) {
      std::vector<std::string> args = {AFD_BINARY,
                                       "rank",
                                       "--json",
                                       "--model",
                                       kModel,
                                       "--host",
                                       network_->address(0),
                                       "--secret-file",
                                       secret_,
                                       "--attention-ranks",
                                       std::to_string(counts["attention"]),
                                       "--ffn-ranks",
                                       std::to_string(counts["ffn"]),
                                       "--role",
                                       place.role,
                                       "--role-rank",
                                       std::to_string(place.role_rank)};
      args.insert(args.end(), more.begin(), more.end());
      ranks.push_back(std::make_unique<Program>(network_->command(place.host, args)));
    }
    return ranks;
  }

  /// Work for minutes.
  std::vector<std::string> endless() const {
    std::string prompts;
    for (int i = 0; i < 4000; ++i) {
      prompts += R"({"prompt_ids": [)" + std::to_string(1 + i % 1000) +
                 R"(, 7, 9], "max_new_tokens": 400})" + "\n";
    }
    return {"--prompts", folder_.write("endless.jsonl", prompts), "--max-num-seqs", "4"};
  }

  std::unique_ptr<Network> network_;
  TempFolder folder_;
  std::string secret_;
};

TEST_F(HostsTest, TheLogitsAreThoseOfOneProcess) {
  const std::string prompts = folder_.write("prompts.jsonl",
                                            "{\"prompt\": \"Emma was\"}\n"
                                            "{\"prompt\": \"It is a truth\"}\n"
                                            "{\"prompt\": \"The carriage\"}\n"
                                            "{\"prompt\": \"Anne\"}\n"
                                            "{\"prompt\": \"No one\"}\n");
  const std::vector<std::string> work = {"--prompts", prompts, "--max-new-tokens", "6",
                                         "--logits-sha256"};
  std::vector<std::string> colocated = work;
  colocated.push_back("--colocated");
  const std::vector<std::string> expected = logits_hashes(afd_run(kModel, colocated));
  ASSERT_EQ(expected.size(), 5u);

  const std::vector<std::vector<Place>> layouts = {
      {{"ffn", 0, 0}, {"attention", 0, 1}, {"attention", 1, 2}},
      {{"ffn", 0, 0}, {"attention", 0, 0}, {"attention", 1, 0}},
      // Near and far peers, and one that steers an FFN rank which is no data peer of its own.
      {{"ffn", 0, 0},
       {"ffn", 1, 1},
       {"attention", 0, 0},
       {"attention", 1, 2},
       {"attention", 2, 1},
       {"attention", 3, 2}}};
  for (const std::string connector : {"P2pAFDConnector", "P2pUcxAFDConnector"}) {
    for (const std::vector<Place>& layout : layouts) {
      SCOPED_TRACE(connector + ", " + std::to_string(layout.size()) + " ranks");
      std::vector<std::string> more = work;
      more.insert(more.end(), {"--stages", "2", "--connector", connector});
      const auto ranks = start(layout, more);
      std::map<std::size_t, std::string> hashes;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const Ended ended = ranks[i]->wait(kRunLimit);
        ASSERT_EQ(ended.exit_code, 0) << layout[i].role << layout[i].role_rank << describe(ended);
        const Json report = Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
        ASSERT_TRUE(report.is_object()) << describe(ended);
        for (const Json& output : report.at("outputs")) {
          hashes[output.at("prompt_idx")] = output.at("logits_sha256");
        }
        for (const Json& path : report.at("stats").value("paths", Json::array())) {
          const auto host_of = [&](const char* role, const char* key) {
            return std::ranges::find_if(layout,
                                        [&](const Place& place) {
                                          return place.role == role &&
                                                 place.role_rank == path.at(key);
                                        })
                ->host;
          };
          const bool near = host_of("attention", "attention_rank") == host_of("ffn", "ffn_rank");
          EXPECT_THAT(
              path.at("path").get<std::string>(),
              HasSubstr(near && connector == "P2pAFDConnector" ? "shared memory" : "UCX tcp/"))
              << path.dump();
        }
      }
      ASSERT_EQ(hashes.size(), expected.size());
      for (std::size_t idx = 0; idx < expected.size(); ++idx) {
        EXPECT_EQ(hashes[idx], expected[idx]) << "prompt " << idx;
      }
    }
  }
}

TEST_F(HostsTest, AHostThatIsCutOffIsNamedOnBothSides) {
  for (const Network::Cut cut : {Network::Cut::kLinkDown, Network::Cut::kBlackHole}) {
    const auto ranks = start({{"ffn", 0, 0}, {"attention", 0, 1}}, endless());
    for (const auto& rank : ranks) {
      ASSERT_TRUE(rank->await_stderr("all ranks are there", seconds(30)));
    }
    std::this_thread::sleep_for(milliseconds(300));
    network_->cut(1, cut);
    const Ended ffn = ranks[0]->wait(kLossLimit);
    const Ended attention = ranks[1]->wait(kLossLimit);
    for (const Ended* ended : {&ffn, &attention}) {
      EXPECT_FALSE(ended->timed_out) << describe(*ended);
      EXPECT_EQ(ended->exit_code, 1) << describe(*ended);
    }
    EXPECT_THAT(ffn.err, HasSubstr("attention rank 0")) << describe(ffn);
    EXPECT_THAT(ffn.err, HasSubstr("lost")) << describe(ffn);
    EXPECT_THAT(attention.err, HasSubstr("ffn rank 0")) << describe(attention);
    EXPECT_THAT(attention.err, HasSubstr("lost")) << describe(attention);
    network_->mend(1);
  }
}

TEST_F(HostsTest, AKilledRankIsNamedByTheOthers) {
  const auto ranks = start({{"ffn", 0, 0}, {"attention", 0, 1}, {"attention", 1, 2}}, endless());
  for (const auto& rank : ranks) {
    ASSERT_TRUE(rank->await_stderr("all ranks are there", seconds(30)));
  }
  ranks[1]->signal(SIGKILL);
  for (const std::size_t other : {0, 2}) {
    const Ended ended = ranks[other]->wait(seconds(5));
    EXPECT_EQ(ended.exit_code, 1) << describe(ended);
    EXPECT_THAT(ended.err, HasSubstr("attention rank 0")) << describe(ended);
  }
}

}  // namespace
}  // namespace afd::testing
