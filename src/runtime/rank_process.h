// A launched rank's process: takes its job from one inherited descriptor, reports on another.
#pragma once

#include <afd/factory.h>

#include "runtime/rank.h"

namespace afd::runtime {

/// Runs the rank to its end, the launcher's death, or SIGTERM. SIGINT is ignored: the launcher gets
/// it from the terminal too and decides.
///
/// @param job_fd    holds encode_rank_job()'s text, from offset 0
/// @param event_fd  stream socket to the launcher; its end means that the launcher died
/// @return the process's exit status
int run_launched_rank(const ConnectorFactory& factory, RankId id, int job_fd, int event_fd);

}  // namespace afd::runtime
