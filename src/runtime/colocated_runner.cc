#include "runtime/colocated_runner.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sched.h>

#include "base/clock.h"
#include "base/thread.h"

namespace afd::runtime {
namespace {

using std::chrono::nanoseconds;

/// Waits until `word` is at least `target`: a moment of spinning (the others are about as fast),
/// then leaving the processor to whoever has work.
void await_at_least(const std::atomic<std::uint64_t>& word, std::uint64_t target) {
  for (int spin = 0; word.load(std::memory_order_acquire) < target; ++spin) {
    if (spin > 200) {
      ::sched_yield();
    }
  }
}

class Colocated {
 public:
  Colocated(const model::AttentionPart& attention, const model::FfnPart& ffn,
            Generation& generation, const ColocatedOptions& options)
      : attention_(attention),
        ffn_(ffn),
        generation_(generation),
        gate_on_attention_(options.gate_on_attention),
        workers_(options.num_threads) {}

  ~Colocated() {
    stopping_ = true;
    start_step();
    for (Worker& worker : workers_) {
      if (worker.thread.joinable()) {
        worker.thread.join();
      }
    }
  }

  /// Call it once, before the first step.
  Result<void> start_workers() {
    for (std::uint32_t idx = 1; idx < workers_.size(); ++idx) {
      Result<std::thread> started = base::start_thread([this, idx] { serve(idx); });
      if (!started) {
        return fail(std::move(started).error().with_context(
            "start " + std::to_string(workers_.size()) + " threads"));
      }
      workers_[idx].thread = *std::move(started);
    }
    return {};
  }

  Result<void> run_step(const StepRows& step) {
    step_ = &step;
    start_step();
    work_or_fail(0);
    for (std::size_t idx = 1; idx < workers_.size(); ++idx) {
      await_at_least(workers_[idx].steps_done, steps_started_.load(std::memory_order_relaxed));
    }
    for (Worker& worker : workers_) {
      if (!worker.result) {
        return worker.result;
      }
    }
    return {};
  }

 private:
  struct alignas(64) Worker {
    std::thread thread;
    std::atomic<std::uint64_t> steps_done{0};
    /// Layers of all steps whose attention this worker's block has behind it.
    std::atomic<std::uint64_t> attentions_done{0};
    Result<void> result;
    ChooseScratch scratch;
    std::vector<float> residual, hidden, output, router_logits;
  };

  void start_step() {
    // Release: what the step reads was written before. Pairs with the acquire in serve().
    steps_started_.fetch_add(1, std::memory_order_release);
    steps_started_.notify_all();
  }

  void serve(std::uint32_t worker_idx) {
    Worker& worker = workers_[worker_idx];
    for (std::uint64_t step = 1;; ++step) {
      // Between two steps lie microseconds; before the first one and after an idle time, more.
      for (int spin = 0; spin < 2000 && steps_started_.load(std::memory_order_acquire) < step;
           ++spin) {
        ::sched_yield();
      }
      for (std::uint64_t seen = steps_started_.load(std::memory_order_acquire); seen < step;
           seen = steps_started_.load(std::memory_order_acquire)) {
        steps_started_.wait(seen, std::memory_order_acquire);
      }
      if (stopping_) {
        return;
      }
      work_or_fail(worker_idx);
      worker.steps_done.store(step, std::memory_order_release);
    }
  }

  /// True where this block's first row belongs to the sequence of the last row of the block before.
  bool follows(std::uint32_t first_row) const {
    return first_row > 0 && step_->rows[first_row].cache == step_->rows[first_row - 1].cache;
  }

  void work_or_fail(std::uint32_t worker_idx) {
    Worker& worker = workers_[worker_idx];
    try {
      work(worker_idx);
    } catch (const std::bad_alloc&) {
      worker.result = fail(ErrorCode::kUnavailable, "out of memory");
      // The next worker may wait for this one's layers; what it computes now is thrown away.
      worker.attentions_done.store(layers_done_before_ + attention_.config().num_hidden_layers,
                                   std::memory_order_release);
    }
  }

