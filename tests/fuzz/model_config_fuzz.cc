// A model's config.json: what is taken can be used for rotations, masks and routing without another
// check.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "model/model_config.h"
#include "model/rope.h"
#include "model/routing.h"

namespace {

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void route_once(const afd::model::ModelConfig& config) {
  std::vector<float> logits(config.n_routed_experts);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i * 37 % 11) - 5.0f;
  }
  const std::vector<float> bias(logits.size(), 0.25f);
  std::vector<float> scratch(afd::model::routing_scratch_floats(config));
  std::vector<std::int32_t> ids(config.num_experts_per_tok);
  std::vector<float> weights(ids.size());
  afd::model::route_token(config, *afd::model::kernels_for(afd::model::InstructionSet::kBest),
                          logits.data(), bias.data(), scratch.data(), ids.data(), weights.data());
  std::vector<bool> taken(logits.size());
  for (std::int32_t id : ids) {
    check(id >= 0 && static_cast<std::size_t>(id) < taken.size());
    check(!taken[static_cast<std::size_t>(id)]);
    taken[static_cast<std::size_t>(id)] = true;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = afd::model::parse_model_config(text);
  if (!config) {
    check(config.error().code == afd::ErrorCode::kInvalidArgument);
    check(!config.error().message.empty() && config.error().message.size() < 20'000);
    return 0;
  }
  check(config->vocab_size > 0 && config->hidden_size > 0 && config->num_hidden_layers > 0);
  check(config->moe_layer_freq > 0);
  config->is_moe_layer(config->num_hidden_layers - 1);
  check(config->bos_token_id < static_cast<std::int64_t>(config->vocab_size));
  for (std::int32_t id : config->eos_token_ids) {
    check(id >= 0 && static_cast<std::uint32_t>(id) < config->vocab_size);
  }
  check(!std::isnan(afd::model::attention_softmax_scale(*config)));
  if (config->max_position_embeddings <= 100'000 && config->qk_rope_head_dim <= 64) {
    const afd::model::Rope rope(*config);
    std::vector<float> cosines(rope.num_pairs());
    std::vector<float> sines(rope.num_pairs());
    rope.angles(config->max_position_embeddings - 1, cosines.data(), sines.data());
  }
  if (config->n_routed_experts > 0) {
    route_once(*config);
  }
  return 0;
}
