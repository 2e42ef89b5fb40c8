// R1: a transfer carries epoch, step, layer, stage, source rank, rows, row shape and dtype; the
// receiver checks them, and a difference is ProtocolMismatch naming both sides' view.
#include <string>
#include <thread>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

// Goal: what arrives is what was sent, for every element type and a width that is no multiple of
// anything.
// Method: two layers of every dtype that the connector names, each byte checked on both sides.
void rows_arrive_as_sent(CaseRun& run) {
  for (DType dtype : run.connector().capabilities.dtypes) {
    JobSpec spec{.counts = run.fan_in()};
    spec.limits.hidden_size = 7;
    spec.limits.dtype = dtype;
    run.job(spec, [](Rank& rank) {
      const StepPlan plan{.counts = {{3, 5}, {1, 8}}};
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        for (std::uint32_t layer : {0u, 1u}) {
          for (std::uint32_t stage : {0u, 1u}) {
            attention.send(layer, stage);
            attention.receive(layer, stage);
          }
        }
        return;
      }
      FfnDriver ffn(rank);
      ffn.begin(plan);
      for (std::uint32_t layer : {0u, 1u}) {
        for (std::uint32_t stage : {0u, 1u}) {
          ffn.receive(layer, stage);
          ffn.send(layer, stage);
        }
      }
    });
  }
}

// Goal: a sender whose row count differs from the receiver's is refused, not cut or padded.
// Method: the FFN rank applies another count than the attention rank did; the receive must name
// the sender, the stage and both counts. The second peer's difference counts as much as the
// first's.
void other_rows_are_a_mismatch(CaseRun& run) {
  for (const bool second_peer : {false, true}) {
    run.job({.counts = {2, 1}}, [second_peer](Rank& rank) {
      const StepPlan sent{.counts = {{3, 5}, {3, 5}}};
      StepPlan expected = sent;
      expected.counts[1] = second_peer ? std::vector{3, 6} : std::vector{2, 5};
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(sent);
        // The first peer's count moves the second one's rows, which would be a mismatch of its own.
        if (second_peer || rank.role_rank() == 0) {
          attention.send(0, 1);
        }
        rank.barrier();
        rank.barrier();
        return;
      }
      rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "recv_dp_metadata_list");
      rank.require(rank.control().update_state_from_dp_metadata(expected.payload()), "update");
      rank.barrier();
      FfnDriver ffn(rank);
      const auto result = ffn.try_receive(1, {}, rank.soon());
      if (second_peer) {
        rank.check_error(result, ErrorCode::kProtocolMismatch,
                         {"attention rank 1", "stage 1", "5", "6"},
                         "a receive of 5 rows where 6 were announced");
      } else {
        rank.check_error(result, ErrorCode::kProtocolMismatch,
                         {"attention rank 0", "stage 1", "3", "2"},
                         "a receive of 3 rows where 2 were announced");
      }
      rank.barrier();
    });
  }
}

// Goal: the peers of one set are in the same layer.
// Method: two attention ranks send different layers of one stage.
void peers_agree_on_the_layer(CaseRun& run) {
  run.job({.counts = {2, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(rank.role_rank() == 0 ? 17 : 18, 0);
      rank.barrier();
      rank.barrier();
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.barrier();
    rank.check_error(ffn.try_receive(0, {}, rank.soon()), ErrorCode::kProtocolMismatch,
                     {"attention rank", "stage 0", "layer", "17", "18"},
                     "a receive of layers 17 and 18 as one");
    rank.barrier();
  });
}

// Goal: both sides are in the same step.
// Method: the attention rank starts two steps while the FFN rank has applied one, and the other way
// round.
void another_step_is_a_mismatch(CaseRun& run) {
  for (const bool attention_ahead : {true, false}) {
    run.job({.counts = {1, 1}}, [attention_ahead](Rank& rank) {
      const StepPlan plan = even_step(rank, 2);
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        if (attention_ahead) {
          attention.begin(plan);
        }
        attention.send(0, 0);
        rank.barrier();
        rank.barrier();
        return;
      }
      FfnDriver ffn(rank);
      ffn.begin(plan);
      if (!attention_ahead) {
        rank.require(rank.control().update_state_from_dp_metadata(plan.payload()), "update");
      }
      rank.barrier();
      rank.check_error(ffn.try_receive(0, {}, rank.soon()), ErrorCode::kProtocolMismatch,
                       {"attention rank 0", "stage 0", "step"}, "a receive of another step");
      rank.barrier();
    });
  }
}

