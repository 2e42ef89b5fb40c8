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

#include "hosts_job.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr seconds kRunLimit{120};
/// What a busy machine may add to the heartbeat limit.
constexpr seconds kLate{2};

class HostsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    network_ = Network::create(3, &why_not, {.private_shared_memory = true});
    if (!network_) {
      GTEST_SKIP() << why_not;
    }
    job_ = std::make_unique<HostsJob>(*network_, kModel);
  }

  /// Five prompts of some tokens, and what a colocated run makes of them.
  void short_work() {
    const std::string prompts = job_->folder().write("prompts.jsonl",
                                                     "{\"prompt\": \"Emma was\"}\n"
                                                     "{\"prompt\": \"It is a truth\"}\n"
                                                     "{\"prompt\": \"The carriage\"}\n"
                                                     "{\"prompt\": \"Anne\"}\n"
                                                     "{\"prompt\": \"No one\"}\n");
    work_ = {"--prompts", prompts, "--max-new-tokens", "6", "--logits-sha256"};
    std::vector<std::string> colocated = work_;
    colocated.push_back("--colocated");
    expected_ = logits_hashes(afd_run(kModel, colocated));
    ASSERT_EQ(expected_.size(), 5u);
  }

  /// Work for minutes.
  std::vector<std::string> endless(const std::vector<std::string>& more = {}) const {
    std::string prompts;
    for (int i = 0; i < 4000; ++i) {
      prompts += R"({"prompt_ids": [)" + std::to_string(1 + i % 1000) +
                 R"(, 7, 9], "max_new_tokens": 400})" + "\n";
    }
    std::vector<std::string> args = {"--prompts", job_->folder().write("endless.jsonl", prompts),
                                     "--max-num-seqs", "4"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  /// A rank that does not belong is refused and ends; the others wait on, and the right one, which
  /// then takes its place, finds them.
  void expect_refused(const RankPlace& stranger, const std::vector<std::string>& flags,
                      const std::string& why, const std::string& said_by_rank_zero) {
    std::vector<std::string> args = work_;
    args.insert(args.end(), flags.begin(), flags.end());
    const auto program = job_->start_one(stranger, args);
    const Ended refused = program->wait(seconds(20));
    SCOPED_TRACE(describe(refused));
    EXPECT_EQ(refused.exit_code, 5);
    EXPECT_THAT(refused.err, HasSubstr(why));
    EXPECT_EQ(refused.out, "");
    EXPECT_TRUE(job_->program(0).await_stderr(said_by_rank_zero, seconds(5)))
        << "FFN rank 0 does not say " << said_by_rank_zero;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_FALSE(job_->program(i).has_ended()) << job_->places()[i].name();
    }
  }

  std::unique_ptr<Network> network_;
  std::unique_ptr<HostsJob> job_;
  std::vector<std::string> work_;
  std::vector<std::string> expected_;
};

