// A disaggregated job whose ranks are threads of this process: for connectors that do not cross
// processes.
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include <afd/factory.h>
#include <afd/result.h>

#include "runtime/generation.h"
#include "runtime/job.h"

namespace afd::runtime {

/// Runs the whole job. Events come from the ranks' threads, one at a time.
///
/// @param requests  in order of request_idx, valid for the model
/// @return the first error of any rank, with its name
Result<JobReport> run_thread_job(const JobOptions& options, const ConnectorFactory& factory,
                                 std::span<const Request> requests, const GenerationEvents& events);

}  // namespace afd::runtime
