#include "connectors/p2p/p2p_layout.h"

#include <gtest/gtest.h>

namespace afd::p2p {
namespace {

ConnectorParams params(std::uint32_t num_attention, std::uint32_t num_ffn, Role role,
                       std::uint32_t role_rank) {
  ConnectorParams params;
  params.config.num_attention_ranks = num_attention;
  params.config.num_ffn_ranks = num_ffn;
  params.config.role = role;
  params.role_rank = role_rank;
  params.limits = {.hidden_size = 8, .num_layers = 2, .max_num_tokens = 32, .num_stages = 3};
  return params;
}

ControlPayload counts(std::map<std::int64_t, std::vector<std::int32_t>> stages) {
  ControlPayload payload;
  for (auto& [stage, tokens] : stages) {
    payload.dp_metadata_list[stage] = DpMetadata::create(tokens).value();
  }
  return payload;
}

// Goal: whatever the ratio and the counts, the rows that all attention ranks send tile each FFN
// rank's landing memory exactly, where the FFN rank expects them, and every attention row travels
// once.
TEST(P2pLayoutTest, SendersAndReceiversAgreeOnEveryRow) {
  for (std::uint32_t num_attention = 1; num_attention <= 7; ++num_attention) {
    for (std::uint32_t num_ffn = 1; num_ffn <= 7; ++num_ffn) {
      std::vector<std::int32_t> tokens;
      for (std::uint32_t a = 0; a < num_attention; ++a) {
        tokens.push_back(static_cast<std::int32_t>((a * 5 + num_ffn) % 9));  // 0: an idle rank
      }
      const ControlPayload payload = counts({{1, tokens}});
      std::vector<std::vector<int>> landed(num_ffn);
      std::vector<std::array<StageLayout, kStagesMax>> ffn(num_ffn);
      for (std::uint32_t f = 0; f < num_ffn; ++f) {
        const P2pLayout layout =
            P2pLayout::create(params(num_attention, num_ffn, Role::kFfn, f)).value();
        ASSERT_TRUE(layout.apply(payload, ffn[f]));
        EXPECT_FALSE(ffn[f][0].active);
        ASSERT_TRUE(ffn[f][1].active);
        landed[f].assign(ffn[f][1].num_rows, 0);
        EXPECT_LE(ffn[f][1].num_rows * layout.row_bytes(), layout.geometry(f).a2f_bytes[0]);
      }
      for (std::uint32_t a = 0; a < num_attention; ++a) {
        const P2pLayout layout =
            P2pLayout::create(params(num_attention, num_ffn, Role::kAttention, a)).value();
        std::array<StageLayout, kStagesMax> stages{};
        ASSERT_TRUE(layout.apply(payload, stages));
        std::uint32_t travelled = 0;
        for (std::size_t peer = 0; peer < layout.mapping().peers.size(); ++peer) {
          const std::uint32_t f = layout.mapping().peers[peer];
          const PeerRows& sent = stages[1].peers[peer];
          const PeerRows& expected = ffn[f][1].peers[layout.peer_idx_in_channel(f)];
          EXPECT_EQ(sent.num_rows, expected.num_rows);
          EXPECT_EQ(sent.row_offset, expected.row_offset);
          if (!sent.dummy) {
            EXPECT_EQ(sent.first_row, travelled);
            travelled += sent.num_rows;
          }
          for (std::uint32_t row = 0; row < sent.num_rows; ++row) {
            ++landed[f].at(sent.row_offset + row);
          }
        }
        EXPECT_EQ(travelled, stages[1].num_rows);
        EXPECT_EQ(travelled, std::max<std::uint32_t>(1, tokens[a]));
      }
      for (const std::vector<int>& rows : landed) {
        for (int times : rows) {
          EXPECT_EQ(times, 1) << num_attention << "A" << num_ffn << "F";
        }
      }
    }
  }
}

TEST(P2pLayoutTest, RefusesAStageBeyondTheLimit) {
  const P2pLayout layout = P2pLayout::create(params(1, 1, Role::kFfn, 0)).value();
  std::array<StageLayout, kStagesMax> stages{};
  const Result<void> applied = layout.apply(counts({{3, {1}}}), stages);
  ASSERT_FALSE(applied);
  EXPECT_EQ(applied.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(applied.error().message, "stage 3 is not in [0, 3)");
}

TEST(P2pLayoutTest, RefusesMoreTokensThanTheWindowHolds) {
  const P2pLayout layout = P2pLayout::create(params(2, 1, Role::kFfn, 0)).value();
  std::array<StageLayout, kStagesMax> stages{};
  const Result<void> applied = layout.apply(counts({{0, {1, 33}}}), stages);
  ASSERT_FALSE(applied);
  EXPECT_EQ(applied.error().message, "stage 0 announces 33 tokens, max_num_tokens is 32");
}

TEST(P2pLayoutTest, RefusesLimitsOutOfRange) {
  ConnectorParams bad = params(1, 1, Role::kFfn, 0);
  bad.limits.num_stages = 0;
  EXPECT_EQ(P2pLayout::create(bad).error().message, "num_stages must be in 1..8, got 0");
  bad = params(1, 1, Role::kFfn, 0);
  bad.limits.hidden_size = 0;
  EXPECT_EQ(P2pLayout::create(bad).error().message, "hidden_size must be in 1..16777216, got 0");
}

TEST(P2pLayoutTest, RefusesMoreRanksThanAJobHas) {
  EXPECT_TRUE(P2pLayout::create(params(512, 512, Role::kFfn, 0)));
  EXPECT_EQ(P2pLayout::create(params(513, 512, Role::kFfn, 0)).error().message,
            "a job has at most 1024 ranks, this one has 1025 (513 attention, 512 ffn)");
}

TEST(P2pLayoutTest, RefusesASubgroupLargerThanItsBound) {
  const Result<P2pLayout> layout = P2pLayout::create(params(65, 1, Role::kFfn, 0));
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().message,
            "a subgroup has at most 64 peers, this one has 65: use more ranks of the other role");
}

}  // namespace
}  // namespace afd::p2p
