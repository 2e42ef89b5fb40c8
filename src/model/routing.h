// Which experts a token goes to, from its router logits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/kernels.h"
#include "model/model_config.h"

namespace afd::model {

/// Floats of working memory that route_token() needs.
std::size_t routing_scratch_floats(const ModelConfig& config);

/// Chooses num_experts_per_tok experts, best first; of equals the one with the lower index. Ids are
/// always distinct and in range, whatever the logits are.
/// @param logits   [n_routed_experts]
/// @param bias     [n_routed_experts], e_score_correction_bias; null where topk_method has none
/// @param scratch  [routing_scratch_floats()]
void route_token(const ModelConfig& config, const Kernels& kernels, const float* logits,
                 const float* bias, float* scratch, std::int32_t* topk_ids, float* topk_weights);

}  // namespace afd::model
