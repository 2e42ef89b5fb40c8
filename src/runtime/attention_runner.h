// The attention side of a disaggregated run: one rank's loop over steps, layers and stages.
//
// Per step: the ranks agree on token counts (step_agreement.h), the counts go to the FFN ranks, and
// the rows of this rank go through the layers in stages that overlap:
//
//     attention s0, send s0, attention s1, send s1, | receive s0, attention s0, send s0, ...
//        layer 0                                       layer 1
//
// While the FFN ranks compute one stage, this rank computes another. Without rows of its own in a
// stage, a rank sends one dummy row, so that every FFN rank hears from each of its peers.
//
// Threads: run_attention() on one thread; ConnectorBase::close() from another, through the guard,
// ends it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include <afd/connector.h>
#include <afd/result.h>
#include <afd/topology.h>

#include "model/model.h"
#include "runtime/generation.h"
#include "runtime/run_stats.h"
#include "runtime/view_guard.h"

namespace afd::runtime {

struct AttentionOptions {
  std::uint32_t role_rank = 0;
  std::uint32_t num_attention_ranks = 1;
  std::uint32_t num_stages_max = 1;
  std::uint32_t max_num_tokens = 1;  ///< Rows of this rank in one stage, at most.
  /// Router logits are computed here and sent beside the hidden states; dense layers stay here.
  bool gate_on_attention = false;
  /// How long one receive or agreement may take before the peer counts as stuck.
  std::chrono::milliseconds hop_timeout{60'000};
  /// Set once, by any thread: this rank drains. Null: it never does.
  const std::atomic<bool>* drains = nullptr;
  /// Where another thread may close the connector meanwhile. Null: none does.
  ViewGuard* views = nullptr;
};

/// Runs until the requests of all attention ranks have their outputs; once one rank drains, until
/// those under way have, on all. `connector` is initialised; it stays open.
///
/// @return kPeerLost, kDeadlineExceeded, kProtocolMismatch  from the connector, with the step
///         kFailedPrecondition                              the connector was closed
Result<RunStats> run_attention(const model::AttentionPart& part, ConnectorBase& connector,
                               Generation& generation, const AttentionOptions& options,
                               const GenerationEvents& events);

}  // namespace afd::runtime
