// Random steps over every ratio, stage count, size and way of handing rows over, each byte checked.
// A failure prints the seed, and the same seed gives the same steps.
#include <algorithm>
#include <string>
#include <utility>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

/// splitmix64: the same numbers in every rank, whatever the standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t value = state_ += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
  }
  /// In [0, bound).
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(next() % bound); }
  bool one_in(std::uint32_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

struct SweepShape {
  RankCounts counts;
  std::uint32_t num_stages = 1;
  std::uint32_t hidden_size = 12;
  std::uint32_t max_num_tokens = 8;
  std::uint32_t num_steps = 30;
  DType dtype = kFloat32;
  bool router_logits = false;
};

StepPlan random_plan(Random& random, const SweepShape& shape, std::uint64_t step) {
  StepPlan plan{.step = step};
  for (std::uint32_t stage = 0; stage < shape.num_stages; ++stage) {
    std::vector<std::int32_t> counts;
    // A step has 1 to all stages, not always the first ones.
    if (stage + 1 == shape.num_stages || !random.one_in(4)) {
      for (std::uint32_t rank = 0; rank < shape.counts.num_attention_ranks; ++rank) {
        // Idle, one row, all rows, or anything.
        const std::uint32_t kind = random.below(5);
        const std::uint32_t any = random.below(shape.max_num_tokens + 1);
        counts.push_back(static_cast<std::int32_t>(kind == 0   ? 0
                                                   : kind == 1 ? 1
                                                   : kind == 2 ? shape.max_num_tokens
                                                               : any));
      }
    }
    plan.counts.push_back(std::move(counts));
  }
  return plan;
}

SendHow::From random_from(Random& random) {
  constexpr SendHow::From kFroms[] = {SendHow::From::kOwnBuffer, SendHow::From::kOwnBuffer,
                                      SendHow::From::kInPlace, SendHow::From::kFromSource};
  return kFroms[random.below(4)];
}

RecvHow random_into(Random& random, bool router_logits) {
  constexpr RecvHow::Into kIntos[] = {RecvHow::Into::kInPlace, RecvHow::Into::kOwnBuffer,
                                      RecvHow::Into::kSentTensor};
  RecvHow how{.into = kIntos[random.below(3)], .router_logits = router_logits};
  how.sink = random.one_in(2);
  return how;
}

// One rank's walk through the steps. The schedule (which stages, in which order the two sides take
// them) comes from `shared`, equal on all ranks; how each rank hands over its rows is its own
// affair.
void walk(Rank& rank, const SweepShape& shape, std::uint64_t seed) {
  Random shared(seed);
  Random own(seed * 31 + rank.world_rank() + 1);
  AttentionDriver attention(rank);
  FfnDriver ffn(rank);
  for (std::uint64_t step = 1; step <= shape.num_steps; ++step) {
    const StepPlan plan = random_plan(shared, shape, step);
    const std::uint32_t num_layers = 1 + shared.below(4);
    rank.is_attention() ? attention.begin(plan) : ffn.begin(plan);
    std::vector<std::uint32_t> stages;
    for (std::uint32_t stage = 0; stage < shape.num_stages; ++stage) {
      if (plan.has_stage(stage)) {
        stages.push_back(stage);
      }
    }
    for (std::uint32_t layer = 0; layer < num_layers; ++layer) {
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const bool logits = shape.router_logits && layer % 2 == 1;
        if (rank.is_attention()) {
          attention.send(layer, stages[i], {.from = random_from(own), .router_logits = logits});
        } else {
          ffn.receive(layer, stages[i], random_into(own, logits));
          ffn.send(layer, stages[i], {.from = random_from(own)});
        }
      }
      // All stages are under way; collect them in an order of this rank's own.
      if (rank.is_attention()) {
        std::vector<std::uint32_t> order = stages;
        for (std::size_t i = order.size(); i > 1; --i) {
          std::swap(order[i - 1], order[own.below(static_cast<std::uint32_t>(i))]);
        }
        for (std::uint32_t stage : order) {
          attention.receive(layer, stage, random_into(own, false));
        }
      }
    }
  }
}

