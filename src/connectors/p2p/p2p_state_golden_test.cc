// What a step's token counts mean for each rank, against the reference's vectors
// (tests/data/golden/transfer_metadata.json, control_state_update): rows of every peer and of every
// stage, and that a step replaces the last one.
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "connectors/p2p/p2p_testing.h"
#include "core/golden_testing.h"

namespace afd::p2p {
namespace {

using golden::Json;
using session::testing::soon;
using testing::SpyJob;

ControlPayload payload_of(const Json& one) {
  ControlPayload payload;
  for (const Json& stage : one["stages"]) {
    payload.dp_metadata_list[stage[0]] =
        DpMetadata::create(stage[1].get<std::vector<std::int32_t>>()).value();
  }
  return payload;
}

TEST(P2pStateGoldenTest, AStepGivesEachRankTheRowsOfItsPeersAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"state_is_replaced_not_merged", "the test below has it"},
  };
  golden::run_cases(
      golden::load("transfer_metadata.json")["control_state_update"], 16, inapplicable,
      [](const Json& one) {
        ConnectorParams params;
        params.config.role = parse_role(one["role"].get<std::string>()).value();
        params.config.num_attention_ranks = one["num_attention_ranks"];
        params.config.num_ffn_ranks = one["num_ffn_ranks"];
        params.role_rank = one["role_rank"];
        params.limits = {.hidden_size = one["hidden_size"],
                         .num_layers = 1,
                         .max_num_tokens = 32,
                         .num_stages = 2,
                         .dtype = kBFloat16};
        const P2pLayout layout = P2pLayout::create(params).value();
        std::array<StageLayout, kStagesMax> stages{};
        const Result<void> applied = layout.apply(payload_of(one), stages);
        ASSERT_TRUE(applied) << applied.error().message;

        Json per_peer = Json::array();
        Json totals = Json::object();
        for (std::uint32_t stage_idx = 0; stage_idx < kStagesMax; ++stage_idx) {
          const StageLayout& stage = stages[stage_idx];
          if (!stage.active) {
            continue;
          }
          totals[std::to_string(stage_idx)] = {stage.num_rows, params.limits.hidden_size};
          for (std::size_t peer = 0; peer < stage.seq_lens.size(); ++peer) {
            EXPECT_EQ(stage.peers[peer].num_rows, stage.seq_lens[peer]);
            per_peer.push_back({{"stage", stage_idx},
                                {"subgroup_src", peer + 1},
                                {"shape", {stage.seq_lens[peer], params.limits.hidden_size}}});
          }
        }
        EXPECT_EQ(per_peer, one["per_peer_metadata"]);
        ASSERT_EQ(totals.size(), one["tensor_metadata"].size());
        for (const auto& [stage, tensor] : one["tensor_metadata"].items()) {
          EXPECT_EQ(totals[stage], tensor["shape"]) << "stage " << stage;
        }
      });
}

TEST(P2pStateGoldenTest, AStepReplacesTheLastOneAndIsNotMergedIntoIt) {
  SpyJob job({1, 1}, {.hidden_size = 16, .num_layers = 1, .max_num_tokens = 32, .num_stages = 2});
  ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
  ASSERT_NO_FATAL_FAILURE(job.begin_step({{3}, {4}}));
  EXPECT_TRUE(job.attention(0).attn_send_buffer(0, 3));
  EXPECT_TRUE(job.attention(0).attn_send_buffer(1, 4));
  ControlPayload second;
  second.dp_metadata_list[1] = DpMetadata::create({5}).value();
  for (const std::uint32_t rank : {0u, 1u}) {
    ASSERT_TRUE(job[rank].control_plane()->update_state_from_dp_metadata(second));
  }
  EXPECT_TRUE(job.attention(0).attn_send_buffer(1, 5));
  EXPECT_FALSE(job.attention(0).attn_send_buffer(1, 4));
  const Result<A2FTransferPayload> first = job.ffn(0).recv_attn_output(0, {.deadline = soon()});
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(first.error().message, "stage 0 is not among those of this step, [1]");
}

}  // namespace
}  // namespace afd::p2p
