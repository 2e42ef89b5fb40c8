#include "model/checkpoint_review.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <string_view>

#include "model/json_file.h"
#include "model/packed_matrix.h"

namespace afd::model {
namespace {

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

/// Takes "PREFIX" and a number with a dot behind it off the front.
std::optional<std::uint32_t> take_number(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) {
    return std::nullopt;
  }
  std::string_view rest = name.substr(prefix.size());
  std::uint32_t number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  if (error != std::errc() || !rest.starts_with('.')) {
    return std::nullopt;
  }
  name = rest.substr(1);
  return number;
}

bool is_mlp(std::string_view rest) {
  return is_one_of(rest, {"gate_proj.weight", "up_proj.weight", "down_proj.weight"});
}

bool is_used_in_attention(const ModelConfig& config, std::string_view rest) {
  if (config.q_lora_rank > 0 &&
      is_one_of(rest, {"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"})) {
    return true;
  }
  if (config.q_lora_rank == 0 && rest == "q_proj.weight") {
    return true;
  }
  return is_one_of(rest, {"kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight", "kv_b_proj.weight",
                          "o_proj.weight", "rotary_emb.inv_freq"});
}

bool is_used_in_mlp(const ModelConfig& config, std::uint32_t layer_idx, std::string_view rest) {
  if (!config.is_moe_layer(layer_idx)) {
    return is_mlp(rest);
  }
  if (const std::optional<std::uint32_t> expert = take_number(rest, "experts.")) {
    return *expert < config.n_routed_experts && is_mlp(rest);
  }
  constexpr std::string_view kShared = "shared_experts.";
  if (rest.starts_with(kShared)) {
    return config.n_shared_experts > 0 && is_mlp(rest.substr(kShared.size()));
  }
  return rest == "gate.weight" ||
         (config.topk_method == TopkMethod::kNoauxTc && rest == "gate.e_score_correction_bias");
}

bool is_used(const ModelConfig& config, std::string_view name) {
  if (is_one_of(name, {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"})) {
    return true;
  }
  const std::optional<std::uint32_t> layer_idx = take_number(name, "model.layers.");
  if (!layer_idx) {
    return false;
  }
  if (*layer_idx >= config.num_hidden_layers) {
    return *layer_idx - config.num_hidden_layers < config.num_nextn_predict_layers;
  }
  constexpr std::string_view kAttention = "self_attn.";
  constexpr std::string_view kMlp = "mlp.";
  if (name.starts_with(kAttention)) {
    return is_used_in_attention(config, name.substr(kAttention.size()));
  }
  if (name.starts_with(kMlp)) {
    return is_used_in_mlp(config, *layer_idx, name.substr(kMlp.size()));
  }
  return is_one_of(name, {"input_layernorm.weight", "post_attention_layernorm.weight"});
}

}  // namespace

std::vector<std::string> unused_tensors(const Checkpoint& checkpoint) {
  std::vector<std::string> names = checkpoint.tensor_names();
  std::erase_if(names, [&](const std::string& name) { return is_used(checkpoint.config(), name); });
  return names;
}

std::optional<std::string> find_non_finite(const Checkpoint& checkpoint, std::uint64_t bytes_max) {
  constexpr std::uint64_t kBlock = 4096;
  std::vector<float> block(kBlock);
  std::uint64_t bytes_read = 0;
  for (const std::string& name : checkpoint.tensor_names()) {
    const std::optional<ConstTensorView> tensor = checkpoint.find_tensor(name);
    if (!tensor || !is_weight_dtype(tensor->dtype)) {
      continue;
    }
    const std::uint64_t num_elements = tensor->shape.num_elements();
    for (std::uint64_t first = 0; first < num_elements && bytes_read < bytes_max; first += kBlock) {
      const std::uint64_t count = std::min(kBlock, num_elements - first);
      convert_to_float(*tensor, first, count, block.data());
      const auto end = block.begin() + static_cast<std::ptrdiff_t>(count);
      const auto found =
          std::find_if(block.begin(), end, [](float weight) { return !std::isfinite(weight); });
      if (found != end) {
        return "tensor " + shown_name(name) + (std::isnan(*found) ? " is NaN" : " is infinite") +
               " at element " +
               std::to_string(first + static_cast<std::uint64_t>(found - block.begin())) + " of " +
               to_string(tensor->shape);
      }
      bytes_read += count * tensor->dtype.size_bytes();
    }
  }
  return std::nullopt;
}

}  // namespace afd::model
