// What a run costs, and where its time goes. Plain values; merged over ranks by the launcher.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "runtime/histogram.h"

namespace afd::runtime {

/// One side's view of the hops: a *send* is the call that puts the rows into the peer's memory and
/// raises the signal, a *wait* is the receive call, from asking to having every row.
struct HopStats {
  Histogram send;
  Histogram wait;
  /// Attention: from the start of a send to the arrival of its output. FFN: of the compute between.
  Histogram turnaround;
};

/// What carried the rows of an attention rank to and from one of its FFN ranks.
struct HopPath {
  std::uint32_t attention_rank = 0;
  std::uint32_t ffn_rank = 0;
  std::string path;  ///< As ConnectorBase::peer_paths() says it.

  friend auto operator<=>(const HopPath&, const HopPath&) = default;
};

struct RunStats {
  std::uint32_t num_ranks = 1;
  std::uint64_t num_steps = 0;
  std::uint64_t num_prompt_rows = 0;  ///< Prompt tokens that went through the layers.
  std::uint64_t num_decode_rows = 0;  ///< Generated tokens that did.
  std::uint64_t num_generated_tokens = 0;
  std::uint64_t num_unserved_prompts = 0;  ///< Not begun: the job drained.
  Histogram step;                          ///< Wall time of each step.
  /// Step time, split by each step's share of prompt rows.
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
  Histogram agreement;  ///< Waiting for the other attention ranks' token counts, once a step.
  HopStats hops;
  std::vector<HopPath> paths;  ///< Of attention ranks, ascending.
  /// First step's begin and last step's end on CLOCK_MONOTONIC; comparable on one host.
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;

  double run_seconds() const { return static_cast<double>(end_ns - begin_ns) / 1e9; }
  /// Share of the ranks' time spent waiting for others: hops and agreement. 0 without a run.
  double waiting_fraction() const;

  /// Counts and histograms add up, paths come together; the run spans from the first begin to the
  /// last end.
  void merge(const RunStats& other);
};

/// What one step did.
struct StepRecord {
  std::uint32_t num_rows = 0;
  std::uint32_t num_prompt_rows = 0;
  std::uint32_t num_tokens = 0;  ///< Chosen ones.
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};
void record_step(RunStats& stats, const StepRecord& step);

/// JSON text for the way from a rank to its launcher.
std::string encode_run_stats(const RunStats& stats);
/// @return kProtocolMismatch  not what encode_run_stats() writes
Result<RunStats> decode_run_stats(std::string_view text);

}  // namespace afd::runtime
