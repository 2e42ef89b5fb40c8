// R3: a send never waits for the peer's matching receive.
//
// Every send here has a deadline that has already passed: one that had to wait for anything would
// fail. (The reference implementation deadlocks with two stages once a message no longer fits into
// its transport's queue.)
#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

// Big enough that no socket buffer or mailbox could hide a rendezvous.
TransferLimits large_limits() {
  TransferLimits limits = small_limits();
  limits.hidden_size = 2048;
  limits.max_num_tokens = 128;  // 1 MiB a stage
  return limits;
}

// Goal: two stages cannot deadlock.
// Method: both stages are sent before the FFN side receives anything.
void both_stages_before_any_receive(CaseRun& run) {
  run.job({.counts = run.fan_in(), .limits = large_limits()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 128);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      for (std::uint32_t stage : {0u, 1u}) {
        rank.require(attention.try_send(3, stage, {}, Deadline::now()),
                     "a send before any receive");
      }
      rank.barrier();
      attention.receive(3, 0);
      attention.receive(3, 1);
      return;
    }
    FfnDriver ffn(rank);
    rank.barrier();
    ffn.begin(plan);
    for (std::uint32_t stage : {0u, 1u}) {
      ffn.receive(3, stage);
      ffn.send(3, stage);
    }
  });
}

// Goal: an FFN rank can answer every stage before an attention rank collects the first.
// Method: the attention ranks wait until all answers were sent.
void all_answers_before_any_receive(CaseRun& run) {
  run.job({.counts = run.fan_in(), .limits = large_limits()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 128);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(3, 0);
      attention.send(3, 1);
      rank.barrier();
      attention.receive(3, 0);
      attention.receive(3, 1);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(3, 0);
    ffn.receive(3, 1);
    for (std::uint32_t stage : {0u, 1u}) {
      rank.require(ffn.try_send(3, stage, {}, Deadline::now()), "an answer before any receive");
    }
    rank.barrier();
  });
}

// Goal: a slow attention rank does not hold up the answers to the others.
// Method: rank 1 collects its output only after rank 0 has gone on to the next layer.
void a_slow_peer_holds_nobody_up(CaseRun& run) {
  run.job({.counts = {2, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 4);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      ffn.receive(0, 0);
      rank.require(ffn.try_send(0, 0, {}, Deadline::now()), "an answer to a slow peer");
      rank.barrier();
      ffn.receive(1, 0);
      ffn.send(1, 0);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    attention.send(0, 0);
    if (rank.role_rank() == 0) {
      attention.receive(0, 0);
      rank.require(attention.try_send(1, 0, {}, Deadline::now()), "the next layer's send");
      rank.barrier();
    } else {
      rank.barrier();
      attention.receive(0, 0);
      attention.send(1, 0);
    }
    attention.receive(1, 0);
  });
}

// Goal: a send does not wait until the receiver has heard of the step.
// Method: the attention rank starts the step, announces it and sends on every stage while the FFN
// rank still has not taken the last step's control payload.
void a_send_needs_no_applied_step(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    StepPlan plan = even_step(rank, 4);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      plan.step = step;
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        rank.require(attention.try_send(0, 0, {}, Deadline::now()), "a send on stage 0");
        rank.require(attention.try_send(0, 1, {}, Deadline::now()), "a send on stage 1");
        rank.barrier();
        attention.receive(0, 0);
        attention.receive(0, 1);
      } else {
        FfnDriver ffn(rank);
        rank.barrier();
        ffn.begin(plan);
        ffn.receive(0, 0);
        ffn.send(0, 0);
        ffn.receive(0, 1);
        ffn.send(0, 1);
      }
    }
  });
}

}  // namespace

std::vector<Case> r3_no_hidden_wait_cases() {
  return {
      {"R3BothStagesCanBeSentBeforeEitherIsReceived",
       both_stages_before_any_receive,
       {.num_stages = 2}},
      {"R3AllAnswersCanBeSentBeforeAnyIsReceived",
       all_answers_before_any_receive,
       {.num_stages = 2}},
      {"R3ASlowPeerHoldsNobodyUp", a_slow_peer_holds_nobody_up, {}},
      {"R3ASendNeedsNoAppliedStep", a_send_needs_no_applied_step, {.num_stages = 2}},
  };
}

}  // namespace afd::conformance
