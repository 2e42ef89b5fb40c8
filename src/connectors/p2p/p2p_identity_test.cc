// What a transfer says of itself (R1): what senders write, field by field, and what a receiver says
// of each field that differs.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "connectors/p2p/p2p_testing.h"

namespace afd::p2p {
namespace {

using testing::context_of;
using testing::Spy;
using testing::SpyJob;
using transport::Direction;
using transport::TransferHeader;

// 4A2F: ffn rank 1 serves attention ranks 2 and 3. What the tests look at goes between it and
// attention rank 3, in the second step, so that no field is zero by chance.
constexpr RankCounts kCounts{.num_attention_ranks = 4, .num_ffn_ranks = 2};
constexpr std::uint32_t kStage = 1;
constexpr std::uint32_t kLayer = 2;
constexpr std::uint32_t kRows = 5;        // of attention rank 3
constexpr std::uint32_t kRowsBefore = 3;  // of attention rank 2
constexpr TransferLimits kLimits{.hidden_size = 4,
                                 .num_layers = 7,
                                 .num_experts = 6,
                                 .max_num_tokens = 16,
                                 .num_stages = 2,
                                 .dtype = kBFloat16};

class P2pIdentityTest : public ::testing::Test {
 protected:
  P2pIdentityTest() : job_(kCounts, kLimits) {}

  void begin() {
    ASSERT_NO_FATAL_FAILURE(job_.init_or_fail());
    for (int step = 0; step < 2; ++step) {
      const std::vector<std::int32_t> counts = {1, 1, kRowsBefore, kRows};
      ASSERT_NO_FATAL_FAILURE(job_.begin_step({counts, counts}));
    }
  }

  void send_attn(std::uint32_t role_rank, std::uint32_t num_rows) {
    const Result<void> sent = job_.attention(role_rank).send_attn_output(
        job_.make_tensor({num_rows, kLimits.hidden_size}, kLimits.dtype),
        context_of(kLayer, kStage, num_rows),
        {.router_logits = job_.make_tensor({num_rows, kLimits.num_experts}, kFloat32),
         .deadline = session::testing::soon()});
    ASSERT_TRUE(sent) << sent.error().message;
  }
  Result<A2FTransferPayload> receive_attn() {
    return job_.ffn(1).recv_attn_output(
        kStage, {.routing_spec = ExpertRoutingSpec{kLimits.num_experts, kFloat32},
                 .deadline = session::testing::soon()});
  }
  /// The whole way of both peers' rows up to the answer.
  void answer() {
    ASSERT_NO_FATAL_FAILURE(begin());
    ASSERT_NO_FATAL_FAILURE(send_attn(2, kRowsBefore));
    ASSERT_NO_FATAL_FAILURE(send_attn(3, kRows));
    const Result<A2FTransferPayload> payload = receive_attn();
    ASSERT_TRUE(payload) << payload.error().message;
    const Result<void> sent =
        job_.ffn(1).send_ffn_output({.routed_output = payload->hidden_states}, payload->context,
                                    {.deadline = session::testing::soon()});
    ASSERT_TRUE(sent) << sent.error().message;
  }

