// The order and the contents of sends and receives of the reference's P2P connector hold at the
// contract's surface of ours.
//
// The vectors (tests/data/golden/p2p_datapath.json) are traces of the reference over recorded
// transports, one a call. A trace's sends are what the other side has to receive here, its receives
// what the other side sends; where the reference only records, both sides run. Every case is in one
// of three lists below: replayed, deliberately different (with what ours does instead), or without
// a counterpart. A case that is in none fails the test.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "conformance/builtin_under_test.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json data = [] {
    std::ifstream file(AFD_TEST_DATA "/golden/p2p_datapath.json");
    return Json::parse(file);
  }();
  return data;
}

TransferLimits golden_limits() {
  return {.hidden_size = 2,
          .num_layers = 4,
          .num_experts = 3,
          .max_num_tokens = 16,
          .num_stages = 2,
          .dtype = kFloat32};
}

JobSpec golden_job(RankCounts counts) {
  return {.counts = counts, .limits = golden_limits()};
}

/// A float tensor of a trace's or result's `shape` and `data`.
Tensor tensor_of(const Json& shape, const Json& data) {
  const Shape extents = shape.size() == 1
                            ? Shape{shape[0].get<std::uint64_t>()}
                            : Shape{shape[0].get<std::uint64_t>(), shape[1].get<std::uint64_t>()};
  Tensor tensor(extents, kFloat32);
  for (std::size_t i = 0; i < data.size(); ++i) {
    tensor.as<float>()[i] = data[i].get<float>();
  }
  return tensor;
}

Tensor tensor_of(const Json& sent) {
  return tensor_of(sent["shape"], sent["data"]);
}

bool check_same(Rank& rank, ConstTensorView found, const Tensor& wanted, const char* what,
                Place place = {}) {
  return rank.check(found.shape == wanted.shape() &&
                        std::memcmp(found.data, wanted.view().data,
                                    static_cast<std::size_t>(wanted.view().size_bytes())) == 0,
                    std::string(what) + " differ from the golden ones", place);
}

/// "torch.Size([3, 2])" is how torch prints a shape.
std::string without_torch(std::string text) {
  const std::string open = "torch.Size(";
  if (const std::size_t at = text.find(open); at != std::string::npos) {
    text.erase(at, open.size());
    text.erase(text.find(')', at), 1);
  }
  return text;
}

template <typename T>
void check_golden_error(Rank& rank, const Result<T>& result, ErrorCode code,
                        const Json& golden_case, Place place = {}) {
  const std::string message = without_torch(golden_case["error"]["message"].get<std::string>());
  rank.check_error(result, code, {message}, golden_case["name"].get<std::string>(), place);
}

StepPlan plan_of(std::vector<std::vector<std::int32_t>> counts) {
  return {.counts = std::move(counts)};
}

constexpr std::chrono::milliseconds kNothing{20};

// --- Attention sends -------------------------------------------------------------------------

// One attention rank sends what the trace holds: hidden states, then perhaps router logits.
void replay_attention_send(CaseRun& run, const Json& golden_case) {
  run.job(golden_job({1, 1}), [&golden_case](Rank& rank) {
    const Json& trace = golden_case["trace"];
    const bool logits = trace.size() == 2;
    const Tensor hidden = tensor_of(trace[0]);
    const auto rows = static_cast<std::uint32_t>(hidden.shape()[0]);
    begin_step(rank, plan_of({{static_cast<std::int32_t>(rows)}}));
    if (rank.is_attention()) {
      const Tensor router_logits = logits ? tensor_of(trace[1]) : Tensor();
      SendAttnOptions options{.deadline = rank.soon()};
      if (logits) {
        options.router_logits = router_logits.view();
      }
      rank.require(
          rank.connector().send_attn_output(hidden.view(), context_of(0, 0, rows), options),
          "send");
      rank.barrier();
      return;
    }
    RecvAttnOptions options{.deadline = rank.soon()};
    if (logits) {
      options.routing_spec = ExpertRoutingSpec{3, kFloat32};
    }
    const auto payload = rank.require(rank.connector().recv_attn_output(0, options), "receive");
    check_same(rank, payload.hidden_states, hidden, "the hidden states");
    if (logits) {
      check_same(rank, payload.router_logits, tensor_of(trace[1]), "the router logits");
    }
    rank.check(payload.context.states == nullptr, "states are not null");
    rank.barrier();
  });
}

