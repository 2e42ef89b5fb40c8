// Continuous batching: which tokens of which sequences run in the next step.
//
// Every step first takes one row of each sequence that is generating, then fills up with prompt
// tokens: of sequences under way, then of waiting ones, in order. A prompt longer than what is left
// is cut into chunks. Deterministic; knows neither tensors nor ranks.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include <afd/connector.h>

#include "runtime/request.h"

namespace afd::runtime {

struct SchedulerLimits {
  std::uint32_t num_seqs_max = 64;     ///< Sequences under way at once, at least 1.
  std::uint32_t num_tokens_max = 512;  ///< Rows of a step, at least 1; bounds num_seqs_max as well.
};

/// When a sequence ends, besides at its max_new_tokens.
struct StopRules {
  std::uint32_t context_length = 0;         ///< Prompt and generated tokens together, at most.
  std::vector<std::int32_t> eos_token_ids;  ///< Each ends its sequence.
};

/// A run of rows of one sequence in a step.
struct Chunk {
  std::uint32_t slot_idx = 0;  ///< Which KV cache: [0, num_slots()). Free again when it finishes.
  std::uint32_t request_idx = 0;
  std::uint32_t first_position = 0;
  std::uint32_t num_tokens = 0;
  bool is_prompt = false;           ///< Prompt tokens; else the token that was generated last.
  bool samples = false;             ///< The last row chooses the sequence's next token.
  const std::int32_t* token_ids{};  ///< [num_tokens], valid until finish_step().
  const SamplingParams* sampling{};
};

/// What a step brought.
struct StepOutcome {
  std::vector<TokenEvent> tokens;
  /// Sequences that ended, without logits_sha256, and the slot that each leaves.
  std::vector<Output> finished;
  std::vector<std::uint32_t> finished_slots;
};

class Scheduler {
 public:
  /// @param requests  each with 1 to context_length - 1 prompt tokens and max_new_tokens >= 1
  Scheduler(SchedulerLimits limits, StopRules rules, std::vector<Request> requests);

  /// KV caches that are needed at most.
  std::uint32_t num_slots() const { return num_slots_; }
  /// Positions that any sequence of this job reaches at most.
  std::uint32_t num_positions_max() const { return num_positions_max_; }

  /// Everything was generated.
  bool done() const { return waiting_.empty() && running_.empty(); }

  /// Forgets the requests that no step has taken on. @return how many those were
  std::size_t drop_waiting();

  /// The next step's chunks; empty only when done(). Valid until finish_step().
  std::span<const Chunk> next_step();

  /// @param chosen  one token for each chunk of the step with `samples`, in order
  /// @return valid until the next call
  const StepOutcome& finish_step(std::span<const std::int32_t> chosen);

 private:
  struct Sequence {
    Request request;
    std::vector<std::int32_t> token_ids;  ///< Prompt, then generated.
    std::uint32_t num_computed = 0;       ///< Leading tokens whose KV entries exist.
    std::uint32_t slot_idx = 0;
  };

  void schedule(Sequence& sequence, std::uint32_t num_tokens, bool is_prompt);
  /// How the sequence ends with its last token, if it does.
  bool ends(const Sequence& sequence, FinishReason* reason) const;

  StopRules rules_;
  std::uint32_t num_tokens_max_;
  std::uint32_t num_slots_;
  std::uint32_t num_positions_max_ = 1;
  std::deque<Request> waiting_;
  std::vector<Sequence> running_;  ///< In order of admission.
  std::vector<std::uint32_t> free_slots_;
  std::vector<Chunk> chunks_;
  std::vector<std::size_t> chunk_sequences_;  ///< Index into running_ of each chunk.
  StepOutcome outcome_;
};

/// Rows of one stage: `num_rows` are dealt in consecutive blocks that differ by at most one, the
/// larger ones first. num_rows 0: the stage has none of its own and sends a dummy.
RowRange stage_rows(std::uint32_t num_rows, std::uint32_t stage_idx, std::uint32_t num_stages);

}  // namespace afd::runtime
