#include "model/model_config.h"

#include <unistd.h>

#include <cmath>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "model/json.h"

namespace afd::model {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kConfigBytesMax = 16u << 20;

// Far beyond every model of the family, and small enough that products of three of them and sums
// over layers stay inside 64 bits.
constexpr std::uint32_t kExtentMax = 1u << 20;
constexpr std::uint32_t kLayersMax = 4096;
constexpr std::uint32_t kPositionsMax = 1u << 24;

/// Reads keys of one object and collects everything that is wrong, so that a user sees it at once.
class Reader {
 public:
  Reader(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {}

  const std::string& problems() const { return problems_; }
  void problem(const std::string& text) { problems_ += text + "\n"; }

  /// The value, or null where the key is missing or null: this family writes "none" as null.
  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::string name(const char* key) const { return prefix_ + key; }

  void wrong(const char* key, const std::string& wanted) {
    const Json* value = find(key);
    problem(name(key) + " is " + (value == nullptr ? "missing" : shown(*value)) + ", expected " +
            wanted);
  }

  struct Range {
    std::uint32_t min;
    std::uint32_t max;
  };

  void required(const char* key, Range range, std::uint32_t* value) {
    if (find(key) == nullptr) {
      wrong(key, "an integer in " + text(range));
      return;
    }
    optional(key, range, value);
  }

  void optional(const char* key, Range range, std::uint32_t* value) {
    const Json* found = find(key);
    if (found == nullptr) {
      return;
    }
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() < range.min ||
        found->get<std::uint64_t>() > range.max) {
      wrong(key, "an integer in " + text(range));
      return;
    }
    *value = found->get<std::uint32_t>();
  }

  /// Finite and above `min`.
  void optional(const char* key, double min, double* value) {
    const Json* found = find(key);
    if (found == nullptr) {
      return;
    }
    if (!found->is_number() || !std::isfinite(found->get<double>()) ||
        found->get<double>() <= min) {
      wrong(key, "a number above " + Json(min).dump());
      return;
    }
    *value = found->get<double>();
  }

  void optional(const char* key, bool* value) {
    const Json* found = find(key);
    if (found == nullptr) {
      return;
    }
    if (!found->is_boolean()) {
      wrong(key, "true or false");
      return;
    }
    *value = found->get<bool>();
  }

  /// A feature that changes the network and is not implemented: the key may only have this value.
  void only(const char* key, const Json& wanted) {
    const Json* found = find(key);
    if (found != nullptr && *found != wanted) {
      wrong(key, wanted.dump() + ": nothing else is supported");
    }
  }

  void absent(const char* key) {
    if (find(key) != nullptr) {
      wrong(key, "none: it is not supported");
    }
  }

 private:
  static std::string text(Range range) {
    return "[" + std::to_string(range.min) + ", " + std::to_string(range.max) + "]";
  }

