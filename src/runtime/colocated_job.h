// A whole job in this process without a connector: `afd run --colocated`.
#pragma once

#include <cstdint>
#include <span>

#include <afd/result.h>

#include "model/checkpoint.h"
#include "runtime/generation.h"
#include "runtime/job.h"

namespace afd::runtime {

/// Loads both parts of the model and runs every request.
///
/// @param options      its model, limits, gate placement and logits_sha256 count
/// @param num_threads  at least 1
/// @param requests     in order of request_idx, valid for the model
Result<JobReport> run_colocated_job(const JobOptions& options, const model::Checkpoint& checkpoint,
                                    std::uint32_t num_threads, std::span<const Request> requests,
                                    const GenerationEvents& events);

}  // namespace afd::runtime