void check_nothing_arrives(Rank& rank, Place place = {}) {
  rank.check_error(rank.connector().recv_attn_output(0, {.deadline = Deadline::after(kNothing)}),
                   ErrorCode::kDeadlineExceeded, {}, "a receive of what was refused", place);
}

// A send that the reference refuses: ours does too, with its message, and nothing arrives.
void replay_refused_send(CaseRun& run, const Json& golden_case, std::uint32_t metadata_rows,
                         std::uint64_t logit_rows, std::uint32_t announced) {
  run.job(golden_job({1, 1}), [&, metadata_rows, logit_rows, announced](Rank& rank) {
    begin_step(rank, plan_of({{static_cast<std::int32_t>(announced)}}));
    if (rank.is_attention()) {
      const Tensor hidden({3, 2}, kFloat32);
      const Tensor logits({std::max<std::uint64_t>(1, logit_rows), 3}, kFloat32);
      SendAttnOptions options{.deadline = rank.soon()};
      if (logit_rows > 0) {
        options.router_logits = logits.view();
      }
      check_golden_error(rank,
                         rank.connector().send_attn_output(
                             hidden.view(), context_of(0, 0, metadata_rows), options),
                         ErrorCode::kInvalidArgument, golden_case);
      rank.barrier();
      rank.barrier();
      return;
    }
    rank.barrier();
    check_nothing_arrives(rank);
    rank.barrier();
  });
}

// What the reference lets through and ours refuses, since nothing could check it later: with a text
// that says what is wrong, and nothing arrives.
void ours_refuses_send(CaseRun& run, Shape shape, std::int32_t announced, std::string_view text) {
  run.job(golden_job({1, 1}), [&](Rank& rank) {
    begin_step(rank, plan_of({{announced}}));
    if (rank.is_attention()) {
      const Tensor hidden(shape, kFloat32);
      rank.check_error(rank.connector().send_attn_output(
                           hidden.view(), context_of(0, 0, static_cast<std::uint32_t>(shape[0])),
                           {.deadline = rank.soon()}),
                       ErrorCode::kInvalidArgument, {text}, "send_attn_output");
      rank.barrier();
      rank.barrier();
      return;
    }
    rank.barrier();
    check_nothing_arrives(rank);
    rank.barrier();
  });
}

// --- Attention receives ----------------------------------------------------------------------

// The FFN rank sends the golden data; the attention rank receives it into a tensor or a view.
void replay_attention_receive(CaseRun& run, const Json& golden_case) {
  run.job(golden_job({1, 1}), [&golden_case](Rank& rank) {
    const Json& ok = golden_case["ok"];
    const Tensor wanted = tensor_of(ok["shape"], ok["data"]);
    const auto rows = static_cast<std::uint32_t>(wanted.shape()[0]);
    begin_step(rank, plan_of({{static_cast<std::int32_t>(rows)}}));
    if (rank.is_ffn()) {
      const auto payload =
          rank.require(rank.connector().recv_attn_output(0, {.deadline = rank.soon()}), "receive");
      rank.require(rank.connector().send_ffn_output({.routed_output = wanted.view()},
                                                    payload.context, {.deadline = rank.soon()}),
                   "send");
      return;
    }
    Tensor own({rows, 2}, kFloat32);
    rank.require(rank.connector().send_attn_output(own.view(), context_of(0, 0, rows),
                                                   {.deadline = rank.soon()}),
                 "send");
    const bool into_ref = ok["same_object_as_ref"].get<bool>();
    const TensorView received =
        rank.require(rank.connector().recv_ffn_output(into_ref ? own.view() : TensorView{}, 0,
                                                      {.deadline = rank.soon()}),
                     "receive");
    rank.check((received.data == own.view().data) == into_ref, "another tensor was returned");
    check_same(rank, received, wanted, "the output");
  });
}

