// A job over hosts whose network is bad: slow, losing, late, stalled. The logits stay those of one
// process, or the ranks name who was lost: nothing in between, and no hang.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hosts_job.h"
#include "tests/support/relay.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr seconds kRunLimit{120};
constexpr int kTokens = 40;

class HostsBadNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    network_ = Network::create(3, &why_not_, {.private_shared_memory = true});
    if (!network_) {
      GTEST_SKIP() << why_not_;
    }
    job_ = std::make_unique<HostsJob>(*network_, kModel);
    std::string prompts;
    for (int i = 0; i < 12; ++i) {
      prompts += Json{{"prompt_ids", {1 + i, 7, 9}}, {"max_new_tokens", kTokens}}.dump() + "\n";
    }
    work_ = {"--prompts", job_->folder().write("prompts.jsonl", prompts), "--logits-sha256"};
    std::vector<std::string> colocated = work_;
    colocated.push_back("--colocated");
    expected_ = logits_hashes(afd_run(kModel, colocated));
    ASSERT_EQ(expected_.size(), 12u);
    work_.insert(work_.end(), {"--stages", "2", "--max-num-seqs", "2"});
  }

  void expect_same_logits() {
    job_->start({{"ffn", 0, 0}, {"attention", 0, 1}, {"attention", 1, 2}}, work_);
    EXPECT_EQ(job_->await_hashes(kRunLimit), expected_);
  }

  /// Attention rank 0 meets the others through it.
  std::unique_ptr<Relay> relay(milliseconds delay, milliseconds jitter) {
    return std::make_unique<Relay>(RelayOptions{.address = network_->address(1),
                                                .target_address = network_->address(0),
                                                .target_port = HostsJob::kPort,
                                                .delay = delay,
                                                .jitter = jitter,
                                                .enter = [this] { network_->enter(1); }});
  }
  void start_through(const Relay& relay) {
    job_->start({{"ffn", 0, 0},
                 {.role = "attention",
                  .role_rank = 0,
                  .host = 1,
                  .meeting_host = network_->address(1),
                  .meeting_port = relay.port()},
                 {"attention", 1, 2}},
                work_);
  }

  std::string why_not_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<HostsJob> job_;
  std::vector<std::string> work_;
  std::vector<std::string> expected_;
};

TEST_F(HostsBadNetworkTest, ASlowOneChangesNothing) {
  if (!network_->limit_rate(1, 20, &why_not_)) {
    GTEST_SKIP() << why_not_;
  }
  expect_same_logits();
}

TEST_F(HostsBadNetworkTest, OneThatLosesPacketsChangesNothing) {
  for (const std::uint32_t host : {0u, 1u}) {
    if (!network_->lose(host, 10, &why_not_)) {
      GTEST_SKIP() << why_not_;
    }
  }
  expect_same_logits();
}

TEST_F(HostsBadNetworkTest, OneThatIsLateChangesNothing) {
  if (!network_->delay(1, milliseconds(5), milliseconds(3), &why_not_)) {
    GTEST_SKIP() << why_not_;
  }
  expect_same_logits();
}

TEST_F(HostsBadNetworkTest, ASessionThatIsLateAndStallsChangesNothing) {
  const auto late = relay(milliseconds(2), milliseconds(3));
  start_through(*late);
  ASSERT_TRUE(job_->await_meeting());
  std::this_thread::sleep_for(milliseconds(300));
  late->stall();
  std::this_thread::sleep_for(seconds(2));
  for (std::size_t i = 0; i < job_->size(); ++i) {
    EXPECT_FALSE(job_->program(i).has_ended()) << job_->places()[i].name() << ": too short a run";
  }
  late->go_on();
  EXPECT_EQ(job_->await_hashes(kRunLimit), expected_);
}

TEST_F(HostsBadNetworkTest, ASessionThatIsCutIsALossOnAllSides) {
  const auto late = relay(milliseconds(5), milliseconds(0));
  start_through(*late);
  ASSERT_TRUE(job_->await_meeting());
  std::this_thread::sleep_for(milliseconds(300));
  late->cut();
  for (std::size_t i = 0; i < job_->size(); ++i) {
    const Ended ended = job_->program(i).wait(seconds(5));
    SCOPED_TRACE(job_->places()[i].name() + ": " + describe(ended));
    EXPECT_FALSE(ended.timed_out);
    EXPECT_EQ(ended.exit_code, 3);
    EXPECT_THAT(ended.err, HasSubstr(i == 1 ? "ffn rank 0" : "attention rank 0"));
    EXPECT_THAT(ended.err, HasSubstr("lost"));
  }
}

}  // namespace
}  // namespace afd::testing
