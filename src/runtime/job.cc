#include "runtime/job.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include <afd/topology.h>

#include "model/utf8.h"

namespace afd::runtime {
namespace {

Result<void> at_least_one(std::uint64_t value, const char* name) {
  if (value == 0) {
    return fail(ErrorCode::kInvalidArgument, std::string(name) + " is 0, expected at least 1");
  }
  return {};
}

}  // namespace

Result<void> validate_job(const JobOptions& options) {
  if (Result<void> legal =
          validate_topology(options.afd.num_attention_ranks, options.afd.num_ffn_ranks);
      !legal) {
    return legal;
  }
  // A job goes to its ranks as JSON, which holds nothing else.
  if (const std::size_t at = model::find_invalid_utf8(options.model_dir); at != std::string::npos) {
    return fail(ErrorCode::kInvalidArgument, "the model folder's name is not UTF-8 at byte " +
                                                 std::to_string(at) + ": " + options.model_dir);
  }
  for (const auto& [value, name] :
       {std::pair<std::uint64_t, const char*>{options.num_stages, "num_stages"},
        {options.max_num_seqs, "max_num_seqs"},
        {options.max_num_tokens, "max_num_tokens"}}) {
    if (Result<void> positive = at_least_one(value, name); !positive) {
      return positive;
    }
  }
  for (const auto& [value, name] :
       {std::pair<std::int64_t, const char*>{options.hop_timeout.count(), "hop_timeout"},
        {options.init_timeout.count(), "init_timeout"}}) {
    if (value <= 0) {
      return fail(ErrorCode::kInvalidArgument,
                  std::string(name) + " is " + std::to_string(value) + " ms, expected above 0");
    }
  }
  return {};
}

Result<void> validate_connector(const JobOptions& options, const ConnectorFactory& factory) {
  Result<const ConnectorClass*> connector = factory.get_connector_class(options.afd.connector);
  if (!connector) {
    return fail(std::move(connector).error());
  }
  if (Result<void> available = (*connector)->check_available(); !available) {
    return fail(std::move(available).error().with_context(options.afd.connector));
  }
  if (Result<std::string> extra =
          (*connector)->parse_extra_config(options.afd.connector_extra_config);
      !extra) {
    return fail(std::move(extra).error());
  }
  const Capabilities capabilities = (*connector)->capabilities();
  if (options.num_stages > capabilities.num_stages_max) {
    return fail(ErrorCode::kInvalidArgument, "num_stages is " + std::to_string(options.num_stages) +
                                                 ", " + options.afd.connector + " has at most " +
                                                 std::to_string(capabilities.num_stages_max));
  }
  if (options.afd.compute_gate_on_attention && !capabilities.router_logits) {
    return fail(ErrorCode::kInvalidArgument,
                options.afd.connector +
                    " carries no router logits, so the gate cannot run on the attention side");
  }
  return {};
}

Result<void> validate_request(const Request& request, const model::ModelConfig& config) {
  const auto invalid = [](std::string what) {
    return fail(ErrorCode::kInvalidArgument, std::move(what));
  };
  if (request.prompt_ids.empty()) {
    return invalid("the prompt has no tokens");
  }
  if (request.prompt_ids.size() >= config.max_position_embeddings) {
    return invalid("the prompt has " + std::to_string(request.prompt_ids.size()) +
                   " tokens, the model's context of " +
                   std::to_string(config.max_position_embeddings) + " leaves room for " +
                   std::to_string(config.max_position_embeddings - 1));
  }
  for (std::size_t position = 0; position < request.prompt_ids.size(); ++position) {
    const std::int64_t id = request.prompt_ids[position];
    if (id < 0 || id >= config.vocab_size) {
      return invalid("token id " + std::to_string(id) + " at position " + std::to_string(position) +
                     " is not in [0, " + std::to_string(config.vocab_size) + ")");
    }
  }
  if (request.max_new_tokens == 0) {
    return invalid("max_new_tokens is 0, expected at least 1");
  }
  if (!std::isfinite(request.sampling.temperature) || request.sampling.temperature < 0.0) {
    return invalid("temperature is " + std::to_string(request.sampling.temperature) +
                   ", expected a finite number of at least 0");
  }
  return {};
}

ConnectorParams connector_params(const JobOptions& options, const model::Checkpoint& checkpoint,
                                 Role role, std::uint32_t role_rank) {
  const model::ModelConfig& config = checkpoint.config();
  ConnectorParams params;
  params.role_rank = role_rank;
  params.config = options.afd;
  params.config.role = role;
  const std::uint32_t first = role == Role::kFfn ? 0 : options.afd.num_ffn_ranks;
  params.rank = static_cast<std::int32_t>(first + role_rank);
  params.limits = {
      .hidden_size = config.hidden_size,
      .num_layers = config.num_hidden_layers,
      .num_experts = options.afd.compute_gate_on_attention ? config.n_routed_experts : 0,
      .top_k = 0,
      .max_num_tokens = options.max_num_tokens,
      .num_stages = options.num_stages,
      .dtype = kFloat32,
  };
  params.must_match = {{"model", checkpoint.content_hash()}};
  return params;
}

Result<void> validate_connector_limits(const JobOptions& options,
                                       const model::Checkpoint& checkpoint,
                                       const ConnectorFactory& factory) {
  for (const Role role : {Role::kFfn, Role::kAttention}) {
    Result<std::unique_ptr<ConnectorBase>> connector =
        factory.create_connector(connector_params(options, checkpoint, role, 0));
    if (!connector) {
      return fail(std::move(connector).error());
    }
  }
  return {};
}

std::vector<std::vector<Request>> deal_requests(std::span<const Request> requests,
                                                std::uint32_t num_attention_ranks) {
  std::vector<std::vector<Request>> by_rank(num_attention_ranks);
  std::vector<std::uint64_t> num_tokens(num_attention_ranks, 0);
  for (const Request& request : requests) {
    const auto least = std::min_element(num_tokens.begin(), num_tokens.end());
    *least += request.prompt_ids.size() + request.max_new_tokens;
    by_rank[static_cast<std::size_t>(least - num_tokens.begin())].push_back(request);
  }
  return by_rank;
}

std::string digest_requests(std::span<const Request> requests) {
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
  const auto add = [&hash](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (value >> (8 * byte) & 0xff)) * 0x100'0000'01b3;
    }
  };
  for (const Request& request : requests) {
    add(request.request_idx);
    add(request.prompt_ids.size());
    for (const std::int32_t id : request.prompt_ids) {
      add(static_cast<std::uint64_t>(id));
    }
    add(request.max_new_tokens);
    add(std::bit_cast<std::uint64_t>(request.sampling.temperature));
    add(request.sampling.seed);
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016" PRIx64, hash);
  return text;
}

}  // namespace afd::runtime