// A reference tensor that does not fit makes the reference allocate or follow it; ours refuses.
void ours_refuses_ref(CaseRun& run, Shape shape, DType dtype) {
  run.job(golden_job({1, 1}), [&](Rank& rank) {
    begin_step(rank, plan_of({{3}}));
    if (rank.is_attention()) {
      Tensor ref(shape, dtype);
      const Tensor hidden({3, 2}, kFloat32);
      rank.require(rank.connector().send_attn_output(hidden.view(), context_of(0, 0, 3),
                                                     {.deadline = rank.soon()}),
                   "send");
      rank.check_error(rank.connector().recv_ffn_output(ref.view(), 0, {.deadline = rank.soon()}),
                       ErrorCode::kInvalidArgument, {"ref_tensor"}, "recv_ffn_output");
    }
  });
}

// --- FFN receives ----------------------------------------------------------------------------

// Every attention rank of the FFN rank sends its share of the golden tensors.
void replay_ffn_receive(CaseRun& run, const Json& golden_case, RankCounts counts,
                        std::uint32_t ffn_rank) {
  run.job(golden_job(counts), [&, ffn_rank](Rank& rank) {
    const Json& ok = golden_case["ok"];
    const auto stage = ok["stage_idx"].get<std::uint32_t>();
    const bool logits = !ok["router_logits"].is_null();
    const std::vector<std::uint32_t> rows = ok["seq_lens"].get<std::vector<std::uint32_t>>();
    const std::vector<std::uint32_t> peers =
        build_rank_mapping(counts.num_attention_ranks, counts.num_ffn_ranks, Role::kFfn, ffn_rank)
            ->peers;
    std::vector<std::int32_t> per_rank(counts.num_attention_ranks, 1);
    for (std::size_t peer = 0; peer < peers.size(); ++peer) {
      per_rank[peers[peer]] = static_cast<std::int32_t>(rows[peer]);
    }
    StepPlan plan = plan_of({per_rank, per_rank});
    begin_step(rank, plan);
    const Tensor hidden = tensor_of(ok["hidden_shape"], ok["hidden"]);
    const Tensor all_logits = logits ? tensor_of(ok["router_logits"]) : Tensor();
    if (rank.is_attention()) {
      const auto found = std::find(peers.begin(), peers.end(), rank.role_rank());
      if (found != peers.end()) {
        const auto peer = static_cast<std::size_t>(found - peers.begin());
        std::uint32_t first = 0;
        for (std::size_t earlier = 0; earlier < peer; ++earlier) {
          first += rows[earlier];
        }
        SendAttnOptions options{.deadline = rank.soon()};
        if (logits) {
          options.router_logits = slice(all_logits.view(), first, rows[peer]);
        }
        rank.require(rank.connector().send_attn_output(slice(hidden.view(), first, rows[peer]),
                                                       context_of(0, stage, rows[peer]), options),
                     "send");
      }
      rank.barrier();
      return;
    }
    if (rank.role_rank() == ffn_rank) {
      RecvAttnOptions options{.deadline = rank.soon()};
      if (logits) {
        options.routing_spec = ExpertRoutingSpec{3, kFloat32};
      }
      const auto payload =
          rank.require(rank.connector().recv_attn_output(stage, options), "receive");
      check_same(rank, payload.hidden_states, hidden, "the hidden states");
      if (logits) {
        check_same(rank, payload.router_logits, all_logits, "the router logits");
      }
      const TransferMetadata& metadata = payload.context.metadata;
      rank.check_equal(metadata.layer_idx, ok["layer_idx"].get<std::uint32_t>(), "layer_idx");
      rank.check_equal(metadata.stage_idx, stage, "stage_idx");
      rank.check(
          std::equal(metadata.seq_lens.begin(), metadata.seq_lens.end(), rows.begin(), rows.end()),
          "the seq_lens differ from the golden ones");
    }
    rank.barrier();
  });
}

