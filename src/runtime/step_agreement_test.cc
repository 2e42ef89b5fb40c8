#include "runtime/step_agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> counts(const ControlPayload& payload, std::int64_t stage_idx) {
  return payload.dp_metadata_list.at(stage_idx).num_tokens_across_dp;
}

TEST(StepVoteTest, ComesOutAsItWentIn) {
  for (const StepVote vote :
       {StepVote{}, StepVote{.num_tokens = 0x12345678}, StepVote{.done = true},
        StepVote{.num_tokens = 7, .drains = true}, StepVote{.done = true, .drains = true}}) {
    const Result<StepVote> decoded = decode_step_vote(encode_step_vote(vote));
    ASSERT_TRUE(decoded);
    EXPECT_EQ(*decoded, vote);
  }
}

TEST(StepVoteTest, RefusesWhatIsNoVote) {
  std::string other_version = encode_step_vote({});
  other_version[2] = 1;
  std::string other_flags = encode_step_vote({});
  other_flags[3] = 4;
  for (const std::string& bytes : {std::string(), std::string("SV"), std::string(8, '\0'),
                                   other_version, other_flags, encode_step_vote({}) + "x"}) {
    const Result<StepVote> decoded = decode_step_vote(bytes);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().code, ErrorCode::kProtocolMismatch);
  }
}

TEST(StepPlanTest, TheBusiestRankSetsTheStages) {
  const std::vector<StepVote> votes = {{.num_tokens = 5}, {.num_tokens = 1}, {.num_tokens = 0}};
  EXPECT_EQ(plan_from_votes(votes, 1).num_stages, 1u);
  EXPECT_EQ(plan_from_votes(votes, 3).num_stages, 3u);
  EXPECT_EQ(plan_from_votes(votes, 8).num_stages, 5u);
  EXPECT_EQ(plan_from_votes(std::vector<StepVote>{{}}, 3).num_stages, 1u);
}

TEST(StepPlanTest, OneThatDrainsDrainsAll) {
  const std::vector<StepVote> votes = {{.num_tokens = 5}, {.num_tokens = 1, .drains = true}};
  EXPECT_TRUE(plan_from_votes(votes, 1).drains);
  EXPECT_FALSE(plan_from_votes(votes, 1).all_done);
  EXPECT_FALSE(plan_from_votes(std::vector<StepVote>{{}, {.done = true}}, 1).drains);
}

TEST(StepPlanTest, EndsOnlyWhenAllAreDone) {
  const std::vector<StepVote> mixed = {{.done = true}, {.num_tokens = 1}};
  EXPECT_FALSE(plan_from_votes(mixed, 2).all_done);
  const std::vector<StepVote> done = {{.done = true}, {.done = true}};
  EXPECT_TRUE(plan_from_votes(done, 2).all_done);
}

TEST(StepPlanTest, IdleStagesTransferADummyRow) {
  const std::vector<StepVote> votes = {{.num_tokens = 5}, {.num_tokens = 1}, {.num_tokens = 0}};
  const StepPlan plan = plan_from_votes(votes, 2);
  const ControlPayload payload = make_control_payload(plan);
  EXPECT_EQ(payload.dp_metadata_list.size(), 2u);
  EXPECT_THAT(counts(payload, 0), ElementsAre(3, 1, 0));
  EXPECT_THAT(counts(payload, 1), ElementsAre(2, 0, 0));
  EXPECT_EQ(payload.dp_metadata_list.at(0).max_tokens_across_dp, 3);
  EXPECT_EQ(plan.transfer_rows(0, 1), 2u);
  EXPECT_EQ(plan.transfer_rows(1, 1), 1u);
  EXPECT_EQ(plan.transfer_rows(2, 0), 1u);
}

/// Gives fixed answers.
class FakeGroup : public RoleGroup {
 public:
  explicit FakeGroup(std::vector<std::string> answers) : answers_(std::move(answers)) {}
  Result<std::vector<std::string>> all_gather(std::string_view mine, Deadline) override {
    mine_ = mine;
    return answers_;
  }
  std::string mine_;

 private:
  std::vector<std::string> answers_;
};

TEST(ExchangeVotesTest, OneRankAsksNobody) {
  const auto votes = exchange_votes(nullptr, 1, {.num_tokens = 3}, Deadline::now());
  ASSERT_TRUE(votes);
  EXPECT_THAT(*votes, ElementsAre(StepVote{.num_tokens = 3}));
}

TEST(ExchangeVotesTest, SeveralRanksNeedAGroup) {
  const auto votes = exchange_votes(nullptr, 2, {}, Deadline::now());
  ASSERT_FALSE(votes);
  EXPECT_EQ(votes.error().code, ErrorCode::kUnavailable);
}

TEST(ExchangeVotesTest, NamesTheRankWhoseVoteIsNone) {
  FakeGroup group({encode_step_vote({.num_tokens = 1}), "rubbish!"});
  const auto votes = exchange_votes(&group, 2, {.num_tokens = 1}, Deadline::now());
  ASSERT_FALSE(votes);
  EXPECT_EQ(votes.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_THAT(votes.error().message, HasSubstr("attention rank 1"));
  EXPECT_EQ(group.mine_, encode_step_vote({.num_tokens = 1}));
}

TEST(ExchangeVotesTest, RefusesAGroupOfAnotherSize) {
  FakeGroup group({encode_step_vote({})});
  const auto votes = exchange_votes(&group, 2, {}, Deadline::now());
  ASSERT_FALSE(votes);
  EXPECT_THAT(votes.error().message, HasSubstr("1 attention ranks voted, expected 2"));
}

}  // namespace
}  // namespace afd::runtime
