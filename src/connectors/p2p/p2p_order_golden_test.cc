// The order of sends and receives, and what init goes through, against the reference's traces
// (tests/data/golden/p2p_datapath.json). docs/decisions/0005-order-of-transfers.md says what of the
// order is ours too; here it is seen at the transport, where a publish is a send with all its
// tensors and a header that is looked at is where a receive meets a transfer.
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "connectors/p2p/p2p_testing.h"

namespace afd::p2p {
namespace {

using Json = nlohmann::json;
using session::testing::soon;
using testing::context_of;
using testing::Spy;
using testing::SpyJob;
using transport::Direction;

constexpr TransferLimits kLimits{.hidden_size = 2,
                                 .num_layers = 4,
                                 .num_experts = 3,
                                 .max_num_tokens = 16,
                                 .num_stages = 2,
                                 .dtype = kFloat32};

const Json& golden() {
  static const Json data = [] {
    std::ifstream file(AFD_TEST_DATA "/golden/p2p_datapath.json");
    return Json::parse(file);
  }();
  return data;
}

const Json& golden_case(const std::string& name) {
  for (const Json& one : golden()["data_path"]) {
    if (one["name"] == name) {
      return one;
    }
  }
  ADD_FAILURE() << name;
  return golden()["data_path"][0];
}

/// Peers of a trace, in order, each once: its subgroup rank, which counts from 1, less one.
std::vector<std::uint32_t> peers_of(const Json& trace, const char* key) {
  std::vector<std::uint32_t> peers;
  for (const Json& entry : trace) {
    const auto peer = entry[key].get<std::uint32_t>() - 1;
    if (peers.empty() || peers.back() != peer) {
      peers.push_back(peer);
    }
  }
  return peers;
}

std::vector<std::uint32_t> peers_taken(const Spy& spy, std::uint32_t world_rank) {
  std::vector<std::uint32_t> peers;
  for (const Spy::Taken& taken : spy.taken) {
    if (taken.world_rank == world_rank) {
      peers.push_back(taken.lane.peer_idx);
    }
  }
  return peers;
}

void send(SpyJob& job, std::uint32_t role_rank, std::uint32_t stage, std::uint32_t rows,
          bool logits) {
  SendAttnOptions options{.deadline = soon()};
  if (logits) {
    options.router_logits = job.make_tensor({rows, kLimits.num_experts}, kFloat32);
  }
  const Result<void> sent = job.attention(role_rank).send_attn_output(
      job.make_tensor({rows, kLimits.hidden_size}, kFloat32), context_of(0, stage, rows), options);
  ASSERT_TRUE(sent) << sent.error().message;
}

Result<A2FTransferPayload> receive(SpyJob& job, std::uint32_t ffn_rank, std::uint32_t stage,
                                   bool logits, Deadline deadline) {
  RecvAttnOptions options{.deadline = deadline};
  if (logits) {
    options.routing_spec = ExpertRoutingSpec{kLimits.num_experts, kFloat32};
  }
  return job.ffn(ffn_rank).recv_attn_output(stage, options);
}

// A trace of hidden states, then router logits, is one publish of both: neither can be seen without
// the other.
TEST(P2pOrderGoldenTest, AnAttentionRankSendsTheTensorsOfTheTraceAsOneTransfer) {
  for (const char* name :
       {"attention_send_with_router_logits", "attention_send_router_logits_none"}) {
    SCOPED_TRACE(name);
    const Json& trace = golden_case(name)["trace"];
    SpyJob job({1, 1}, kLimits);
    ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
    ASSERT_NO_FATAL_FAILURE(job.begin_step({{3}}));
    ASSERT_NO_FATAL_FAILURE(send(job, 0, 0, 3, trace.size() == 2));
    ASSERT_EQ(job.spy.published.size(), 1u);
    const Spy::Published& published = job.spy.published[0];
    EXPECT_EQ(published.lane.direction, Direction::kA2f);
    for (std::size_t part = 0; part < published.parts.size(); ++part) {
      std::uint64_t bytes = 0;
      if (part < trace.size()) {
        bytes = trace[part]["shape"][0].get<std::uint64_t>() *
                trace[part]["shape"][1].get<std::uint64_t>() * sizeof(float);
      }
      EXPECT_EQ(published.parts[part].size_bytes, bytes) << "part " << part;
    }
  }
}

struct FfnReceive {
  const char* name;
  RankCounts counts;
  std::uint32_t ffn_rank;
};

class P2pOrderOfAnFfnReceive : public ::testing::TestWithParam<FfnReceive> {
 protected:
  void begin() {
    const Json& one = golden_case(GetParam().name);
    const Json& ok = one["ok"];
    stage_ = ok["stage_idx"];
    logits_ = !ok["router_logits"].is_null();
    rows_ = ok["seq_lens"].get<std::vector<std::uint32_t>>();
    first_ = GetParam().ffn_rank * static_cast<std::uint32_t>(rows_.size());
    std::vector<std::int32_t> counts(GetParam().counts.num_attention_ranks, 1);
    for (std::size_t peer = 0; peer < rows_.size(); ++peer) {
      counts[first_ + peer] = static_cast<std::int32_t>(rows_[peer]);
    }
    ASSERT_NO_FATAL_FAILURE(job_.init_or_fail());
    ASSERT_NO_FATAL_FAILURE(job_.begin_step({counts, counts}));
    wanted_ = peers_of(one["trace"], "src");
    ASSERT_EQ(wanted_.size(), rows_.size());
  }