void replay_unknown_stage(CaseRun& run, const Json& golden_case) {
  run.job(golden_job({2, 1}), [&golden_case](Rank& rank) {
    begin_step(rank, plan_of({{2, 3}}));
    if (rank.is_ffn()) {
      // A KeyError's message is its key.
      rank.check_error(rank.connector().recv_attn_output(1, {.deadline = rank.soon()}),
                       ErrorCode::kInvalidArgument,
                       {golden_case["error"]["message"].get<std::string>()}, "recv_attn_output");
    }
  });
}

// --- FFN sends -------------------------------------------------------------------------------

// The FFN rank sends all rows of the trace; each attention rank receives those of its message.
void replay_ffn_send(CaseRun& run, const Json& golden_case) {
  const auto num_peers = static_cast<std::uint32_t>(golden_case["trace"].size());
  run.job(golden_job({num_peers, 1}), [&golden_case](Rank& rank) {
    const Json& trace = golden_case["trace"];
    std::vector<std::int32_t> rows;
    Json all = Json::array();
    for (const Json& sent : trace) {
      rows.push_back(sent["shape"][0].get<std::int32_t>());
      all.insert(all.end(), sent["data"].begin(), sent["data"].end());
    }
    begin_step(rank, plan_of({rows}));
    if (rank.is_ffn()) {
      const auto payload =
          rank.require(rank.connector().recv_attn_output(0, {.deadline = rank.soon()}), "receive");
      const Tensor output = tensor_of(Json{all.size() / 2, 2}, all);
      rank.require(rank.connector().send_ffn_output({.routed_output = output.view()},
                                                    payload.context, {.deadline = rank.soon()}),
                   "send");
      rank.barrier();
      return;
    }
    const auto own_rows = static_cast<std::uint32_t>(rows[rank.role_rank()]);
    const Tensor hidden({own_rows, 2}, kFloat32);
    rank.require(rank.connector().send_attn_output(hidden.view(), context_of(0, 0, own_rows),
                                                   {.deadline = rank.soon()}),
                 "send");
    // Subgroup rank 1 is the first attention rank.
    const auto& sent = *std::find_if(trace.begin(), trace.end(), [&](const Json& message) {
      return message["dst"].get<std::uint32_t>() == rank.role_rank() + 1;
    });
    check_same(
        rank,
        rank.require(rank.connector().recv_ffn_output({}, 0, {.deadline = rank.soon()}), "receive"),
        tensor_of(sent), "the output");
    rank.barrier();
  });
}

// The FFN rank answers with other lengths than it received. `lengths` sum up to the rows it sends.
void ffn_send_of_lengths(CaseRun& run, std::vector<std::int32_t> rows, std::uint64_t output_rows,
                         std::vector<std::uint32_t> lengths, ErrorCode code, std::string message) {
  run.job(golden_job({static_cast<std::uint32_t>(rows.size()), 1}), [&](Rank& rank) {
    begin_step(rank, plan_of({rows}));
    if (rank.is_ffn()) {
      const auto payload =
          rank.require(rank.connector().recv_attn_output(0, {.deadline = rank.soon()}), "receive");
      TransferContext context = payload.context;
      context.metadata.seq_lens = {};
      for (std::uint32_t length : lengths) {
        context.metadata.seq_lens.push_back(length);
      }
      const Tensor output({output_rows, 2}, kFloat32);
      rank.check_error(rank.connector().send_ffn_output({.routed_output = output.view()}, context,
                                                        {.deadline = rank.soon()}),
                       code, {message}, "send_ffn_output");
      rank.barrier();
      rank.barrier();
      return;
    }
    const auto own_rows = static_cast<std::uint32_t>(rows[rank.role_rank()]);
    const Tensor hidden({own_rows, 2}, kFloat32);
    rank.require(rank.connector().send_attn_output(hidden.view(), context_of(0, 0, own_rows),
                                                   {.deadline = rank.soon()}),
                 "send");
    rank.barrier();
    rank.check_error(
        rank.connector().recv_ffn_output({}, 0, {.deadline = Deadline::after(kNothing)}),
        ErrorCode::kDeadlineExceeded, {}, "a receive of what was refused");
    rank.barrier();
  });
}

