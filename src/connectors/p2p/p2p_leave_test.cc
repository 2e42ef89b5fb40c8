// How ranks leave: in order, which ends the job once all attention ranks have, or giving up, which
// never is the end of a job that is done.
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "connectors/p2p/p2p_testing.h"

namespace afd::p2p {
namespace {

using session::testing::soon;
using testing::SpyJob;

constexpr TransferLimits kLimits{.hidden_size = 2, .num_layers = 4, .max_num_tokens = 16};

Result<std::optional<ControlPayload>> next_step(SpyJob& job, std::uint32_t ffn_rank) {
  return job.ffn(ffn_rank).control_plane()->recv_dp_metadata_list(soon());
}

TEST(P2pLeaveTest, AllAttentionRanksThatCloseEndTheJob) {
  SpyJob job({2, 2}, kLimits);
  ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
  job.attention(1).close();
  job.attention(0).close();
  for (const std::uint32_t ffn_rank : {0u, 1u}) {
    const Result<std::optional<ControlPayload>> step = next_step(job, ffn_rank);
    ASSERT_TRUE(step) << step.error().message;
    EXPECT_FALSE(step->has_value());
  }
}

TEST(P2pLeaveTest, AJobThatARankGaveUpIsNotDone) {
  for (const bool also_the_other : {false, true}) {
    SpyJob job({2, 2}, kLimits);
    ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
    job.attention(1).give_up("it was stopped");
    // The other one fails because of it, or leaves in order: that does not make it done.
    const Result<std::vector<std::string>> gathered =
        job.attention(0).role_group()->all_gather("mine", soon());
    ASSERT_FALSE(gathered);
    EXPECT_EQ(gathered.error().code, ErrorCode::kPeerLost);
    if (also_the_other) {
      job.attention(0).give_up(gathered.error().message);
    } else {
      job.attention(0).close();
    }
    for (const std::uint32_t ffn_rank : {0u, 1u}) {
      const Result<std::optional<ControlPayload>> step = next_step(job, ffn_rank);
      ASSERT_FALSE(step);
      EXPECT_EQ(step.error().code, ErrorCode::kPeerLost);
      EXPECT_NE(step.error().message.find("attention rank 1 gave up: it was stopped"),
                std::string::npos)
          << step.error().message;
    }
  }
}

TEST(P2pLeaveTest, ADataCallThatNeedsARankThatGaveUpHasItsReason) {
  SpyJob job({1, 1}, kLimits);
  ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
  ASSERT_NO_FATAL_FAILURE(job.begin_step({{1}}));
  job.attention(0).give_up("step 3: logits are not finite\n");
  const Result<A2FTransferPayload> payload = job.ffn(0).recv_attn_output(0, {.deadline = soon()});
  ASSERT_FALSE(payload);
  EXPECT_EQ(payload.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(payload.error().message,
            "stage 0: attention rank 0 gave up: step 3: logits are not finite?");
}

TEST(P2pLeaveTest, WorldRank0CanGiveUpToo) {
  SpyJob job({1, 2}, kLimits);
  ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
  job.ffn(0).give_up("it was stopped");
  const Result<std::optional<ControlPayload>> step = next_step(job, 1);
  ASSERT_FALSE(step);
  EXPECT_NE(step.error().message.find("ffn rank 0 gave up: it was stopped"), std::string::npos)
      << step.error().message;
}

TEST(P2pLeaveTest, ARankWhoseInitFailsTellsTheOthersWhy) {
  // World ranks: ffn 0, ffn 1, attention 0, attention 1. The one that fails relays the news, or
  // not.
  for (const auto& [refused, name] :
       {std::pair(2u, "attention rank 0"), std::pair(0u, "ffn rank 0")}) {
    SpyJob job({2, 2}, kLimits);
    job.spy.refuse = "attach";
    job.spy.refused_rank = refused;
    const std::vector<Result<void>> met = job.init();
    for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
      ASSERT_FALSE(met[rank]) << rank;
      const std::string& message = met[rank].error().message;
      EXPECT_NE(message.find("injected attach"), std::string::npos) << message;
      if (rank != refused) {
        EXPECT_EQ(met[rank].error().code, ErrorCode::kPeerLost);
        EXPECT_NE(message.find(std::string(name) + " gave up: "), std::string::npos) << message;
      }
    }
  }
}

}  // namespace
}  // namespace afd::p2p