void sweep(CaseRun& run, const SweepShape& shape) {
  static const std::uint64_t base_seed = monotonic_ns();
  const std::uint64_t seed = run.connector().seed != 0 ? run.connector().seed : base_seed;
  JobSpec spec{.counts = shape.counts, .compute_gate_on_attention = shape.router_logits};
  spec.limits.hidden_size = shape.hidden_size;
  spec.limits.max_num_tokens = shape.max_num_tokens;
  spec.limits.num_stages = std::min(shape.num_stages, run.connector().capabilities.num_stages_max);
  spec.limits.dtype = shape.dtype;
  SweepShape fitted = shape;
  fitted.num_stages = spec.limits.num_stages;
  run.job(spec, [&fitted, seed](Rank& rank) { walk(rank, fitted, seed); });
  if (run.failed()) {
    run.fail("the seed of this sweep was " + std::to_string(seed));
  }
}

void sweep_1a1f(CaseRun& run) {
  sweep(run, {.counts = {1, 1}, .num_stages = 8, .num_steps = 60});
}
void sweep_2a1f(CaseRun& run) {
  sweep(run, {.counts = {2, 1}, .num_stages = 3});
}
void sweep_4a2f(CaseRun& run) {
  sweep(run, {.counts = {4, 2}, .num_stages = 2});
}
void sweep_3a2f(CaseRun& run) {
  sweep(run, {.counts = {3, 2}, .num_stages = 2});
}
void sweep_5a3f(CaseRun& run) {
  sweep(run, {.counts = {5, 3}, .num_stages = 2, .num_steps = 20});
}
void sweep_1a2f(CaseRun& run) {
  sweep(run, {.counts = {1, 2}, .num_stages = 4});
}
void sweep_2a3f(CaseRun& run) {
  sweep(run, {.counts = {2, 3}, .num_stages = 2});
}
// Fewer rows than FFN ranks: some get a dummy row.
void sweep_1a5f(CaseRun& run) {
  sweep(run, {.counts = {1, 5}, .num_stages = 2, .max_num_tokens = 6});
}
void sweep_logits(CaseRun& run) {
  sweep(run, {.counts = {2, 1}, .num_stages = 2, .router_logits = true});
}
void sweep_logits_split(CaseRun& run) {
  sweep(run, {.counts = {1, 2}, .num_stages = 2, .router_logits = true});
}
// 64 KiB to 1 MiB a transfer: in pieces, where the connector publishes in pieces.
void sweep_large(CaseRun& run) {
  sweep(run, {.counts = run.fan_in(),
              .num_stages = 2,
              .hidden_size = 2048,
              .max_num_tokens = 256,
              .num_steps = 12,
              .dtype = kBFloat16});
}
void sweep_huge(CaseRun& run) {
  sweep(run, {.counts = {1, 1},
              .num_stages = 2,
              .hidden_size = 4096,
              .max_num_tokens = 256,  // 4 MiB
              .num_steps = 6});
}
void sweep_odd(CaseRun& run) {
  sweep(run, {.counts = run.fan_in(),
              .num_stages = 2,
              .hidden_size = 5,  // rows of 10 bytes
              .max_num_tokens = 5000,
              .num_steps = 12,
              .dtype = kBFloat16});
}

}  // namespace

std::vector<Case> sweep_cases() {
  return {
      {"SweepOf1A1F", sweep_1a1f, {}},
      {"SweepOf2A1F", sweep_2a1f, {}},
      {"SweepOf4A2F", sweep_4a2f, {}},
      {"SweepOf3A2F", sweep_3a2f, {.any_ratio = true}},
      {"SweepOf5A3F", sweep_5a3f, {.any_ratio = true}},
      {"SweepOf1A2F", sweep_1a2f, {.any_ratio = true}},
      {"SweepOf2A3F", sweep_2a3f, {.any_ratio = true}},
      {"SweepOf1A5F", sweep_1a5f, {.any_ratio = true}},
      {"SweepWithRouterLogits", sweep_logits, {.router_logits = true}},
      {"SweepWithRouterLogitsSplit",
       sweep_logits_split,
       {.router_logits = true, .any_ratio = true}},
      {"SweepOfLargeTransfers", sweep_large, {}},
      {"SweepOf4MiBTransfers", sweep_huge, {}},
      {"SweepOfRowsOfTenBytes", sweep_odd, {}},
  };
}

}  // namespace afd::conformance