// --- Not initialised -------------------------------------------------------------------------

void replay_not_initialized(CaseRun& run, const Json& golden_case,
                            const std::function<Result<void>(Rank& rank)>& call) {
  JobSpec spec = golden_job({1, 1});
  spec.init = false;
  run.job(spec, [&](Rank& rank) {
    check_golden_error(rank, call(rank), ErrorCode::kFailedPrecondition, golden_case);
  });
}

Result<void> drop(auto result) {
  return result ? Result<void>() : Result<void>(afd::fail(std::move(result).error()));
}

// --- The lists -------------------------------------------------------------------------------

using Replay = std::function<void(CaseRun& run, const Json& golden_case)>;

const std::map<std::string, Replay>& replayed() {
  static const Tensor three({3, 2}, kFloat32);
  static const std::map<std::string, Replay> all = {
      {"attention_send_with_router_logits", replay_attention_send},
      {"attention_send_router_logits_none", replay_attention_send},
      {"attention_send_shape_mismatch",
       [](auto& run, auto& c) { replay_refused_send(run, c, 4, 0, 3); }},
      {"attention_send_router_mismatch",
       [](auto& run, auto& c) { replay_refused_send(run, c, 3, 2, 3); }},
      {"attention_send_shape_error_precedes_router_error",
       [](auto& run, auto& c) { replay_refused_send(run, c, 4, 2, 3); }},
      {"attention_send_not_initialized",
       [](auto& run, auto& c) {
         replay_not_initialized(run, c, [](Rank& rank) {
           return rank.connector().send_attn_output(three.view(), context_of(0, 0, 3), {});
         });
       }},
      {"attention_recv_into_ref", replay_attention_receive},
      {"attention_recv_none_ref_allocates_control_shape", replay_attention_receive},
      {"attention_recv_not_initialized",
       [](auto& run, auto& c) {
         replay_not_initialized(
             run, c, [](Rank& rank) { return drop(rank.connector().recv_ffn_output({}, 0, {})); });
       }},
      {"ffn_recv_two_peers_router_logits_interleaved",
       [](auto& run, auto& c) {
         replay_ffn_receive(run, c, {2, 1}, 0);
       }},
      {"ffn_recv_one_peer_router_logits",
       [](auto& run, auto& c) {
         replay_ffn_receive(run, c, {1, 1}, 0);
       }},
      {"ffn_recv_stage_1",
       [](auto& run, auto& c) {
         replay_ffn_receive(run, c, {2, 1}, 0);
       }},
      {"ffn_recv_8a2f_ffn1",
       [](auto& run, auto& c) {
         replay_ffn_receive(run, c, {8, 2}, 1);
       }},
      {"ffn_recv_unknown_stage", replay_unknown_stage},
      {"ffn_recv_not_initialized",
       [](auto& run, auto& c) {
         replay_not_initialized(
             run, c, [](Rank& rank) { return drop(rank.connector().recv_attn_output(0, {})); });
       }},
      {"ffn_send_ratio1", replay_ffn_send},
      {"ffn_send_ratio2_split_by_seq_lens", replay_ffn_send},
      {"ffn_send_ratio4_uneven", replay_ffn_send},
      {"ffn_send_shape_mismatch",
       [](auto& run, auto& c) {
         ffn_send_of_lengths(run, {3, 5}, 7, {3, 5}, ErrorCode::kInvalidArgument,
                             without_torch(c["error"]["message"].template get<std::string>()));
       }},
      {"ffn_send_not_initialized",
       [](auto& run, auto& c) {
         replay_not_initialized(run, c, [](Rank& rank) {
           return rank.connector().send_ffn_output({.routed_output = three.view()},
                                                   context_of(0, 0, 3), {});
         });
       }},
  };
  return all;
}

