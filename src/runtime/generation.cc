#include "runtime/generation.h"

#include <algorithm>
#include <utility>

#include "runtime/sampler.h"

namespace afd::runtime {
namespace {

/// Rows whose logits are computed at once: a bound on memory, not on results.
constexpr std::size_t kLogitRowsMax = 64;

StopRules stop_rules(const model::ModelConfig& config) {
  return {.context_length = config.max_position_embeddings, .eos_token_ids = config.eos_token_ids};
}

}  // namespace

Generation::Generation(const model::AttentionPart& part, const GenerationOptions& options,
                       std::vector<Request> requests)
    : part_(&part),
      with_digest_(options.logits_sha256),
      scheduler_(options.limits, stop_rules(part.config()), std::move(requests)) {
  for (std::uint32_t slot_idx = 0; slot_idx < scheduler_.num_slots(); ++slot_idx) {
    caches_.emplace_back(part.config(), scheduler_.num_positions_max());
    if (with_digest_) {
      digests_.emplace_back();
    }
  }
}

const StepRows& Generation::plan_step() {
  step_.token_ids.clear();
  step_.rows.clear();
  step_.samples.clear();
  step_.num_prompt_rows = 0;
  for (const Chunk& chunk : scheduler_.next_step()) {
    for (std::uint32_t idx = 0; idx < chunk.num_tokens; ++idx) {
      step_.token_ids.push_back(chunk.token_ids[idx]);
      step_.rows.push_back(
          {.cache = &caches_[chunk.slot_idx], .position = chunk.first_position + idx});
    }
    if (chunk.is_prompt) {
      step_.num_prompt_rows += chunk.num_tokens;
    }
    if (chunk.samples) {
      step_.samples.push_back({.row = step_.size() - 1,
                               .position = chunk.first_position + chunk.num_tokens,
                               .slot_idx = chunk.slot_idx,
                               .request_idx = chunk.request_idx,
                               .sampling = chunk.sampling});
    }
  }
  chosen_.assign(step_.samples.size(), 0);
  return step_;
}

Result<void> Generation::choose(RowRange range, const float* residual, ChooseScratch& scratch) {
  const std::size_t hidden_size = part_->config().hidden_size;
  const std::size_t vocab_size = part_->config().vocab_size;
  const auto by_row = [](const SampleRow& sample, std::uint32_t row) { return sample.row < row; };
  auto next = std::lower_bound(step_.samples.begin(), step_.samples.end(), range.first_row, by_row);
  const auto end =
      std::lower_bound(next, step_.samples.end(), range.first_row + range.num_rows, by_row);
  while (next != end) {
    const std::size_t num_rows =
        std::min(kLogitRowsMax, static_cast<std::size_t>(std::distance(next, end)));
    scratch.residual.resize(num_rows * hidden_size);
    scratch.logits.resize(num_rows * vocab_size);
    for (std::size_t idx = 0; idx < num_rows; ++idx) {
      const SampleRow& sample = next[static_cast<std::ptrdiff_t>(idx)];
      std::copy_n(residual + (sample.row - range.first_row) * hidden_size, hidden_size,
                  scratch.residual.data() + idx * hidden_size);
    }
    part_->logits(scratch.residual.data(), num_rows, scratch.logits.data(), scratch.model);
    for (std::size_t idx = 0; idx < num_rows; ++idx, ++next) {
      const std::span<const float> logits(scratch.logits.data() + idx * vocab_size, vocab_size);
      if (with_digest_) {
        digests_[next->slot_idx].update(logits);
      }
      const Result<std::int32_t> token = choose_token(
          logits, *next->sampling, {.request_idx = next->request_idx, .position = next->position});
      if (!token) {
        return fail(token.error());
      }
      chosen_[static_cast<std::size_t>(std::distance(step_.samples.begin(), next))] = *token;
    }
  }
  return {};
}

void Generation::finish_step(const GenerationEvents& events) {
  const StepOutcome& outcome = scheduler_.finish_step(chosen_);
  if (events.on_tokens && !outcome.tokens.empty()) {
    events.on_tokens(outcome.tokens);
  }
  for (std::size_t idx = 0; idx < outcome.finished.size(); ++idx) {
    Output output = outcome.finished[idx];
    if (with_digest_) {
      output.logits_sha256 = digests_[outcome.finished_slots[idx]].finish();
    }
    if (events.on_finished) {
      events.on_finished(std::move(output));
    }
  }
}

}  // namespace afd::runtime
