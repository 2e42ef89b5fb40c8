// Starts every rank of a job as a process of this machine, watches them, and leaves nothing behind.
//
//     launcher --- job (memfd) ---> rank        encode_rank_job()
//              <-- events (socket)              encode_rank_message(), a line each
//              <-- output (pipe)                whatever it prints, passed on with its name
//
// A rank that dies or fails ends the job: the others find out by themselves (R7), get SIGTERM after
// 0.7 s and SIGKILL after 1.3 s. Of all that went wrong, the error is the cause: a rank that was
// killed before one that failed, before those that lost a peer.
//
// Threads: launch_job() on the process's only thread (it forks).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <afd/result.h>

#include "runtime/generation.h"
#include "runtime/job.h"
#include "runtime/placement.h"
#include "runtime/rank.h"

namespace afd::runtime {

struct LaunchOptions {
  JobOptions job;
  /// Program of the ranks: has to understand `rank --role R --role-rank N --job-fd F --event-fd E`.
  std::string program = "/proc/self/exe";
  /// Take a free port instead of job.afd.port.
  bool choose_port = true;
  Placement placement = Placement::kAuto;
};

/// Told between events of the ranks, and must not wait: signals and the ranks' events do meanwhile.
/// Each may be empty.
struct LaunchEvents {
  GenerationEvents generation;
  std::function<void(RankId waiting, std::string_view missing)> on_waiting;
  std::function<void()> on_ready;  ///< Every rank is.
  /// A line that a rank printed.
  std::function<void(RankId, std::string_view line)> on_output;
  /// The launcher got SIGINT or SIGTERM and is ending the job.
  std::function<void(int signal)> on_interrupted;
};

/// Runs the whole job.
///
/// @param requests  in order of request_idx, valid for the model
/// @return kPeerLost            "ffn rank 1 died: killed by signal 9 (Killed)"
///         kFailedPrecondition  "interrupted by signal 2 (Interrupt)"
///         any error of a rank, with its name
Result<JobReport> launch_job(const LaunchOptions& options, std::span<const Request> requests,
                             const LaunchEvents& events);

}  // namespace afd::runtime