constexpr const char* kAcrossPeers = "FFN output across Attention peers";

struct Different {
  const char* why;
  Replay ours;
};

const std::map<std::string, Different>& different() {
  static const std::map<std::string, Different> all = {
      {"attention_send_hidden_width_not_checked",
       {"width and dtype are checked by the sender (R9)",
        [](auto& run, auto&) {
          ours_refuses_send(run, {3, 5}, 3, "has shape [3, 5], expected [num_tokens, 2]");
        }}},
      {"attention_send_1d_tensor_ok",
       {"hidden states have two dimensions",
        [](auto& run, auto&) {
          ours_refuses_send(run, {3}, 3, "has shape [3], expected [num_tokens, 2]");
        }}},
      {"attention_send_not_checked_against_control_counts",
       {"rows are those that the control plane announced (R1)",
        [](auto& run, auto&) {
          ours_refuses_send(run, {3, 2}, 9, "has 3 rows, the control plane announced 9");
        }}},
      {"attention_recv_dynamic_first_dim_follows_ref",
       {"a receive fills what was sent for, no more",
        [](auto& run, auto&) {
          ours_refuses_ref(run, {7, 2}, kFloat32);
        }}},
      {"attention_recv_dtype_mismatch_allocates",
       {"a ref_tensor that does not fit is an error, not ignored",
        [](auto& run, auto&) {
          ours_refuses_ref(run, {3, 2}, kFloat64);
        }}},
      {"attention_recv_width_mismatch_allocates_hidden_width",
       {"a ref_tensor that does not fit is an error, not ignored",
        [](auto& run, auto&) {
          ours_refuses_ref(run, {3, 5}, kFloat32);
        }}},
      {"attention_recv_3d_ref_allocates_2d",
       {"a ref_tensor that does not fit is an error, not ignored",
        [](auto& run, auto&) {
          ours_refuses_ref(run, {3, 1, 2}, kFloat32);
        }}},
      {"ffn_send_ratio1_many_seq_lens_still_one_message",
       {"lengths that do not fit are a mismatch: rows could go to the wrong rank",
        [](auto& run, auto&) {
          ffn_send_of_lengths(run, {4}, 4, {1, 3}, ErrorCode::kProtocolMismatch, kAcrossPeers);
        }}},
      {"ffn_send_ratio2_three_seq_lens_even_split",
       {"lengths that do not fit are a mismatch: rows could go to the wrong rank",
        [](auto& run, auto&) {
          ffn_send_of_lengths(run, {4, 4}, 8, {2, 2, 4}, ErrorCode::kProtocolMismatch,
                              kAcrossPeers);
        }}},
      {"ffn_send_ratio2_odd_total_cannot_split",
       {"there is no even split that could fail; the lengths are a mismatch",
        [](auto& run, auto&) {
          ffn_send_of_lengths(run, {3, 4}, 7, {7}, ErrorCode::kProtocolMismatch, kAcrossPeers);
        }}},
  };
  return all;
}

