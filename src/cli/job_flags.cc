#include "cli/job_flags.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "builtin/default_connector.h"
#include "cli/exit_status.h"
#include "cli/flags_file.h"
#include "core/json.h"
#include "model/checkpoint_review.h"
#include "runtime/sampler.h"

namespace afd::cli {
namespace {

constexpr double kSecondsMax = 1e9;

// CLI11 reads -1 as 2^64 - 1, and so what is larger.
const CLI::Validator is_uint64(
    [](const std::string& text) {
      std::uint64_t value = 0;
      const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      return error == std::errc() && stop == text.data() + text.size()
                 ? std::string()
                 : "expected a number from 0 to 18446744073709551615, found " + text;
    },
    "UINT");

Result<std::chrono::milliseconds> milliseconds_of(double seconds, const char* flag) {
  if (!(seconds > 0.0) || seconds > kSecondsMax) {
    return fail(ErrorCode::kInvalidArgument, std::string(flag) + " is " + std::to_string(seconds) +
                                                 " s, expected above 0 and at most 1e9");
  }
  return std::chrono::milliseconds(std::llround(std::ceil(seconds * 1000.0)));
}

}  // namespace

void add_job_flags(CLI::App& command, JobFlags& flags) {
  runtime::JobOptions& job = flags.job;
  job.afd.connector = kDefaultConnector;
  add_flags_file_option(command, flags.config_file);
  command.add_option("--model", job.model_dir, "Checkpoint directory in Hugging Face's format")
      ->type_name(kPathType);
  command
      .add_option("--connector", job.afd.connector,
                  "How attention and FFN ranks talk; `afd connectors` lists them")
      ->capture_default_str();
  command
      .add_option("--extra-config", job.afd.connector_extra_config,
                  "The connector's own settings, a JSON object: "
                  "'{\"ucx_transports\": \"tcp\", \"ucx_net_devices\": \"lo\"}'")
      ->type_name("JSON");
  command.add_option("--attention-ranks", job.afd.num_attention_ranks, "Number of attention ranks")
      ->capture_default_str();
  command.add_option("--ffn-ranks", job.afd.num_ffn_ranks, "Number of FFN ranks")
      ->capture_default_str();
  command.add_option("--stages", job.num_stages, "Micro-batches of a step that overlap")
      ->capture_default_str();
  command.add_flag("--gate-on-attention", job.afd.compute_gate_on_attention,
                   "Run the router and the dense layers on the attention ranks");
  command
      .add_option("--max-num-seqs", job.max_num_seqs,
                  "Sequences that an attention rank has under way at most")
      ->capture_default_str();
  command
      .add_option("--max-num-tokens", job.max_num_tokens,
                  "Rows of an attention rank in a stage at most; sizes the shared memory")
      ->capture_default_str();
  command
      .add_option("--hop-timeout", flags.hop_timeout_s,
                  "Seconds after which a rank that does not answer within a step counts as stuck")
      ->capture_default_str();
  command
      .add_option("--init-timeout", flags.init_timeout_s,
                  "Seconds within which all ranks must meet")
      ->capture_default_str();
  command.add_option("--prompt", flags.prompts.texts, "A prompt; may be repeated")
      ->allow_extra_args(false);
  command.add_option("--prompt-ids", flags.prompts.id_lists, "A prompt as token ids: 1,2,3")
      ->allow_extra_args(false);
  command
      .add_option("--prompts", flags.prompts.file,
                  "File with a JSON object a line: {\"prompt\": \"..\"} or {\"prompt_ids\": [..]}, "
                  "and of its "
                  "own, if wanted, max_new_tokens, temperature and seed; - reads stdin")
      ->type_name(kPathType);
  command.add_option("--max-new-tokens", flags.prompts.max_new_tokens, "Tokens per prompt at most")
      ->capture_default_str();
  command
      .add_option("--temperature", flags.prompts.sampling.temperature,
                  "0: always the most likely token; above: the higher, the more varied")
      ->capture_default_str();
  command.add_option("--seed", flags.prompts.sampling.seed, "Of the sampling's random numbers")
      ->check(is_uint64)
      ->capture_default_str();
  command.add_flag("--logits-sha256", job.logits_sha256,
                   "Add a hash over the logits of every output: equal hashes, equal bits");
  command.add_flag("--json", flags.json, "Print one JSON object");
  command.add_flag("-v,--verbose", flags.verbose,
                   "Tell what carries the rows between each two ranks");
}

void tell_paths(const JobFlags& flags, std::span<const runtime::HopPath> paths) {
  if (!flags.verbose) {
    return;
  }
  for (const runtime::HopPath& path : paths) {
    std::fprintf(stderr, "attention rank %u - ffn rank %u: %s\n", path.attention_rank,
                 path.ffn_rank, path.path.c_str());
  }
}

Result<void> finish_job_flags(CLI::App& command, JobFlags& flags) {
  if (!flags.config_file.empty()) {
    if (Result<void> applied = apply_flags_file(command, flags.config_file); !applied) {
      return applied;
    }
  }
  if (flags.job.model_dir.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--model is required: a checkpoint directory");
  }
  Result<std::chrono::milliseconds> hop = milliseconds_of(flags.hop_timeout_s, "--hop-timeout");
  if (!hop) {
    return fail(std::move(hop).error());
  }
  Result<std::chrono::milliseconds> init = milliseconds_of(flags.init_timeout_s, "--init-timeout");
  if (!init) {
    return fail(std::move(init).error());
  }
  flags.job.hop_timeout = *hop;
  flags.job.init_timeout = *init;
  return {};
}

namespace {

void tell_unused_tensors(const model::Checkpoint& checkpoint) {
  constexpr std::size_t kNamedMax = 3;
  const std::vector<std::string> names = model::unused_tensors(checkpoint);
  if (names.empty()) {
    return;
  }
  std::string text = "note: the model does not use " + std::to_string(names.size()) +
                     (names.size() == 1 ? " tensor" : " tensors") + " of " +
                     checkpoint.directory() + ": ";
  for (std::size_t idx = 0; idx < names.size() && idx < kNamedMax; ++idx) {
    text += (idx == 0 ? "" : ", ") + printable(names[idx]);
  }
  const model::ModelConfig& config = checkpoint.config();
  text += std::string(names.size() > kNamedMax ? ", ..." : "") +
          " (config.json: " + std::to_string(config.num_hidden_layers) + " layers, " +
          std::to_string(config.n_routed_experts) + " experts)\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

Error with_cause(Error error, const model::Checkpoint& checkpoint) {
  if (error.message.find(runtime::kLogitsNotFinite) != std::string::npos) {
    const std::optional<std::string> weight = model::find_non_finite(checkpoint);
    error.message += weight ? ": " + *weight : "; no weight that was looked at is NaN or infinite";
  }
  return error;
}

Result<LoadedModel> load_model(const std::string& directory) {
  Result<model::Checkpoint> checkpoint = model::Checkpoint::open(directory);
  if (!checkpoint) {
    return fail(std::move(checkpoint).error());
  }
  tell_unused_tensors(*checkpoint);
  LoadedModel loaded{.checkpoint = *std::move(checkpoint), .tokenizer = std::nullopt};
  const std::string path = directory + "/tokenizer.json";
  if (std::filesystem::exists(path)) {
    Result<model::Tokenizer> tokenizer = model::Tokenizer::load(path);
    if (!tokenizer) {
      return fail(std::move(tokenizer).error());
    }
    loaded.tokenizer.emplace(*std::move(tokenizer));
  }
  return loaded;
}

int report_bad_model(std::string_view command, const std::string& directory, const Error& error) {
  std::error_code unknown;
  const bool is_checkpoint = std::filesystem::exists(directory + "/config.json", unknown);
  return report_failure(
      command, error,
      is_checkpoint ? "the files are of a model that this release cannot run, or they are damaged: "
                      "README.md lists the families, and copying the checkpoint again mends damage"
                    : "--model takes a folder with config.json, *.safetensors and, for text, "
                      "tokenizer.json, as models/austen-moe is");
}

}  // namespace afd::cli