  void work(std::uint32_t worker_idx) {
    Worker& worker = workers_[worker_idx];
    const model::ModelConfig& config = attention_.config();
    const auto num_workers = static_cast<std::uint32_t>(workers_.size());
    const RowRange range = stage_rows(step_->size(), worker_idx, num_workers);
    const std::uint64_t layers_before = layers_done_before_;
    worker.result = {};
    const std::size_t num_floats = std::size_t{range.num_rows} * config.hidden_size;
    if (worker.residual.size() < num_floats) {
      worker.residual.resize(num_floats);
      worker.hidden.resize(num_floats);
      worker.output.resize(num_floats);
      worker.router_logits.resize(std::size_t{range.num_rows} * config.n_routed_experts);
    }
    if (range.num_rows == 0) {
      worker.attentions_done.store(layers_before + config.num_hidden_layers,
                                   std::memory_order_release);
      return;
    }
    const auto rows = std::span(step_->rows).subspan(range.first_row, range.num_rows);
    attention_.embed(std::span(step_->token_ids).subspan(range.first_row, range.num_rows),
                     worker.residual.data());
    const bool wait_for_previous = worker_idx > 0 && follows(range.first_row);
    for (std::uint32_t layer_idx = 0; layer_idx < config.num_hidden_layers; ++layer_idx) {
      if (wait_for_previous) {
        await_at_least(workers_[worker_idx - 1].attentions_done, layers_before + layer_idx + 1);
      }
      attention_.attention(layer_idx, rows, worker.residual.data(), worker.hidden.data(),
                           worker.scratch.model);
      worker.attentions_done.store(layers_before + layer_idx + 1, std::memory_order_release);
      ffn(layer_idx, range.num_rows, worker);
      attention_.add(worker.residual.data(), worker.output.data(), range.num_rows);
    }
    worker.result = generation_.choose(range, worker.residual.data(), worker.scratch);
  }

  void ffn(std::uint32_t layer_idx, std::size_t num_rows, Worker& worker) {
    if (!gate_on_attention_) {
      ffn_.forward(layer_idx, worker.hidden.data(), num_rows, nullptr, worker.output.data(),
                   worker.scratch.model);
    } else if (attention_.config().is_moe_layer(layer_idx)) {
      attention_.router_logits(layer_idx, worker.hidden.data(), num_rows,
                               worker.router_logits.data(), worker.scratch.model);
      ffn_.forward(layer_idx, worker.hidden.data(), num_rows, worker.router_logits.data(),
                   worker.output.data(), worker.scratch.model);
    } else {
      attention_.dense_mlp(layer_idx, worker.hidden.data(), num_rows, worker.output.data(),
                           worker.scratch.model);
    }
  }

 public:
  /// After each step: attentions_done counts on.
  void end_step() { layers_done_before_ += attention_.config().num_hidden_layers; }

 private:
  const model::AttentionPart& attention_;
  const model::FfnPart& ffn_;
  Generation& generation_;
  bool gate_on_attention_;
  const StepRows* step_ = nullptr;
  std::uint64_t layers_done_before_ = 0;
  std::atomic<std::uint64_t> steps_started_{0};
  std::atomic<bool> stopping_{false};
  std::vector<Worker> workers_;
};

}  // namespace

Result<RunStats> run_colocated(const model::AttentionPart& attention, const model::FfnPart& ffn,
                               Generation& generation, const ColocatedOptions& options,
                               const GenerationEvents& events) {
  RunStats stats;
  Colocated colocated(attention, ffn, generation, options);
  if (Result<void> started = colocated.start_workers(); !started) {
    return fail(std::move(started).error());
  }
  stats.begin_ns = base::steady_ns();
  stats.end_ns = stats.begin_ns;
  while (!generation.done()) {
    if (options.stop_requested && options.stop_requested()) {
      return fail(ErrorCode::kFailedPrecondition, "stopped");
    }
    const std::int64_t begin_ns = stats.end_ns;
    const StepRows& step = generation.plan_step();
    if (Result<void> ran = colocated.run_step(step); !ran) {
      return fail(std::move(ran).error());
    }
    colocated.end_step();
    StepRecord record{.num_rows = step.size(),
                      .num_prompt_rows = step.num_prompt_rows,
                      .num_tokens = static_cast<std::uint32_t>(step.samples.size()),
                      .begin_ns = begin_ns};
    generation.finish_step(events);
    record.end_ns = base::steady_ns();
    record_step(stats, record);
  }
  return stats;
}

}  // namespace afd::runtime