  const Json& object_;
  std::string prefix_;
  std::string problems_;
};

/// Reads one id or a list of ids.
void read_ids(Reader& reader, const char* key, std::vector<std::int32_t>* ids) {
  const Json* found = reader.find(key);
  if (found == nullptr) {
    return;
  }
  const auto is_id = [](const Json& value) {
    return value.is_number_unsigned() &&
           value.get<std::uint64_t>() <=
               static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  };
  ids->clear();
  if (is_id(*found)) {
    ids->push_back(found->get<std::int32_t>());
    return;
  }
  if (found->is_array()) {
    for (const Json& value : *found) {
      if (!is_id(value)) {
        reader.wrong(key, "token ids");
        return;
      }
      ids->push_back(value.get<std::int32_t>());
    }
    return;
  }
  reader.wrong(key, "a token id or a list of them");
}

void read_yarn(Reader& reader, ModelConfig* config) {
  reader.absent("rope_parameters");
  const Json* scaling = reader.find("rope_scaling");
  if (scaling == nullptr) {
    return;
  }
  if (!scaling->is_object()) {
    reader.wrong("rope_scaling", "null or an object of type \"yarn\"");
    return;
  }
  Reader nested(*scaling, "rope_scaling.");
  const Json* type =
      nested.find("type") != nullptr ? nested.find("type") : nested.find("rope_type");
  if (type == nullptr || *type != "yarn") {
    reader.problem("rope_scaling has type " + (type == nullptr ? "none" : shown(*type)) +
                   ", expected \"yarn\": nothing else is supported");
    return;
  }
  nested.only("rope_type", "yarn");
  YarnScaling yarn;
  for (const char* key : {"factor", "original_max_position_embeddings"}) {
    if (nested.find(key) == nullptr) {
      nested.wrong(key, "a positive number");
    }
  }
  nested.optional("factor", 0.0, &yarn.factor);
  nested.optional("mscale", 0.0, &yarn.mscale);
  if (const Json* value = nested.find("mscale_all_dim"); value != nullptr && *value != 0) {
    nested.optional("mscale_all_dim", 0.0, &yarn.mscale_all_dim);
  }
  nested.optional("beta_fast", 0.0, &yarn.beta_fast);
  nested.optional("beta_slow", 0.0, &yarn.beta_slow);
  nested.optional("original_max_position_embeddings", {1, kPositionsMax},
                  &yarn.original_max_position_embeddings);
  nested.absent("attention_factor");
  if (yarn.factor < 1.0) {
    nested.wrong("factor", "at least 1");
  }
  if (yarn.beta_fast < yarn.beta_slow) {
    nested.wrong("beta_fast", "at least beta_slow");
  }
  config->yarn = yarn;
  if (!nested.problems().empty()) {
    reader.problem(nested.problems().substr(0, nested.problems().size() - 1));
  }
}

void read_routing(Reader& reader, ModelConfig* config) {
  const bool v3 = config->model_type == "deepseek_v3";
  // Each generation's own router; their configurations may leave the names out.
  config->topk_method = v3 ? TopkMethod::kNoauxTc : TopkMethod::kGreedy;
  config->scoring_func = v3 ? ScoringFunc::kSigmoid : ScoringFunc::kSoftmax;
  reader.only("scoring_func", v3 ? "sigmoid" : "softmax");
  if (v3) {
    reader.only("topk_method", "noaux_tc");
  } else if (const Json* method = reader.find("topk_method"); method != nullptr) {
    if (*method == "group_limited_greedy") {
      config->topk_method = TopkMethod::kGroupLimitedGreedy;
    } else if (*method != "greedy") {
      reader.wrong("topk_method", "\"greedy\" or \"group_limited_greedy\"");
    }
  }
  reader.required("num_experts_per_tok", {1, config->n_routed_experts},
                  &config->num_experts_per_tok);
  reader.required("moe_intermediate_size", {1, kExtentMax}, &config->moe_intermediate_size);
  reader.optional("n_group", {1, config->n_routed_experts}, &config->n_group);
  reader.optional("topk_group", {1, config->n_routed_experts}, &config->topk_group);
  reader.optional("routed_scaling_factor", 0.0, &config->routed_scaling_factor);
  reader.optional("norm_topk_prob", &config->norm_topk_prob);
  if (v3 && reader.find("norm_topk_prob") == nullptr) {
    reader.wrong("norm_topk_prob", "true or false");
  }
  if (config->topk_method == TopkMethod::kGreedy || !reader.problems().empty()) {
    return;
  }
  const std::string experts = std::to_string(config->n_routed_experts) + " routed experts";
  if (config->n_routed_experts % config->n_group != 0) {
    reader.wrong("n_group", "a divisor of " + experts);
    return;
  }
  if (config->topk_group > config->n_group) {
    reader.wrong("topk_group", "at most n_group, " + std::to_string(config->n_group));
  }
  const std::uint32_t group_size = config->n_routed_experts / config->n_group;
  if (config->num_experts_per_tok > config->topk_group * group_size) {
    reader.wrong("num_experts_per_tok", "at most the " +
                                            std::to_string(config->topk_group * group_size) +
                                            " experts of the chosen groups");
  }
  if (v3 && group_size < 2) {
    reader.wrong("n_group", "groups of at least two of " + experts +
                                ": a group's score is the sum of its two best");
  }
}

Result<ModelConfig> read_config(const Json& json) {
  if (!json.is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                "the text is " + std::string(kind_of(json)) + ", expected an object");
  }
  Reader reader(json, "");
  ModelConfig config;
  const Json* model_type = reader.find("model_type");
  if (model_type == nullptr || (*model_type != "deepseek_v2" && *model_type != "deepseek_v3")) {
    return fail(ErrorCode::kInvalidArgument,
                "model_type is " + (model_type == nullptr ? "missing" : shown(*model_type)) +
                    ", expected \"deepseek_v2\" or \"deepseek_v3\": no other family is supported");
  }
  config.model_type = model_type->get<std::string>();

  reader.absent("quantization_config");
  reader.only("attention_bias", false);
  reader.only("mlp_bias", false);
  reader.only("hidden_act", "silu");
  reader.only("rope_interleave", true);
  reader.only("pretraining_tp", 1);