TEST_F(HostsTest, TheLogitsAreThoseOfOneProcess) {
  ASSERT_NO_FATAL_FAILURE(short_work());
  const std::vector<std::vector<RankPlace>> layouts = {
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
    for (const std::vector<RankPlace>& layout : layouts) {
      SCOPED_TRACE(connector + ", " + std::to_string(layout.size()) + " ranks");
      std::vector<std::string> more = work_;
      more.insert(more.end(), {"--stages", "2", "--connector", connector});
      job_->start(layout, more);
      EXPECT_EQ(job_->await_hashes(kRunLimit), expected_);
      ASSERT_FALSE(HasFailure());
      for (std::size_t i = 0; i < layout.size(); ++i) {
        const Json report = Json::parse(job_->ended(i).out);
        for (const Json& path : report.at("stats").value("paths", Json::array())) {
          const auto host_of = [&](const char* role, const char* key) {
            return std::ranges::find_if(layout,
                                        [&](const RankPlace& place) {
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
    }
  }
}

TEST_F(HostsTest, ARankThatDoesNotBelongIsRefusedAndTheOthersWaitOn) {
  ASSERT_NO_FATAL_FAILURE(short_work());
  const RankPlace last{"attention", 1, 2};
  // The last one comes late.
  job_->start({{"ffn", 0, 0}, {"attention", 0, 1}, last}, work_, /*num_started=*/2);
  ASSERT_TRUE(job_->program(1).await_stderr("waiting for attention rank 1", seconds(20)));

  const std::string other_secret = job_->write_secret("other", "what another job's ranks share\n");
  const std::string at_rank_zero = " ffn rank 0's at " + network_->address(0) + ":1239";
  expect_refused(last, {"--secret-file", other_secret},
                 "the shared secret in " + other_secret + " differs from" + at_rank_zero,
                 "its secret differs");
  const std::string differs = "hidden_size differs: attention rank 1 has 64, ffn rank 0 has 256";
  expect_refused(last,
                 {"--model", std::string(AFD_MODELS) + "/variants/v3", "--prompts",
                  job_->folder().write("ids.jsonl", "{\"prompt_ids\": [1]}\n")},
                 differs, differs);
  expect_refused({"attention", 0, 2}, {}, "attention rank 0 is already present", "");

  job_->replace(2, job_->start_one(last, work_));
  EXPECT_EQ(job_->await_hashes(kRunLimit), expected_);
}

TEST_F(HostsTest, AHostThatIsCutOffIsNamedByAll) {
  struct Case {
    std::string connector;
    std::vector<RankPlace> layout;
    Network::Cut cut;
    int limit_s;
  };
  const std::vector<RankPlace> two = {{"ffn", 0, 0}, {"attention", 0, 1}};
  const std::vector<RankPlace> fan_in = {{"ffn", 0, 0}, {"attention", 0, 1}, {"attention", 1, 2}};
  const std::vector<RankPlace> fan_out = {{"ffn", 0, 0}, {"ffn", 1, 2}, {"attention", 0, 1}};
  for (const Case& of : {Case{"P2pAFDConnector", fan_in, Network::Cut::kLinkDown, 5},
                         Case{"P2pAFDConnector", fan_in, Network::Cut::kBlackHole, 3},
                         Case{"P2pAFDConnector", fan_out, Network::Cut::kLinkDown, 3},
                         Case{"P2pUcxAFDConnector", fan_in, Network::Cut::kLinkDown, 3},
                         Case{"P2pUcxAFDConnector", fan_out, Network::Cut::kBlackHole, 3},
                         Case{"P2pUcxAFDConnector", two, Network::Cut::kBlackHole, 5}}) {
    SCOPED_TRACE(of.connector + ", " + std::to_string(of.layout.size()) + " ranks, cut " +
                 std::to_string(static_cast<int>(of.cut)));
    job_->start(of.layout, endless({"--connector", of.connector, "--heartbeat-limit",
                                    std::to_string(of.limit_s)}));
    ASSERT_TRUE(job_->await_meeting());
    std::this_thread::sleep_for(milliseconds(300));
    network_->cut(1, of.cut);  // where attention rank 0 is
    const auto cut_at = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < of.layout.size(); ++i) {
      const Ended ended = job_->program(i).wait(seconds(of.limit_s) + kLate);
      const auto took = std::chrono::steady_clock::now() - cut_at;
      SCOPED_TRACE(of.layout[i].name() + ": " + describe(ended));
      EXPECT_FALSE(ended.timed_out);
      EXPECT_LT(took, seconds(of.limit_s) + kLate);
      EXPECT_EQ(ended.exit_code, 3);
      EXPECT_THAT(ended.err, HasSubstr(of.layout[i].host == 1 ? "ffn rank" : "attention rank 0"));
      EXPECT_THAT(ended.err, HasSubstr("lost"));
    }
    network_->mend(1);
  }
}

TEST_F(HostsTest, AKilledRankIsNamedByTheOthers) {
  job_->start({{"ffn", 0, 0}, {"attention", 0, 1}, {"attention", 1, 2}}, endless());
  ASSERT_TRUE(job_->await_meeting());
  job_->program(1).signal(SIGKILL);
  for (const std::size_t other : {0, 2}) {
    const Ended ended = job_->program(other).wait(seconds(5));
    EXPECT_EQ(ended.exit_code, 3) << describe(ended);
    EXPECT_THAT(ended.err, HasSubstr("attention rank 0")) << describe(ended);
  }
}

}  // namespace
}  // namespace afd::testing