  SpyJob job_{GetParam().counts, kLimits};
  std::uint32_t stage_ = 0;
  std::uint32_t first_ = 0;
  bool logits_ = false;
  std::vector<std::uint32_t> rows_;
  std::vector<std::uint32_t> wanted_;
};

TEST_P(P2pOrderOfAnFfnReceive, IsThatOfTheTraceWhereAllHaveCome) {
  ASSERT_NO_FATAL_FAILURE(begin());
  for (std::size_t peer = rows_.size(); peer-- > 0;) {  // whoever came first
    ASSERT_NO_FATAL_FAILURE(
        send(job_, first_ + static_cast<std::uint32_t>(peer), stage_, rows_[peer], logits_));
  }
  const Result<A2FTransferPayload> payload =
      receive(job_, GetParam().ffn_rank, stage_, logits_, soon());
  ASSERT_TRUE(payload) << payload.error().message;
  EXPECT_EQ(peers_taken(job_.spy, GetParam().ffn_rank), wanted_);
}

// Different by design: nobody is waited for while another one's rows are there.
TEST_P(P2pOrderOfAnFfnReceive, IsThatOfArrivalOtherwise) {
  ASSERT_NO_FATAL_FAILURE(begin());
  std::vector<std::uint32_t> arrival;
  for (std::size_t peer = rows_.size(); peer-- > 0;) {
    ASSERT_NO_FATAL_FAILURE(
        send(job_, first_ + static_cast<std::uint32_t>(peer), stage_, rows_[peer], logits_));
    const Result<A2FTransferPayload> payload =
        receive(job_, GetParam().ffn_rank, stage_, logits_, Deadline::now());
    ASSERT_EQ(payload.has_value(), peer == 0);
    if (!payload) {
      ASSERT_EQ(payload.error().code, ErrorCode::kDeadlineExceeded) << payload.error().message;
    }
    arrival.push_back(static_cast<std::uint32_t>(peer));
  }
  EXPECT_EQ(peers_taken(job_.spy, GetParam().ffn_rank), arrival);
}

INSTANTIATE_TEST_SUITE_P(
    Golden, P2pOrderOfAnFfnReceive,
    ::testing::Values(FfnReceive{"ffn_recv_two_peers_router_logits_interleaved", {2, 1}, 0},
                      FfnReceive{"ffn_recv_one_peer_router_logits", {1, 1}, 0},
                      FfnReceive{"ffn_recv_stage_1", {2, 1}, 0},
                      FfnReceive{"ffn_recv_8a2f_ffn1", {8, 2}, 1}),
    [](const auto& test) { return test.param.name; });

TEST(P2pOrderGoldenTest, AnFfnRankAnswersItsPeersInTheOrderOfTheTrace) {
  for (const char* name :
       {"ffn_send_ratio1", "ffn_send_ratio2_split_by_seq_lens", "ffn_send_ratio4_uneven"}) {
    SCOPED_TRACE(name);
    const Json& trace = golden_case(name)["trace"];
    const auto num_peers = static_cast<std::uint32_t>(trace.size());
    std::vector<std::int32_t> rows;
    for (const Json& sent : trace) {
      rows.push_back(sent["shape"][0]);
    }
    SpyJob job({num_peers, 1}, kLimits);
    ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
    ASSERT_NO_FATAL_FAILURE(job.begin_step({rows}));
    for (std::uint32_t peer = 0; peer < num_peers; ++peer) {
      ASSERT_NO_FATAL_FAILURE(send(job, peer, 0, static_cast<std::uint32_t>(rows[peer]), false));
    }
    const Result<A2FTransferPayload> payload = receive(job, 0, 0, false, soon());
    ASSERT_TRUE(payload) << payload.error().message;
    job.spy.published.clear();
    const ConstTensorView output =
        job.make_tensor({payload->hidden_states.num_rows(), kLimits.hidden_size}, kFloat32);
    const Result<void> sent = job.ffn(0).send_ffn_output({.routed_output = output},
                                                         payload->context, {.deadline = soon()});
    ASSERT_TRUE(sent) << sent.error().message;
    ASSERT_EQ(job.spy.published.size(), trace.size());
    std::uint64_t first_row = 0;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const Spy::Published& published = job.spy.published[i];
      EXPECT_EQ(published.lane.direction, Direction::kF2a);
      EXPECT_EQ(published.lane.peer_idx + 1, trace[i]["dst"].get<std::uint32_t>());
      EXPECT_EQ(published.header.num_rows, trace[i]["shape"][0].get<std::uint32_t>());
      EXPECT_EQ(published.parts[0].source,
                output.bytes().data() + first_row * kLimits.hidden_size * sizeof(float));
      first_row += published.header.num_rows;
    }
  }
}

TEST(P2pOrderGoldenTest, AnAttentionRankReceivesOnceForEachReceiveOfTheTrace) {
  const Json& trace = golden_case("attention_recv_into_ref")["trace"];
  SpyJob job({1, 1}, kLimits);
  ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
  ASSERT_NO_FATAL_FAILURE(job.begin_step({{3}}));
  ASSERT_NO_FATAL_FAILURE(send(job, 0, 0, 3, false));
  const Result<A2FTransferPayload> payload = receive(job, 0, 0, false, soon());
  ASSERT_TRUE(payload) << payload.error().message;
  ASSERT_TRUE(job.ffn(0).send_ffn_output({.routed_output = payload->hidden_states},
                                         payload->context, {.deadline = soon()}));
  Tensor ref({3, kLimits.hidden_size}, kFloat32);
  ASSERT_TRUE(job.attention(0).recv_ffn_output(ref.view(), 0, {.deadline = soon()}));
  EXPECT_EQ(peers_taken(job.spy, 1).size(), trace.size());
}

// The reference's groups and communicators have no counterpart; what a caller sees of init has.
TEST(P2pInitGoldenTest, InitAndCloseLookAsTheReferencesFromOutside) {
  std::set<std::string> topologies;
  std::size_t num_ranks_seen = 0;
  for (const Json& one : golden()["init"]) {
    const std::string topology = one["topology"];
    RankCounts counts;
    ASSERT_EQ(
        std::sscanf(topology.c_str(), "%uA%uF", &counts.num_attention_ranks, &counts.num_ffn_ranks),
        2);
    const bool is_ffn = one["role"] == "ffn";
    const RankMapping mapping =
        build_rank_mapping(counts.num_attention_ranks, counts.num_ffn_ranks,
                           is_ffn ? Role::kFfn : Role::kAttention, one["role_rank"])
            .value();
    for (const Json& event : one["events"]) {
      if (event["op"] == "init_process_group" && event["group_name"] == "afd") {
        EXPECT_EQ(event["rank"], mapping.world_rank);
        EXPECT_EQ(event["world_size"], counts.num_attention_ranks + counts.num_ffn_ranks);
      } else if (event["op"] == "init_process_group") {
        EXPECT_EQ(event["rank"], mapping.p2p_rank);
        EXPECT_EQ(event["world_size"], counts.num_ffn_ranks + mapping.min_size);
      } else if (event["op"] == "create_subgroup_store") {
        EXPECT_EQ(event["rank"], mapping.rank_in_subgroup);
        EXPECT_EQ(event["world_size"], mapping.subgroup_ranks.size());
      }
    }
    EXPECT_EQ(mapping.participates_in_dp_metadata_group, one["has_control_group"].get<bool>());
    ++num_ranks_seen;
    if (!topologies.insert(topology).second) {
      continue;  // its job has run
    }
    SCOPED_TRACE(topology);
    SpyJob job(counts, kLimits);
    for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
      EXPECT_EQ(job[rank].is_initialized(), one["is_initialized_before"].get<bool>());
    }
    ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
    for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
      EXPECT_EQ(job[rank].is_initialized(), one["is_initialized_after"].get<bool>());
      EXPECT_TRUE(job[rank].init_afd_connector(Deadline::now()));  // second_call_is_noop
    }
    for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
      job[rank].close();
      EXPECT_EQ(job[rank].is_initialized(), one["after_close"]["is_initialized"].get<bool>());
      job[rank].close();  // close_twice_ok
    }
  }
  EXPECT_EQ(num_ranks_seen, 17u);
  EXPECT_EQ(topologies.size(), 5u);
}