  reader.required("vocab_size", {1, kPositionsMax}, &config.vocab_size);
  reader.required("hidden_size", {1, kExtentMax}, &config.hidden_size);
  reader.required("intermediate_size", {1, kExtentMax}, &config.intermediate_size);
  reader.required("num_hidden_layers", {1, kLayersMax}, &config.num_hidden_layers);
  reader.required("num_attention_heads", {1, kLayersMax}, &config.num_attention_heads);
  reader.required("kv_lora_rank", {1, kExtentMax}, &config.kv_lora_rank);
  reader.optional("q_lora_rank", {1, kExtentMax}, &config.q_lora_rank);
  reader.required("qk_nope_head_dim", {1, kLayersMax}, &config.qk_nope_head_dim);
  reader.required("qk_rope_head_dim", {2, kLayersMax}, &config.qk_rope_head_dim);
  reader.required("v_head_dim", {1, kLayersMax}, &config.v_head_dim);
  reader.required("max_position_embeddings", {1, kPositionsMax}, &config.max_position_embeddings);
  reader.optional("rope_theta", 1.0, &config.rope_theta);
  reader.optional("rms_norm_eps", 0.0, &config.rms_norm_eps);
  reader.optional("tie_word_embeddings", &config.tie_word_embeddings);
  if (config.qk_rope_head_dim % 2 != 0) {
    reader.wrong("qk_rope_head_dim", "an even number: it is rotated in pairs");
  }
  if (const Json* heads = reader.find("num_key_value_heads");
      heads != nullptr && *heads != config.num_attention_heads) {
    reader.wrong("num_key_value_heads",
                 "num_attention_heads, " + std::to_string(config.num_attention_heads));
  }

  reader.optional("n_routed_experts", {0, kLayersMax}, &config.n_routed_experts);
  reader.optional("n_shared_experts", {0, kLayersMax}, &config.n_shared_experts);
  reader.optional("first_k_dense_replace", {0, kLayersMax}, &config.first_k_dense_replace);
  reader.optional("moe_layer_freq", {1, kLayersMax}, &config.moe_layer_freq);
  if (config.n_routed_experts > 0) {
    read_routing(reader, &config);
  } else if (config.n_shared_experts > 0) {
    reader.wrong("n_shared_experts", "none, because there are no routed experts");
  }
  read_yarn(reader, &config);

  std::vector<std::int32_t> bos;
  read_ids(reader, "bos_token_id", &bos);
  if (bos.size() > 1) {
    reader.wrong("bos_token_id", "one token id");
  }
  config.bos_token_id = bos.empty() ? -1 : bos.front();
  read_ids(reader, "eos_token_id", &config.eos_token_ids);

  if (!reader.problems().empty()) {
    return fail(ErrorCode::kInvalidArgument,
                reader.problems().substr(0, reader.problems().size() - 1));
  }
  return config;
}

/// Special ids beyond the vocabulary can never be produced, or would be read out of bounds.
Result<void> check_ids(const ModelConfig& config, const std::vector<std::int32_t>& ids,
                       const char* what) {
  for (std::int32_t id : ids) {
    if (static_cast<std::uint32_t>(id) >= config.vocab_size) {
      return fail(ErrorCode::kInvalidArgument, std::string(what) + " is " + std::to_string(id) +
                                                   ", expected an id below vocab_size, " +
                                                   std::to_string(config.vocab_size));
    }
  }
  return {};
}

}  // namespace

bool ModelConfig::is_moe_layer(std::uint32_t layer_idx) const {
  return n_routed_experts > 0 && layer_idx >= first_k_dense_replace &&
         layer_idx % moe_layer_freq == 0;
}

Result<ModelConfig> parse_model_config(std::string_view json_text) {
  const Result<Json> json = parse_json<Json>(json_text);
  if (!json) {
    return fail(json.error());
  }
  Result<ModelConfig> config = read_config(*json);
  if (!config) {
    return config;
  }
  if (config->bos_token_id >= 0) {
    if (Result<void> checked = check_ids(*config, {config->bos_token_id}, "bos_token_id");
        !checked) {
      return fail(std::move(checked).error());
    }
  }
  if (Result<void> checked = check_ids(*config, config->eos_token_ids, "eos_token_id"); !checked) {
    return fail(std::move(checked).error());
  }
  return config;
}

Result<ModelConfig> load_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Result<std::string> text = read_text_file(path, kConfigBytesMax);
  if (!text) {
    return fail(text.error());
  }
  Result<ModelConfig> config = parse_model_config(*text);
  if (!config) {
    return fail(std::move(config).error().with_context(path));
  }

  const std::string generation_path = directory + "/generation_config.json";
  if (::access(generation_path.c_str(), F_OK) != 0) {
    return config;
  }
  const Result<std::string> generation_text = read_text_file(generation_path, kConfigBytesMax);
  if (!generation_text) {
    return fail(generation_text.error());
  }
  const Result<Json> generation = parse_json<Json>(*generation_text);
  if (!generation) {
    return fail(Error(generation.error()).with_context(generation_path));
  }
  if (!generation->is_object()) {
    return fail(ErrorCode::kInvalidArgument, generation_path + ": the text is " +
                                                 std::string(kind_of(*generation)) +
                                                 ", expected an object");
  }
  Reader reader(*generation, "");
  read_ids(reader, "eos_token_id", &config->eos_token_ids);
  if (!reader.problems().empty()) {
    return fail(ErrorCode::kInvalidArgument,
                generation_path + ": " + reader.problems().substr(0, reader.problems().size() - 1));
  }
  if (Result<void> checked = check_ids(*config, config->eos_token_ids, "eos_token_id"); !checked) {
    return fail(std::move(checked).error().with_context(generation_path));
  }
  return config;
}

}  // namespace afd::model
