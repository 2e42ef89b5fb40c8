// Both halves of the model in one process: what disaggregated runs are compared with.
//
// The rows of a step are cut into one block per thread; each takes its block through all layers.
// Where a block goes on with a sequence of the block before it, its attention needs that one's KV
// entries: it then follows one layer's attention behind. Nothing else is shared, so that N threads
// do N times the work.
//
// Threads: run() on one thread, which takes the first block itself.
#pragma once

#include <cstdint>
#include <functional>

#include <afd/result.h>

#include "model/model.h"
#include "runtime/generation.h"
#include "runtime/run_stats.h"

namespace afd::runtime {

struct ColocatedOptions {
  std::uint32_t num_threads = 1;  ///< At least 1.
  /// Run the router and the dense MLPs of the attention part: the same bits, another place.
  bool gate_on_attention = false;
  /// Asked before each step. May be empty.
  std::function<bool()> stop_requested;
};

/// Runs until every request of `generation` has its output.
/// @return kFailedPrecondition  "stopped";  kInternal, as from Generation::choose()
Result<RunStats> run_colocated(const model::AttentionPart& attention, const model::FfnPart& ffn,
                               Generation& generation, const ColocatedOptions& options,
                               const GenerationEvents& events);

}  // namespace afd::runtime
