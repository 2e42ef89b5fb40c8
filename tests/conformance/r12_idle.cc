// R12: waiting for any length of time is normal and costs no processor time after the spin budget.
//
// The time that a call spends waiting is real here (its deadline), its cost is the thread's and,
// where a rank is a process, the process's processor time.
#include <string>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"
#include "conformance/process_state.h"

namespace afd::conformance {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{500};
// Spin budgets are microseconds; a process also has heartbeats and the harness.
constexpr milliseconds kCostMax{is_instrumented() ? 100 : 5};

template <typename Call>
void check_idle(Rank& rank, Call wait_in_vain, std::string_view what, Place place = {}) {
  const auto thread_before = thread_cpu_time();
  const auto process_before = process_cpu_time();
  const auto start = Board::Clock::now();
  const auto result = wait_in_vain(Deadline::after(kIdle));
  const auto waited = Board::Clock::now() - start;
  const auto thread_cost = thread_cpu_time() - thread_before;
  const auto process_cost = process_cpu_time() - process_before;
  rank.check_error(result, ErrorCode::kDeadlineExceeded, {}, what, place);
  rank.check(waited >= kIdle, std::string(what) + " did not wait until its deadline", place);
  const auto us = [](auto duration) {
    return std::to_string(std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  };
  if (thread_cost >= kCostMax) {
    rank.miss_bound(std::string(what) + ": waiting 500 ms cost the thread " + us(thread_cost) +
                        " us of processor time, expected below " + us(kCostMax),
                    place);
  }
  if (rank.mode() == Mode::kForked && process_cost >= kCostMax) {
    rank.miss_bound(std::string(what) + ": waiting 500 ms cost the process " + us(process_cost) +
                        " us of processor time, expected below " + us(kCostMax),
                    place);
  }
}

// Goal: an idle job costs nothing and then works.
// Method: the FFN rank waits half a second for a step and for its first rows, then the attention
// ranks as long for the output; then the transfer goes through.
void an_idle_rank_costs_nothing(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    if (rank.is_ffn()) {
      check_idle(
          rank, [&](Deadline deadline) { return rank.control().recv_dp_metadata_list(deadline); },
          "recv_dp_metadata_list");
    }
    rank.barrier();
    rank.is_attention() ? attention.begin(plan) : ffn.begin(plan);
    if (rank.is_ffn()) {
      check_idle(
          rank, [&](Deadline deadline) { return ffn.try_receive(0, {}, deadline); },
          "recv_attn_output");
    }
    rank.barrier();
    if (rank.is_attention()) {
      attention.send(0, 0);
      check_idle(
          rank, [&](Deadline deadline) { return attention.try_receive(0, {}, deadline); },
          "recv_ffn_output");
    }
    rank.barrier();
    if (rank.is_attention()) {
      attention.receive(0, 0);
    } else {
      ffn.receive(0, 0);
      ffn.send(0, 0);
    }
  });
}

// Goal: a job that has spun for long does not spin on when it becomes idle.
// Method: the same wait after a few hundred quick exchanges, which teach an adapting spin to be
// long.
void an_idle_rank_after_much_work_costs_nothing(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.num_layers = 500;
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    rank.is_attention() ? attention.begin(plan) : ffn.begin(plan);
    for (std::uint32_t layer = 0; layer < 400; ++layer) {
      if (rank.is_attention()) {
        attention.send(layer, 0);
        attention.receive(layer, 0);
      } else {
        ffn.receive(layer, 0);
        ffn.send(layer, 0);
      }
    }
    rank.barrier();
    if (rank.is_ffn()) {
      check_idle(
          rank, [&](Deadline deadline) { return ffn.try_receive(0, {}, deadline); },
          "recv_attn_output after 400 layers");
    }
    rank.barrier();
    if (rank.is_attention()) {
      attention.send(400, 0);
      attention.receive(400, 0);
    } else {
      ffn.receive(400, 0);
      ffn.send(400, 0);
    }
  });
}

}  // namespace

std::vector<Case> r12_idle_cases() {
  return {
      {"R12AnIdleRankCostsNothing", an_idle_rank_costs_nothing, {}},
      {"R12AnIdleRankAfterMuchWorkCostsNothing", an_idle_rank_after_much_work_costs_nothing, {}},
  };
}

}  // namespace afd::conformance
