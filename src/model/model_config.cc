#include "model/model_config.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "model/json_file.h"

namespace afd::model {
namespace {

constexpr std::uint64_t kConfigBytesMax = 16u << 20;

// Far beyond every model of the family, and small enough that products of three of them and sums
// over layers stay inside 64 bits.
constexpr std::uint32_t kExtentMax = 1u << 20;
constexpr std::uint32_t kLayersMax = 4096;
constexpr std::uint32_t kHeadDimMax = 1024;
constexpr std::uint32_t kPositionsMax = 1u << 22;
constexpr std::uint32_t kVocabMax = 1u << 24;
constexpr double kNumberMax = 1e12;  // Squares and products of logarithms stay floats.

bool is_text(const JsonValue& value, std::string_view wanted) {
  return value.kind == JsonValue::Kind::kString && value.text == wanted;
}

/// A finite number, or none.
std::optional<double> as_number(const JsonValue& value) {
  if (value.kind == JsonValue::Kind::kInteger) {
    return static_cast<double>(value.integer);
  }
  double number = 0.0;
  const char* const end = value.text.data() + value.text.size();
  if (value.kind != JsonValue::Kind::kOtherNumber ||
      std::from_chars(value.text.data(), end, number).ptr != end || !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

/// Reads keys of one object and collects everything that is wrong, so that a user sees it at once.
class Reader {
 public:
  Reader(const JsonValue& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {}

  const std::string& problems() const { return problems_; }
  /// Without the last line's end.
  std::string all_problems() const { return problems_.substr(0, problems_.size() - 1); }
  void problem(const std::string& text) { problems_ += text + "\n"; }

  /// The value, or null where the key is missing or null: this family writes "none" as null.
  const JsonValue* find(const char* key) const {
    const JsonValue* const found = object_.find(key);
    return found == nullptr || found->kind == JsonValue::Kind::kNull ? nullptr : found;
  }

  std::string name(const char* key) const { return prefix_ + key; }

  void wrong(const char* key, const std::string& wanted) {
    const JsonValue* value = find(key);
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
    const JsonValue* found = find(key);
    if (found == nullptr) {
      return;
    }
    if (found->kind != JsonValue::Kind::kInteger || found->integer < range.min ||
        found->integer > range.max) {
      wrong(key, "an integer in " + text(range));
      return;
    }
    *value = static_cast<std::uint32_t>(found->integer);
  }

  /// Above `min`, which is 0 or 1, and up to kNumberMax.
  void optional(const char* key, double min, double* value) {
    const JsonValue* found = find(key);
    if (found == nullptr) {
      return;
    }
    const std::optional<double> number = as_number(*found);
    if (!number || *number <= min || *number > kNumberMax) {
      wrong(key, min == 0.0 ? "a positive number up to 1e12" : "a number above 1, up to 1e12");
      return;
    }
    *value = *number;
  }

  void optional(const char* key, bool* value) {
    const JsonValue* found = find(key);
    if (found == nullptr) {
      return;
    }
    if (found->kind != JsonValue::Kind::kBoolean) {
      wrong(key, "true or false");
      return;
    }
    *value = found->boolean;
  }

  /// A feature that changes the network and is not implemented: the key may only say this.
  void only(const char* key, std::string_view wanted) {
    const JsonValue* found = find(key);
    if (found != nullptr && !is_text(*found, wanted)) {
      wrong(key, '"' + std::string(wanted) + "\": nothing else is supported");
    }
  }

  void only(const char* key, bool wanted) {
    const JsonValue* found = find(key);
    if (found != nullptr &&
        (found->kind != JsonValue::Kind::kBoolean || found->boolean != wanted)) {
      wrong(key, std::string(wanted ? "true" : "false") + ": nothing else is supported");
    }
  }

  void only(const char* key, std::uint32_t wanted) {
    const JsonValue* found = find(key);
    if (found != nullptr &&
        (found->kind != JsonValue::Kind::kInteger || found->integer != wanted)) {
      wrong(key, std::to_string(wanted) + ": nothing else is supported");
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

  const JsonValue& object_;
  std::string prefix_;
  std::string problems_;
};

/// Reads one id or a list of ids. Ids beyond the vocabulary can never be produced.
void read_ids(Reader& reader, const char* key, const ModelConfig& config,
              std::vector<std::int32_t>* ids) {
  const JsonValue* found = reader.find(key);
  if (found == nullptr) {
    return;
  }
  const std::string wanted = "ids below vocab_size, " + std::to_string(config.vocab_size);
  const auto is_id = [&](const JsonValue& value) {
    return value.kind == JsonValue::Kind::kInteger && value.integer >= 0 &&
           value.integer < config.vocab_size;
  };
  ids->clear();
  if (is_id(*found)) {
    ids->push_back(static_cast<std::int32_t>(found->integer));
    return;
  }
  if (found->kind == JsonValue::Kind::kArray) {
    for (const JsonValue& value : found->items) {
      if (!is_id(value)) {
        reader.wrong(key, wanted);
        return;
      }
      ids->push_back(static_cast<std::int32_t>(value.integer));
    }
    return;
  }
  reader.wrong(key, "one or a list of " + wanted);
}

void read_yarn(Reader& reader, ModelConfig* config) {
  reader.absent("rope_parameters");
  const JsonValue* scaling = reader.find("rope_scaling");
  if (scaling == nullptr) {
    return;
  }
  if (scaling->kind != JsonValue::Kind::kObject) {
    reader.wrong("rope_scaling", "null or an object of type \"yarn\"");
    return;
  }
  Reader nested(*scaling, "rope_scaling.");
  const JsonValue* type =
      nested.find("type") != nullptr ? nested.find("type") : nested.find("rope_type");
  if (type == nullptr || !is_text(*type, "yarn")) {
    reader.problem("rope_scaling has type " + (type == nullptr ? "none" : shown(*type)) +
                   ", expected \"yarn\": nothing else is supported");
    return;
  }
  nested.only("type", std::string_view("yarn"));
  nested.only("rope_type", std::string_view("yarn"));
  YarnScaling yarn;
  for (const char* key : {"factor", "original_max_position_embeddings"}) {
    if (nested.find(key) == nullptr) {
      nested.wrong(key, "a positive number up to 1e12");
    }
  }
  nested.optional("factor", 0.0, &yarn.factor);
  nested.optional("mscale", 0.0, &yarn.mscale);
  if (const JsonValue* value = nested.find("mscale_all_dim");
      value != nullptr && as_number(*value) != 0.0) {
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
    reader.problem(nested.all_problems());
  }
}

void read_routing(Reader& reader, ModelConfig* config) {
  const bool v3 = config->model_type == "deepseek_v3";
  // Each generation's own router; their configurations may leave the names out.
  config->topk_method = v3 ? TopkMethod::kNoauxTc : TopkMethod::kGreedy;
  config->scoring_func = v3 ? ScoringFunc::kSigmoid : ScoringFunc::kSoftmax;
  reader.only("scoring_func", std::string_view(v3 ? "sigmoid" : "softmax"));
  if (v3) {
    reader.only("topk_method", std::string_view("noaux_tc"));
  } else if (const JsonValue* method = reader.find("topk_method"); method != nullptr) {
    if (is_text(*method, "group_limited_greedy")) {
      config->topk_method = TopkMethod::kGroupLimitedGreedy;
    } else if (!is_text(*method, "greedy")) {
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

Result<ModelConfig> read_config(const JsonValue& json) {
  if (json.kind != JsonValue::Kind::kObject) {
    return fail(ErrorCode::kInvalidArgument,
                "the text is " + std::string(kind_of(json)) + ", expected an object");
  }
  Reader reader(json, "");
  ModelConfig config;
  const JsonValue* model_type = reader.find("model_type");
  if (model_type == nullptr ||
      (!is_text(*model_type, "deepseek_v2") && !is_text(*model_type, "deepseek_v3"))) {
    return fail(ErrorCode::kInvalidArgument,
                "model_type is " + (model_type == nullptr ? "missing" : shown(*model_type)) +
                    ", expected \"deepseek_v2\" or \"deepseek_v3\": no other family is supported");
  }
  config.model_type = model_type->text;

  reader.absent("quantization_config");
  reader.only("attention_bias", false);
  reader.only("mlp_bias", false);
  reader.only("hidden_act", std::string_view("silu"));
  reader.only("rope_interleave", true);
  reader.only("pretraining_tp", 1u);

  reader.required("vocab_size", {1, kVocabMax}, &config.vocab_size);
  reader.required("hidden_size", {1, kExtentMax}, &config.hidden_size);
  reader.required("intermediate_size", {1, kExtentMax}, &config.intermediate_size);
  reader.required("num_hidden_layers", {1, kLayersMax}, &config.num_hidden_layers);
  reader.required("num_attention_heads", {1, kLayersMax}, &config.num_attention_heads);
  reader.required("kv_lora_rank", {1, kExtentMax}, &config.kv_lora_rank);
  reader.optional("q_lora_rank", {1, kExtentMax}, &config.q_lora_rank);
  reader.required("qk_nope_head_dim", {1, kHeadDimMax}, &config.qk_nope_head_dim);
  reader.required("qk_rope_head_dim", {2, kHeadDimMax}, &config.qk_rope_head_dim);
  reader.required("v_head_dim", {1, kHeadDimMax}, &config.v_head_dim);
  reader.required("max_position_embeddings", {1, kPositionsMax}, &config.max_position_embeddings);
  reader.optional("rope_theta", 1.0, &config.rope_theta);
  reader.optional("rms_norm_eps", 0.0, &config.rms_norm_eps);
  reader.optional("tie_word_embeddings", &config.tie_word_embeddings);
  if (config.qk_rope_head_dim % 2 != 0) {
    reader.wrong("qk_rope_head_dim", "an even number: it is rotated in pairs");
  }
  std::uint32_t kv_heads = config.num_attention_heads;
  reader.optional("num_key_value_heads", {1, kLayersMax}, &kv_heads);
  if (kv_heads != config.num_attention_heads) {
    reader.wrong("num_key_value_heads",
                 "num_attention_heads, " + std::to_string(config.num_attention_heads));
  }

  reader.optional("n_routed_experts", {0, kLayersMax}, &config.n_routed_experts);
  reader.optional("num_nextn_predict_layers", {0, kLayersMax}, &config.num_nextn_predict_layers);
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
  read_ids(reader, "bos_token_id", config, &bos);
  if (bos.size() > 1) {
    reader.wrong("bos_token_id", "one token id");
  }
  config.bos_token_id = bos.empty() ? -1 : bos.front();
  read_ids(reader, "eos_token_id", config, &config.eos_token_ids);

  if (!reader.problems().empty()) {
    return fail(ErrorCode::kInvalidArgument, reader.all_problems());
  }
  return config;
}

}  // namespace

bool ModelConfig::is_moe_layer(std::uint32_t layer_idx) const {
  return n_routed_experts > 0 && layer_idx >= first_k_dense_replace &&
         layer_idx % moe_layer_freq == 0;
}

Result<ModelConfig> parse_model_config(std::string_view json_text) {
  const Result<JsonValue> json =
      parse_json(json_text, {.bytes_max = static_cast<std::size_t>(kConfigBytesMax)});
  if (!json) {
    return fail(json.error());
  }
  return read_config(*json);
}

Result<ModelConfig> load_model_config(const std::string& directory) {
  const std::string path = directory + "/config.json";
  const Result<JsonValue> json = read_json_file(path, kConfigBytesMax);
  if (!json) {
    return fail(json.error());
  }
  Result<ModelConfig> config = read_config(*json);
  if (!config) {
    return fail(std::move(config).error().with_context(path));
  }

  const std::string generation_path = directory + "/generation_config.json";
  if (::access(generation_path.c_str(), F_OK) != 0) {
    return config;
  }
  const Result<JsonValue> generation = read_json_file(generation_path, kConfigBytesMax);
  if (!generation) {
    return fail(generation.error());
  }
  if (generation->kind != JsonValue::Kind::kObject) {
    return fail(ErrorCode::kInvalidArgument, generation_path + ": the text is " +
                                                 std::string(kind_of(*generation)) +
                                                 ", expected an object");
  }
  Reader reader(*generation, "");
  read_ids(reader, "eos_token_id", *config, &config->eos_token_ids);
  if (!reader.problems().empty()) {
    return fail(ErrorCode::kInvalidArgument, generation_path + ": " + reader.all_problems());
  }
  return config;
}

}  // namespace afd::model