const std::map<std::string, const char*>& without_counterpart() {
  static const std::map<std::string, const char*> all = {
      {"attention_send_unknown_kwargs_ignored", "options are typed: there are no unknown ones"},
      {"attention_send_cpu_tensor", "our tensors are on the CPU"},
      {"attention_send_router_on_cpu_after_hidden_sent",
       "our tensors are on the CPU; R9 has tests"},
      {"attention_send_single_rank_group_noop", "a subgroup has at least two ranks"},
      {"attention_send_shape_check_skipped_while_compiling", "there is no tracing compiler"},
      {"attention_recv_single_rank_returns_ref", "a subgroup has at least two ranks"},
      {"ffn_recv_missing_peer_entry_falls_back_to_total", "the layout always has every peer"},
      {"ffn_recv_graph_mode_aliases_stable_buffer_when_ratio_1", "there are no device graphs"},
      {"ffn_recv_graph_mode_concat_is_fresh_tensor_when_ratio_2", "nothing is concatenated"},
      {"ffn_send_single_rank_group_noop", "a subgroup has at least two ranks"},
      {"raw_send_destination_out_of_range", "peers are not arguments"},
      {"raw_send_negative_destination_not_rejected", "peers are not arguments"},
      {"raw_recv_source_out_of_range", "peers are not arguments"},
      {"raw_send_error_order_group_none_first", "peers are not arguments"},
  };
  return all;
}

// --- Tests -----------------------------------------------------------------------------------

TEST(P2pDatapathGoldenTest, EveryCaseIsInOneList) {
  std::size_t num_cases = 0;
  for (const Json& golden_case : golden()["data_path"]) {
    const std::string name = golden_case["name"];
    EXPECT_EQ(replayed().count(name) + different().count(name) + without_counterpart().count(name),
              1u)
        << name;
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 44u);
  EXPECT_EQ(replayed().size(), 20u);
  EXPECT_EQ(different().size(), 10u);
  EXPECT_EQ(without_counterpart().size(), 14u);
  // Of process groups and communicators, of which ours has none; what a caller sees of init and the
  // order of publishes are in src/connectors/p2p/p2p_order_golden_test.cc.
  EXPECT_EQ(golden()["init"].size(), 17u);
  EXPECT_EQ(golden()["init_failures"].size(), 5u);
}

struct Setting {
  std::string connector;
  Mode mode = Mode::kThreads;
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.connector << (setting.mode == Mode::kThreads ? ", threads" : ", forked");
}

class P2pDatapathGolden : public ::testing::TestWithParam<Setting> {
 protected:
  void expect_no_failure(const std::string& name, const std::function<void(CaseRun& run)>& body) {
    CaseRun run(connector_, GetParam().mode);
    body(run);
    for (const std::string& failure : run.take().failures) {
      ADD_FAILURE() << name << ": " << failure;
    }
  }
  ConnectorUnderTest connector_ = builtin_under_test(GetParam().connector);
};

TEST_P(P2pDatapathGolden, SendsAndReceivesAreThoseOfTheReference) {
  for (const Json& golden_case : golden()["data_path"]) {
    const std::string name = golden_case["name"];
    if (const auto found = replayed().find(name); found != replayed().end()) {
      expect_no_failure(name, [&](CaseRun& run) { found->second(run, golden_case); });
    }
  }
}

TEST_P(P2pDatapathGolden, DeliberateDifferencesAreErrors) {
  for (const Json& golden_case : golden()["data_path"]) {
    const std::string name = golden_case["name"];
    if (const auto found = different().find(name); found != different().end()) {
      expect_no_failure(name, [&](CaseRun& run) { found->second.ours(run, golden_case); });
    }
  }
}

