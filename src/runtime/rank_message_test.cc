#include "runtime/rank_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

template <typename Message>
Message round_trip(const Message& message) {
  const Result<RankMessage> decoded = decode_rank_message(encode_rank_message(message));
  EXPECT_TRUE(decoded) << decoded.error().message;
  return std::get<Message>(*decoded);
}

TEST(RankMessageTest, EveryMessageComesOutAsItWentIn) {
  EXPECT_EQ(round_trip(WaitingMessage{"ffn rank 0"}).missing, "ffn rank 0");
  (void)round_trip(ReadyMessage{});
  const TokensMessage tokens{{{3, 17}, {4, 0}}};
  EXPECT_EQ(round_trip(tokens).tokens, tokens.tokens);
  const Output output{.request_idx = 9,
                      .token_ids = {1, 2},
                      .finish_reason = FinishReason::kStop,
                      .logits_sha256 = "ab"};
  EXPECT_EQ(round_trip(FinishedMessage{output}).output, output);
  const Error error{ErrorCode::kPeerLost, "ffn rank 1 lost"};
  EXPECT_EQ(round_trip(FailedMessage{error}).error, error);
  RunStats stats;
  stats.num_steps = 5;
  stats.end_ns = 77;
  stats.hops.wait.record(std::chrono::microseconds(3));
  const RunStats received = round_trip(DoneMessage{stats}).stats;
  EXPECT_EQ(received.num_steps, 5u);
  EXPECT_EQ(received.end_ns, 77);
  EXPECT_EQ(received.hops.wait.sparse(), stats.hops.wait.sparse());
}

TEST(RankMessageTest, AMessageStaysOnOneLineWhateverItQuotes) {
  const std::string line = encode_rank_message(FailedMessage{{ErrorCode::kInternal, "a\nb\xff"}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_TRUE(decode_rank_message(line));
}

TEST(RankMessageTest, RefusesWhatIsNoMessage) {
  for (const char* line :
       {"", "{", "[]", "{}", R"({"type":"x"})", R"({"type":"tokens","tokens":3})",
        R"({"type":"failed","code":"Odd","message":""})", R"({"type":"done","stats":"{}"})"}) {
    const Result<RankMessage> decoded = decode_rank_message(line);
    ASSERT_FALSE(decoded) << line;
    EXPECT_EQ(decoded.error().code, ErrorCode::kProtocolMismatch);
    EXPECT_THAT(decoded.error().message, Not(HasSubstr("json.exception"))) << line;
  }
}

TEST(RankJobTest, EveryFieldComesOutAsItWentIn) {
  RankJob job;
  job.options.model_dir = "m";
  job.options.afd.connector = "P2pShmAFDConnector";
  job.options.afd.connector_extra_config = R"({"strict_topology":true})";
  job.options.afd.host = "127.0.0.2";
  job.options.afd.port = 4711;
  job.options.afd.num_attention_ranks = 3;
  job.options.afd.num_ffn_ranks = 2;
  job.options.afd.compute_gate_on_attention = true;
  job.options.num_stages = 4;
  job.options.max_num_seqs = 5;
  job.options.max_num_tokens = 6;
  job.options.logits_sha256 = true;
  job.options.stream_tokens = true;
  job.options.hop_timeout = std::chrono::milliseconds(7);
  job.options.init_timeout = std::chrono::milliseconds(8);
  job.requests = {{.request_idx = 1,
                   .prompt_ids = {2, 3},
                   .max_new_tokens = 4,
                   .sampling = {.temperature = 0.1, .seed = ~std::uint64_t{0}}}};

  const Result<RankJob> decoded = decode_rank_job(encode_rank_job(job));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(*decoded, job);
}

TEST(RankJobTest, NamesTheKeyThatIsMissing) {
  const Result<RankJob> decoded = decode_rank_job(R"({"model_dir":"m"})");
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().message, "rank job: key 'connector' not found");
}

}  // namespace
}  // namespace afd::runtime
