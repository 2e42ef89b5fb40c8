#include "runtime/scheduler.h"

#include <algorithm>
#include <utility>

namespace afd::runtime {

Scheduler::Scheduler(SchedulerLimits limits, StopRules rules, std::vector<Request> requests)
    : rules_(std::move(rules)),
      num_tokens_max_(limits.num_tokens_max),
      // A generating sequence has a row in every step, so there are never more than rows.
      num_slots_(std::min({limits.num_seqs_max, limits.num_tokens_max,
                           static_cast<std::uint32_t>(requests.size())})) {
  for (Request& request : requests) {
    const std::uint64_t positions = request.prompt_ids.size() + request.max_new_tokens;
    num_positions_max_ = std::max(
        num_positions_max_,
        static_cast<std::uint32_t>(std::min<std::uint64_t>(positions, rules_.context_length)));
    waiting_.push_back(std::move(request));
  }
  for (std::uint32_t slot_idx = num_slots_; slot_idx > 0; --slot_idx) {
    free_slots_.push_back(slot_idx - 1);
  }
  running_.reserve(num_slots_);  // chunks point into it
}

void Scheduler::schedule(Sequence& sequence, std::uint32_t num_tokens, bool is_prompt) {
  const auto num_known = static_cast<std::uint32_t>(sequence.token_ids.size());
  chunks_.push_back({.slot_idx = sequence.slot_idx,
                     .request_idx = sequence.request.request_idx,
                     .first_position = sequence.num_computed,
                     .num_tokens = num_tokens,
                     .is_prompt = is_prompt,
                     .samples = sequence.num_computed + num_tokens == num_known,
                     .token_ids = sequence.token_ids.data() + sequence.num_computed,
                     .sampling = &sequence.request.sampling});
  chunk_sequences_.push_back(static_cast<std::size_t>(&sequence - running_.data()));
}

std::size_t Scheduler::drop_waiting() {
  const std::size_t num_dropped = waiting_.size();
  waiting_.clear();
  return num_dropped;
}

std::span<const Chunk> Scheduler::next_step() {
  chunks_.clear();
  chunk_sequences_.clear();
  std::uint32_t budget = num_tokens_max_;
  const auto left = [](const Sequence& sequence) {
    return static_cast<std::uint32_t>(sequence.token_ids.size()) - sequence.num_computed;
  };
  const auto generating = [](const Sequence& sequence) {
    return sequence.token_ids.size() > sequence.request.prompt_ids.size();
  };
  for (Sequence& sequence : running_) {
    if (generating(sequence)) {
      schedule(sequence, 1, /*is_prompt=*/false);
      --budget;
    }
  }
  for (Sequence& sequence : running_) {
    if (!generating(sequence) && budget > 0) {
      const std::uint32_t num_tokens = std::min(left(sequence), budget);
      schedule(sequence, num_tokens, /*is_prompt=*/true);
      budget -= num_tokens;
    }
  }
  while (budget > 0 && !waiting_.empty() && !free_slots_.empty()) {
    Sequence sequence;
    sequence.request = std::move(waiting_.front());
    waiting_.pop_front();
    sequence.token_ids = sequence.request.prompt_ids;
    sequence.token_ids.reserve(std::min<std::size_t>(
        sequence.token_ids.size() + sequence.request.max_new_tokens, rules_.context_length));
    sequence.slot_idx = free_slots_.back();
    free_slots_.pop_back();
    running_.push_back(std::move(sequence));
    const std::uint32_t num_tokens = std::min(left(running_.back()), budget);
    schedule(running_.back(), num_tokens, /*is_prompt=*/true);
    budget -= num_tokens;
  }
  return chunks_;
}

bool Scheduler::ends(const Sequence& sequence, FinishReason* reason) const {
  const std::int32_t last = sequence.token_ids.back();
  if (std::find(rules_.eos_token_ids.begin(), rules_.eos_token_ids.end(), last) !=
      rules_.eos_token_ids.end()) {
    *reason = FinishReason::kStop;
    return true;
  }
  *reason = FinishReason::kLength;
  return sequence.token_ids.size() >= rules_.context_length ||
         sequence.token_ids.size() - sequence.request.prompt_ids.size() >=
             sequence.request.max_new_tokens;
}

const StepOutcome& Scheduler::finish_step(std::span<const std::int32_t> chosen) {
  outcome_.tokens.clear();
  outcome_.finished.clear();
  outcome_.finished_slots.clear();
  std::size_t num_used = 0;
  std::vector<bool> ended(running_.size(), false);
  for (std::size_t chunk_idx = 0; chunk_idx < chunks_.size(); ++chunk_idx) {
    Sequence& sequence = running_[chunk_sequences_[chunk_idx]];
    sequence.num_computed += chunks_[chunk_idx].num_tokens;
    if (!chunks_[chunk_idx].samples) {
      continue;
    }
    sequence.token_ids.push_back(chosen[num_used++]);
    outcome_.tokens.push_back({sequence.request.request_idx, sequence.token_ids.back()});
    FinishReason reason = FinishReason::kLength;
    if (ends(sequence, &reason)) {
      const auto first_new = sequence.token_ids.begin() +
                             static_cast<std::ptrdiff_t>(sequence.request.prompt_ids.size());
      outcome_.finished.push_back({.request_idx = sequence.request.request_idx,
                                   .token_ids = {first_new, sequence.token_ids.end()},
                                   .finish_reason = reason,
                                   .logits_sha256 = {}});
      outcome_.finished_slots.push_back(sequence.slot_idx);
      free_slots_.push_back(sequence.slot_idx);
      ended[chunk_sequences_[chunk_idx]] = true;
    }
  }
  std::size_t num_kept = 0;
  for (std::size_t idx = 0; idx < running_.size(); ++idx) {
    if (!ended[idx]) {
      if (num_kept != idx) {
        running_[num_kept] = std::move(running_[idx]);
      }
      ++num_kept;
    }
  }
  running_.resize(num_kept);
  chunks_.clear();
  chunk_sequences_.clear();
  return outcome_;
}

RowRange stage_rows(std::uint32_t num_rows, std::uint32_t stage_idx, std::uint32_t num_stages) {
  const std::uint32_t even = num_rows / num_stages;
  const std::uint32_t larger = num_rows % num_stages;
  return {.first_row = stage_idx * even + std::min(stage_idx, larger),
          .num_rows = even + (stage_idx < larger ? 1 : 0)};
}

}  // namespace afd::runtime
