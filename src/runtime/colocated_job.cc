#include "runtime/colocated_job.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "model/model.h"
#include "runtime/colocated_runner.h"

namespace afd::runtime {

Result<JobReport> run_colocated_job(const JobOptions& options, const model::Checkpoint& checkpoint,
                                    std::uint32_t num_threads, std::span<const Request> requests,
                                    const GenerationEvents& events) {
  const bool gate_on_attention = options.afd.compute_gate_on_attention;
  Result<std::unique_ptr<model::AttentionPart>> attention =
      model::AttentionPart::load(checkpoint, {.gate = gate_on_attention});
  if (!attention) {
    return fail(std::move(attention).error());
  }
  Result<std::unique_ptr<model::FfnPart>> ffn =
      model::FfnPart::load(checkpoint, {.gate_on_attention = gate_on_attention});
  if (!ffn) {
    return fail(std::move(ffn).error());
  }
  JobReport report;
  GenerationEvents collecting = events;
  collecting.on_finished = [&](Output output) {
    if (events.on_finished) {
      events.on_finished(output);
    }
    report.outputs.push_back(std::move(output));
  };
  try {
    Generation generation(
        **attention,
        {.limits = {.num_seqs_max = options.max_num_seqs, .num_tokens_max = options.max_num_tokens},
         .logits_sha256 = options.logits_sha256},
        {requests.begin(), requests.end()});
    Result<RunStats> stats = run_colocated(
        **attention, **ffn, generation,
        {.num_threads = num_threads, .gate_on_attention = gate_on_attention}, collecting);
    if (!stats) {
      return fail(std::move(stats).error());
    }
    report.attention = *std::move(stats);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::kUnavailable, "out of memory");
  }
  std::ranges::sort(report.outputs, {}, &Output::request_idx);
  return report;
}

}  // namespace afd::runtime
