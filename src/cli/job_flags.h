// Flags that `afd run` and `afd rank` share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <afd/result.h>

#include "cli/prompts.h"
#include "model/checkpoint.h"
#include "model/tokenizer.h"
#include "runtime/job.h"

namespace CLI {
class App;
}

namespace afd::cli {

struct JobFlags {
  runtime::JobOptions job;
  PromptOptions prompts;
  double hop_timeout_s = 60.0;
  double init_timeout_s = 60.0;
  std::string config_file;
  bool json = false;
  bool verbose = false;
};

/// Model, layout, limits, prompts and output flags.
void add_job_flags(CLI::App& command, JobFlags& flags);

/// The file of --config, and flags whose values need a conversion into flags.job.
Result<void> finish_job_flags(CLI::App& command, JobFlags& flags);

/// With --verbose, a line for each of them on stderr: "attention rank 0 - ffn rank 0: UCX
/// tcp/eth0".
void tell_paths(const JobFlags& flags, std::span<const runtime::HopPath> paths);

/// What the prompts need of the model.
struct LoadedModel {
  model::Checkpoint checkpoint;
  std::optional<model::Tokenizer> tokenizer;  ///< None: the directory has no tokenizer.json.
  const model::Tokenizer* tokenizer_or_null() const { return tokenizer ? &*tokenizer : nullptr; }
};
/// Says on stderr which tensors of the checkpoint nobody reads.
Result<LoadedModel> load_model(const std::string& directory);

/// The error, and for logits that are not finite which weight is not: that takes reading them all.
Error with_cause(Error error, const model::Checkpoint& checkpoint);

/// Prints why load_model() failed, with what to do about it.
/// @return the exit status
int report_bad_model(std::string_view command, const std::string& directory, const Error& error);

}  // namespace afd::cli