// Goal: what was left behind by an earlier join is never received.
// Method: the ranks part with one transfer under way in each direction, meet again, and look: there
// is nothing. What they then send arrives.
void an_earlier_epoch_is_not_received(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    for (std::uint64_t round = 1; round <= 2; ++round) {
      StepPlan now = plan;
      now.step = round;
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(now);
        if (round == 2) {
          rank.barrier();  // the FFN rank has looked for stale data
        }
        attention.send(5, 0);
        if (round == 2) {
          // The FFN rank answered stage 1 before the ranks parted.
          attention.receive(5, 0);
          attention.send(6, 1);
          rank.check_error(attention.try_receive(1, {}, Deadline::now()),
                           ErrorCode::kDeadlineExceeded, {},
                           "a receive of the last epoch's output");
          rank.barrier();
          attention.receive(6, 1);
        } else {
          attention.send(6, 1);
          rank.barrier();
        }
      } else {
        FfnDriver ffn(rank);
        ffn.begin(now);
        if (round == 2) {
          rank.check_error(ffn.try_receive(0, {}, Deadline::now()), ErrorCode::kDeadlineExceeded,
                           {}, "a receive of the last epoch's transfer");
          rank.barrier();
          ffn.receive(5, 0);
          ffn.send(5, 0);
          rank.barrier();
          ffn.receive(6, 1);
          ffn.send(6, 1);
        } else {
          ffn.receive(6, 1);
          ffn.send(6, 1);
          rank.barrier();
        }
      }
      if (round == 1) {
        rank.barrier();
        rank.connector().close();
        rank.barrier();
        rank.require(rank.connector().init_afd_connector(rank.soon()), "init again");
      }
    }
  });
}

// Goal: router logits arrive where they are expected and nowhere else.
// Method: all four combinations of sending and expecting them.
void router_logits_are_agreed(CaseRun& run) {
  for (const bool sent : {false, true}) {
    for (const bool expected : {false, true}) {
      run.job({.counts = {1, 1}, .compute_gate_on_attention = true}, [=](Rank& rank) {
        const StepPlan plan = even_step(rank, 3);
        if (rank.is_attention()) {
          AttentionDriver attention(rank);
          attention.begin(plan);
          attention.send(2, 1, {.router_logits = sent});
          rank.barrier();
          rank.barrier();
          return;
        }
        FfnDriver ffn(rank);
        ffn.begin(plan);
        rank.barrier();
        if (sent == expected) {
          ffn.receive(2, 1, {.router_logits = expected});
        } else {
          rank.check_error(ffn.try_receive(1, {.router_logits = expected}, rank.soon()),
                           ErrorCode::kProtocolMismatch,
                           {"attention rank 0", "stage 1", "router logits"},
                           sent ? "a receive that expects no router logits"
                                : "a receive that expects router logits");
        }
        rank.barrier();
      });
    }
  }
}

// Goal: a receive that ran out of time binds nobody, and what it had found right is no excuse: a
// repeat with another view of the router logits is judged by its own.
// Method: one of two peers has sent when the first call ends, the other before the second, which
// expects the opposite. Both views, once each way round.
void a_repeated_receive_is_judged_by_its_own_view(CaseRun& run) {
  for (const bool expected : {true, false}) {
    run.job({.counts = {2, 1}, .compute_gate_on_attention = true}, [expected](Rank& rank) {
      const StepPlan plan = even_step(rank, 3);
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        if (rank.role_rank() == 0) {
          attention.send(2, 1, {.router_logits = !expected});
        }
        rank.barrier();
        rank.barrier();  // the first call has ended
        if (rank.role_rank() == 1) {
          attention.send(2, 1, {.router_logits = !expected});
        }
        rank.barrier();
        rank.barrier();
        return;
      }
      FfnDriver ffn(rank);
      ffn.begin(plan);
      rank.barrier();
      rank.check_error(ffn.try_receive(1, {.router_logits = !expected}, Deadline::now()),
                       ErrorCode::kDeadlineExceeded, {"attention rank 1"},
                       "a receive with one of two");
      rank.barrier();
      rank.barrier();
      rank.check_error(ffn.try_receive(1, {.router_logits = expected}, rank.soon()),
                       ErrorCode::kProtocolMismatch, {"attention rank", "stage 1", "router logits"},
                       expected ? "a repeated receive that now expects router logits"
                                : "a repeated receive that no longer expects router logits");
      rank.barrier();
    });
  }
}