// Each designated sender sends a payload with its own number in it; every FFN rank tells on the
// board whose it got. Then each rank compares with its golden case.
TEST_P(P2pDatapathGolden, ControlPayloadsGoWhereTheReferenceSendsThem) {
  std::map<std::string, std::vector<Json>> by_topology;
  for (const Json& golden_case : golden()["control_plane_routing"]) {
    by_topology[golden_case["topology"]].push_back(golden_case);
  }
  std::size_t num_cases = 0;
  for (const auto& [topology, cases] : by_topology) {
    RankCounts counts;
    ASSERT_EQ(
        std::sscanf(topology.c_str(), "%uA%uF", &counts.num_attention_ranks, &counts.num_ffn_ranks),
        2);
    num_cases += cases.size();
    expect_no_failure(topology, [&](CaseRun& run) {
      run.job(golden_job(counts), [&](Rank& rank) {
        const auto payload = [](std::uint32_t sender) {
          return plan_of({{static_cast<std::int32_t>(sender) + 1}}).payload();
        };
        // A no-op for all but the designated senders, FFN ranks included.
        rank.require(rank.control().send_dp_metadata_list(payload(rank.role_rank()), rank.soon()),
                     "send_dp_metadata_list");
        rank.barrier();
        if (rank.is_ffn()) {
          const auto received =
              rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "receive");
          rank.require_that(received.has_value(), "the job is done before it began");
          rank.post(rank.role_rank(),
                    static_cast<std::uint64_t>(
                        received->dp_metadata_list.at(0).num_tokens_across_dp.at(0)));
          rank.check_error(rank.control().recv_dp_metadata_list(Deadline::now()),
                           ErrorCode::kDeadlineExceeded, {}, "a second payload");
        } else {
          // The reference has no role guard here; ours does (R10).
          rank.check_error(rank.control().recv_dp_metadata_list(Deadline::now()),
                           ErrorCode::kFailedPrecondition, {}, "an attention rank's receive");
        }
        rank.barrier();
        for (const Json& golden_case : cases) {
          if (golden_case["role"] != to_string(rank.role()) ||
              golden_case["role_rank"] != rank.role_rank()) {
            continue;
          }
          std::vector<std::uint32_t> destinations;
          std::uint32_t source = 0;
          for (const Json& call : golden_case["calls"]) {
            if (call.contains("dst")) {
              destinations = call["dst"].get<std::vector<std::uint32_t>>();
            } else {
              // Control ranks: FFN ranks first, then the senders.
              source = call["src"].get<std::uint32_t>() - counts.num_ffn_ranks;
            }
          }
          if (rank.is_ffn()) {
            rank.check_equal(rank.board().read(rank.role_rank()), source + 1, "the sender");
            continue;
          }
          std::vector<std::uint32_t> reached;
          for (std::uint32_t ffn = 0; ffn < counts.num_ffn_ranks; ++ffn) {
            if (rank.board().read(ffn) == rank.role_rank() + 1) {
              reached.push_back(ffn);
            }
          }
          rank.check(reached == destinations, "the payload reached other FFN ranks");
        }
        rank.barrier();
      });
    });
  }
  EXPECT_EQ(num_cases, 24u);
}

// control_recv_uninitialized: a receive before init is refused; our message is that of every call.
TEST_P(P2pDatapathGolden, AControlReceiveBeforeInitIsRefused) {
  expect_no_failure("control_recv_uninitialized", [&](CaseRun& run) {
    JobSpec spec = golden_job({1, 1});
    spec.init = false;
    run.job(spec, [](Rank& rank) {
      rank.check_error(rank.control().recv_dp_metadata_list(rank.soon()),
                       ErrorCode::kFailedPrecondition, {"not initialized"},
                       "recv_dp_metadata_list");
    });
  });
}

INSTANTIATE_TEST_SUITE_P(All, P2pDatapathGolden,
                         ::testing::Values(Setting{"InProcessAFDConnector", Mode::kThreads},
                                           Setting{"P2pShmAFDConnector", Mode::kThreads},
                                           Setting{"P2pShmAFDConnector", Mode::kForked}),
                         [](const auto& setting) {
                           return setting.param.connector +
                                  (setting.param.mode == Mode::kThreads ? "_Threads" : "_Forked");
                         });

}  // namespace
}  // namespace afd::conformance