// fail_at: pg1 and store are the meeting, comm1 and comm2 the memory, pg2 what comes last. Ours
// fails in creating a window and in mapping a peer's; the meeting's failures are the session's
// tests.
TEST(P2pInitGoldenTest, AFailedInitLeavesNothingAndCanBeRepeated) {
  for (const Json& one : golden()["init_failures"]) {
    EXPECT_FALSE(one["is_initialized"].get<bool>());
    EXPECT_EQ(one["registered_comms_after_close"], 0);
  }
  EXPECT_EQ(golden()["init_failures"].size(), 5u);
  const std::size_t num_fds = session::testing::num_open_fds();
  const std::size_t num_threads = session::testing::num_threads();
  for (const char* refused : {"create", "attach"}) {
    SCOPED_TRACE(refused);
    SpyJob job({1, 1}, kLimits);
    job.spy.refuse = refused;
    bool says_why = false;
    for (const Result<void>& result : job.init()) {
      ASSERT_FALSE(result);
      says_why = says_why || result.error().message.find(std::string("injected ") + refused) !=
                                 std::string::npos;
    }
    EXPECT_TRUE(says_why);
    for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
      EXPECT_FALSE(job[rank].is_initialized());
      job[rank].close();
    }
    EXPECT_EQ(session::testing::num_open_fds(), num_fds);
    EXPECT_TRUE(session::testing::has_num_threads(num_threads));
    job.spy.refuse.clear();
    ASSERT_NO_FATAL_FAILURE(job.init_or_fail());
  }
}

}  // namespace
}  // namespace afd::p2p