  SpyJob job_;
};

TEST_F(P2pIdentityTest, ASenderFillsEveryField) {
  ASSERT_NO_FATAL_FAILURE(answer());
  ASSERT_EQ(job_.spy.published.size(), 4u);
  const TransferHeader& there = job_.spy.published[1].header;
  EXPECT_NE(there.epoch, 0u);
  const TransferHeader wanted{.step = 2,
                              .epoch = there.epoch,
                              .layer_idx = kLayer,
                              .stage_idx = kStage,
                              .source_rank = 3,
                              .num_rows = kRows,
                              .row_offset = kRowsBefore,
                              .row_elements = kLimits.hidden_size,
                              .dtype_code = kBFloat16.code,
                              .dtype_bits = 16,
                              .parts = 3,
                              .aux_dtype_bits = 32,
                              .aux_elements = kLimits.num_experts};
  EXPECT_EQ(there, wanted);

  TransferHeader wanted_back = wanted;
  wanted_back.source_rank = 1;  // the ffn rank
  wanted_back.parts = 1;
  wanted_back.aux_dtype_bits = 0;
  wanted_back.aux_elements = 0;
  EXPECT_EQ(job_.spy.published[3].header, wanted_back);
}

/// One field changed, and what the receiver says of it.
struct Change {
  const char* name;
  std::function<void(TransferHeader& header)> apply;
  std::string text;  ///< "EPOCH" and "EPOCH+1" stand for the job's and the changed one.
};

void PrintTo(const Change& change, std::ostream* out) {
  *out << change.name;
}

std::vector<Change> changes_in_both_directions() {
  return {
      {"epoch", [](auto& h) { ++h.epoch; }, "epoch is EPOCH+1, expected EPOCH"},
      {"step", [](auto& h) { h.step = 1; }, "step is 1, expected 2"},
      {"layer_idx", [](auto& h) { h.layer_idx = 3; }, "layer_idx is 3, expected 2"},
      {"stage_idx", [](auto& h) { h.stage_idx = 0; }, "stage_idx is 0, expected 1"},
      {"num_rows", [](auto& h) { h.num_rows = 4; }, "num_rows is 4, expected 5"},
      {"row_offset", [](auto& h) { h.row_offset = 0; }, "row_offset is 0, expected 3"},
      {"row_elements", [](auto& h) { h.row_elements = 8; }, "row width is 8, expected 4"},
      {"dtype_bits", [](auto& h) { h.dtype_bits = 8; }, ", expected bfloat16"},
      {"dtype_code", [](auto& h) { h.dtype_code = kFloat16.code; },
       "dtype is float16, expected bfloat16"},
      {"unknown_part", [](auto& h) { h.parts = static_cast<std::uint8_t>(h.parts | 8); },
       "further parts is 2, expected 0"},
      {"topk_elements", [](auto& h) { h.topk_elements = 2; }, "top-k width is 2, expected 0"},
      {"reserved", [](auto& h) { h.reserved = 1; }, "the reserved field is 1, expected 0"},
  };
}

std::vector<Change> with(std::vector<Change> changes, const std::vector<Change>& more) {
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

std::vector<Change> changes_there() {
  return with(
      changes_in_both_directions(),
      {{"source_rank", [](auto& h) { h.source_rank = 2; }, "source_rank is 2, expected 3"},
       {"router_logits", [](auto& h) { h.parts = 1; }, "router logits present is 0, expected 1"},
       {"aux_elements", [](auto& h) { h.aux_elements = 5; },
        "router logits width is 5, expected 6"},
       {"aux_dtype_bits", [](auto& h) { h.aux_dtype_bits = 16; },
        "router logits bits is 16, expected 32"}});
}

std::vector<Change> changes_back() {
  return with(
      changes_in_both_directions(),
      {{"source_rank", [](auto& h) { h.source_rank = 0; }, "source_rank is 0, expected 1"},
       {"router_logits", [](auto& h) { h.parts = 3; }, "router logits present is 1, expected 0"},
       {"aux_elements", [](auto& h) { h.aux_elements = 6; },
        "router logits width is 6, expected 0"},
       {"aux_dtype_bits", [](auto& h) { h.aux_dtype_bits = 32; },
        "router logits bits is 32, expected 0"}});
}

void replace(std::string& text, const std::string& what, const std::string& with) {
  if (const std::size_t at = text.find(what); at != std::string::npos) {
    text.replace(at, what.size(), with);
  }
}

void expect_mismatch(const Error& error, const std::string& beginning, const Change& change,
                     const Spy& spy) {
  const std::uint32_t epoch = spy.published.back().header.epoch;
  std::string text = change.text;
  replace(text, "EPOCH+1", std::to_string(epoch + 1));
  replace(text, "EPOCH", std::to_string(epoch));
  EXPECT_EQ(error.code, ErrorCode::kProtocolMismatch);
  EXPECT_EQ(error.message.rfind(beginning, 0), 0u) << error.message;
  EXPECT_EQ(
      error.message.substr(error.message.size() - std::min(error.message.size(), text.size())),
      text)
      << error.message;
  EXPECT_EQ(error.message.find("; "), std::string::npos)
      << "more than one field: " << error.message;
}

class FieldOfATransfer : public P2pIdentityTest, public ::testing::WithParamInterface<Change> {};

TEST_P(FieldOfATransfer, IsComparedByTheFfnRank) {
  ASSERT_NO_FATAL_FAILURE(begin());
  job_.spy.alter = [](TransferHeader& header) {
    if (header.source_rank == 3) {
      GetParam().apply(header);
    }
  };
  // The first peer has said which layer this is.
  ASSERT_NO_FATAL_FAILURE(send_attn(2, kRowsBefore));
  ASSERT_NO_FATAL_FAILURE(send_attn(3, kRows));
  const Result<A2FTransferPayload> received = receive_attn();
  ASSERT_FALSE(received);
  expect_mismatch(received.error(),
                  "transfer from attention rank 3 on stage 1 of step 2: ", GetParam(), job_.spy);
}

INSTANTIATE_TEST_SUITE_P(All, FieldOfATransfer, ::testing::ValuesIn(changes_there()),
                         [](const auto& test) { return test.param.name; });

class FieldOfAnAnswer : public P2pIdentityTest, public ::testing::WithParamInterface<Change> {};

TEST_P(FieldOfAnAnswer, IsComparedByTheAttentionRank) {
  ASSERT_NO_FATAL_FAILURE(answer());
  job_.spy.alter = GetParam().apply;
  const Result<TensorView> received = job_.attention(3).recv_ffn_output({}, kStage, {});
  ASSERT_FALSE(received);
  expect_mismatch(received.error(), "transfer from ffn rank 1 on stage 1 of step 2: ", GetParam(),
                  job_.spy);
}

INSTANTIATE_TEST_SUITE_P(All, FieldOfAnAnswer, ::testing::ValuesIn(changes_back()),
                         [](const auto& test) { return test.param.name; });

TEST_F(P2pIdentityTest, ALayerThatTheModelDoesNotHaveIsNamed) {
  ASSERT_NO_FATAL_FAILURE(begin());
  job_.spy.alter = [](TransferHeader& header) { header.layer_idx = 7; };
  ASSERT_NO_FATAL_FAILURE(send_attn(2, kRowsBefore));
  const Result<A2FTransferPayload> received = receive_attn();
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_EQ(
      received.error().message,
      "transfer from attention rank 2 on stage 1 of step 2: layer_idx is 7, expected below 7");
}

}  // namespace
}  // namespace afd::p2p
