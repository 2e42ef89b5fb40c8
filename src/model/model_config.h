// `config.json` of the DeepSeek-V2/V3 family.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

namespace afd::model {

enum class TopkMethod : std::uint8_t { kGreedy, kGroupLimitedGreedy, kNoauxTc };
enum class ScoringFunc : std::uint8_t { kSoftmax, kSigmoid };

/// `rope_scaling` of type "yarn".
struct YarnScaling {
  double factor = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::uint32_t original_max_position_embeddings = 4096;
};

/// Names and meanings are those of the Hugging Face file. Every value was checked against the
/// others.
struct ModelConfig {
  std::string model_type;  ///< "deepseek_v2" or "deepseek_v3"
  std::uint32_t vocab_size = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t intermediate_size = 0;
  std::uint32_t moe_intermediate_size = 0;
  std::uint32_t num_hidden_layers = 0;
  /// Extra layers behind them, for predicting further tokens. Not read: generation needs none.
  std::uint32_t num_nextn_predict_layers = 0;
  std::uint32_t num_attention_heads = 0;
  std::uint32_t n_shared_experts = 0;  ///< 0: none (null in the file)
  std::uint32_t n_routed_experts = 0;  ///< 0: every layer is dense
  std::uint32_t num_experts_per_tok = 0;
  std::uint32_t n_group = 1;
  std::uint32_t topk_group = 1;
  std::uint32_t first_k_dense_replace = 0;
  std::uint32_t moe_layer_freq = 1;
  std::uint32_t kv_lora_rank = 0;
  std::uint32_t q_lora_rank = 0;  ///< 0: queries are not compressed (null in the file)
  std::uint32_t qk_nope_head_dim = 0;
  std::uint32_t qk_rope_head_dim = 0;
  std::uint32_t v_head_dim = 0;
  std::uint32_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
  double routed_scaling_factor = 1.0;
  bool norm_topk_prob = false;
  bool tie_word_embeddings = false;
  TopkMethod topk_method = TopkMethod::kGreedy;
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  std::optional<YarnScaling> yarn;
  std::int32_t bos_token_id = -1;           ///< -1: none
  std::vector<std::int32_t> eos_token_ids;  ///< any of them ends a sequence

  /// True where the layer has experts: n_routed_experts > 0, layer >= first_k_dense_replace and
  /// layer % moe_layer_freq == 0.
  bool is_moe_layer(std::uint32_t layer_idx) const;
};

/// Reads DIR/config.json (and generation_config.json's eos ids, where there is one).
/// @return kInvalidArgument  not of this family, a key missing, of the wrong type or out of
///                           range, or a feature that is not supported: which, found, wanted
Result<ModelConfig> load_model_config(const std::string& directory);

/// The same from the file's text, without files.
Result<ModelConfig> parse_model_config(std::string_view json_text);

}  // namespace afd::model
