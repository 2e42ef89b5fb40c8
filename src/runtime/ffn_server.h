// The FFN side of a disaggregated run: an engine-neutral loop over the contract.
//
// With a control plane: per payload, every served layer, every stage of the step in order: receive,
// compute, send. Without one: whatever arrives next, of any peer, layer and stage, until a payload
// without hidden states says that all attention ranks have left in order.
//
// Threads: run_ffn_server() on one thread; ConnectorBase::close() from another, through the guard,
// ends it.
#pragma once

#include <chrono>

#include <afd/connector.h>
#include <afd/result.h>

#include "runtime/ffn_compute.h"
#include "runtime/run_stats.h"
#include "runtime/view_guard.h"

namespace afd::runtime {

struct FfnServerOptions {
  /// How long a transfer of a step under way may take before its peer counts as stuck. Waiting for
  /// the next step has no limit.
  std::chrono::milliseconds hop_timeout{60'000};
  /// Where another thread may close the connector meanwhile. Null: none does.
  ViewGuard* views = nullptr;
};

/// Serves until the attention ranks have left in order. `connector` is initialised; it stays open.
///
/// @return kPeerLost, kDeadlineExceeded, kProtocolMismatch  from the connector, with the step
///         kFailedPrecondition                              the connector was closed
Result<RunStats> run_ffn_server(FfnCompute& compute, ConnectorBase& connector,
                                const FfnServerOptions& options);

}  // namespace afd::runtime
