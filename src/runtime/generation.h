// What every runner of the attention side does around the layers: it plans the steps, embeds the
// rows, chooses tokens from the final residuals and reports what came of it. How the rows get
// through the layers is the runner's own business (colocated_runner.h, attention_runner.h).
//
// Threads: one at a time, except choose(): from several threads for disjoint row ranges.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <afd/connector.h>
#include <afd/result.h>

#include "model/model.h"
#include "runtime/logits_digest.h"
#include "runtime/request.h"
#include "runtime/scheduler.h"

namespace afd::runtime {

struct GenerationOptions {
  SchedulerLimits limits;
  bool logits_sha256 = false;
};

/// Told on the thread that runs the steps. Each may be empty.
struct GenerationEvents {
  std::function<void(std::span<const TokenEvent>)> on_tokens;
  std::function<void(Output)> on_finished;
};

/// One row whose final residual chooses a token.
struct SampleRow {
  std::uint32_t row = 0;       ///< Index among the step's rows.
  std::uint32_t position = 0;  ///< Of the token that will be chosen.
  std::uint32_t slot_idx = 0;
  std::uint32_t request_idx = 0;
  const SamplingParams* sampling = nullptr;
};

/// The rows of a step, in batch order. Rows of one sequence are neighbours.
struct StepRows {
  std::vector<std::int32_t> token_ids;
  std::vector<model::Row> rows;
  std::vector<SampleRow> samples;  ///< By ascending row.
  std::uint32_t num_prompt_rows = 0;

  std::uint32_t size() const { return static_cast<std::uint32_t>(rows.size()); }
};

/// A thread's working memory for choose().
struct ChooseScratch {
  model::Scratch model;
  std::vector<float> residual;
  std::vector<float> logits;
};

class Generation {
 public:
  /// Allocates the KV caches and touches them. `part` outlives this object.
  /// @param requests  as for Scheduler, token ids in [0, vocab_size)
  Generation(const model::AttentionPart& part, const GenerationOptions& options,
             std::vector<Request> requests);

  bool done() const { return scheduler_.done(); }

  /// Takes on no more requests: those under way are finished, the others forgotten.
  /// @return how many those are
  std::size_t drop_waiting() { return scheduler_.drop_waiting(); }

  /// The next step's rows; without any only when done(). Valid until finish_step().
  const StepRows& plan_step();

  /// Chooses the tokens of the sampled rows in `range`.
  /// @param residual  final residuals of the rows in `range`: [range.num_rows, hidden_size]
  /// @return kInternal  logits that are not numbers
  Result<void> choose(RowRange range, const float* residual, ChooseScratch& scratch);

  /// Reports the step's tokens and the sequences that they end. All rows were chosen.
  void finish_step(const GenerationEvents& events);

 private:
  const model::AttentionPart* part_;
  bool with_digest_;
  Scheduler scheduler_;
  std::vector<model::KvCache> caches_;  ///< By slot.
  std::vector<LogitsDigest> digests_;   ///< By slot.
  StepRows step_;
  std::vector<std::int32_t> chosen_;  ///< By sample.
};

}  // namespace afd::runtime