struct Difference {
  const char* key;
  const char* attention_value;
  const char* ffn_value;
  void (*apply)(ConnectorParams& params, bool is_attention);
};

constexpr Difference kDifferences[] = {
    {"hidden_size", "12", "24",
     [](ConnectorParams& params, bool attention) {
       params.limits.hidden_size = attention ? 12 : 24;
     }},
    {"num_layers", "64", "61",
     [](ConnectorParams& params, bool attention) {
       params.limits.num_layers = attention ? 64 : 61;
     }},
    {"num_experts", "5", "6",
     [](ConnectorParams& params, bool attention) {
       params.limits.num_experts = attention ? 5 : 6;
     }},
    {"max_num_tokens", "8", "16",
     [](ConnectorParams& params, bool attention) {
       params.limits.max_num_tokens = attention ? 8 : 16;
     }},
    {"num_stages", "2", "1",
     [](ConnectorParams& params, bool attention) { params.limits.num_stages = attention ? 2 : 1; }},
    {"dtype", "float32", "bfloat16",
     [](ConnectorParams& params, bool attention) {
       params.limits.dtype = attention ? kFloat32 : kBFloat16;
     }},
    {"compute_gate_on_attention", "true", "false",
     [](ConnectorParams& params, bool attention) {
       params.config.compute_gate_on_attention = attention;
     }},
    {"model_hash", "a1b2", "c3d4",
     [](ConnectorParams& params, bool attention) {
       params.must_match.emplace_back("model_hash", attention ? "a1b2" : "c3d4");
     }},
};

constexpr std::size_t kInitEndedWord = 1;
constexpr std::size_t kMismatchesWord = 2;

// Goal: what must be equal is compared before the first transfer.
// Method: for each value, init with two views of it. One rank at least fails at once and names key,
// values and ranks; another may wait on for the right one, and is closed.
void values_of_init_must_match(CaseRun& run) {
  for (const Difference& difference : kDifferences) {
    if (std::string_view(difference.key) == "compute_gate_on_attention" &&
        !run.connector().capabilities.router_logits) {
      continue;  // it cannot be set at all
    }
    JobSpec spec{.counts = {1, 1}, .init = false};
    spec.adjust = [&difference](ConnectorParams& params) {
      difference.apply(params, params.config.role == Role::kAttention);
    };
    run.job(spec, [&difference](Rank& rank) {
      const std::string what = std::string("init with two views of ") + difference.key;
      Result<void> met;
      std::thread init([&] {
        met = rank.connector().init_afd_connector(rank.soon());
        rank.post(kInitEndedWord);
      });
      rank.board().await(kInitEndedWord, 1, Board::Clock::now() + 2 * rank.patience());
      rank.connector().close();
      init.join();
      if (met || met.error().code != ErrorCode::kFailedPrecondition) {
        rank.check_error(met, ErrorCode::kProtocolMismatch,
                         {difference.key, difference.attention_value, difference.ffn_value,
                          "attention rank 0", "ffn rank 0"},
                         what);
        rank.board().add(kMismatchesWord, 1);
      }
      rank.check(!rank.connector().is_initialized(), "is_initialized() after an init that failed");
      rank.barrier();
      rank.check(rank.board().read(kMismatchesWord) > 0, what + " was not refused by any rank");
    });
  }
}

}  // namespace

std::vector<Case> r1_identity_cases() {
  return {
      {"R1RowsArriveAsSentInEveryDtype", rows_arrive_as_sent, {}},
      {"R1OtherRowsThanAnnouncedAreAMismatch", other_rows_are_a_mismatch, {}},
      {"R1PeersOfOneSetAgreeOnTheLayer", peers_agree_on_the_layer, {}},
      {"R1AnotherStepIsAMismatch", another_step_is_a_mismatch, {}},
      {"R1AnEarlierEpochIsNotReceived", an_earlier_epoch_is_not_received, {.num_stages = 2}},
      {"R1RouterLogitsAreAgreed", router_logits_are_agreed, {.router_logits = true}},
      {"R1ARepeatedReceiveIsJudgedByItsOwnView",
       a_repeated_receive_is_judged_by_its_own_view,
       {.router_logits = true, .num_stages = 2}},
      {"R1ValuesOfInitMustMatch", values_of_init_must_match, {}},
  };
}

}  // namespace afd::conformance
