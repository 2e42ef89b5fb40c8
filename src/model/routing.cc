#include "model/routing.h"

#include <algorithm>
#include <limits>

namespace afd::model {
namespace {

constexpr float kTaken = -std::numeric_limits<float>::infinity();

/// Index of the largest among those whose `taken` is 0, the first of equals. One is free.
std::size_t best_free(const float* values, const float* taken, std::size_t count) {
  std::size_t best = count;
  for (std::size_t i = 0; i < count; ++i) {
    if (taken[i] == 0.0f && (best == count || values[i] > values[best])) {
      best = i;
    }
  }
  return best;
}

/// Scores of groups: its best expert, or the sum of its two best.
void score_groups(const ModelConfig& config, const float* choice, float* group_scores) {
  const std::size_t group_size = config.n_routed_experts / config.n_group;
  for (std::size_t group = 0; group < config.n_group; ++group) {
    const float* const members = choice + group * group_size;
    float best = kTaken;
    float second = kTaken;
    for (std::size_t i = 0; i < group_size; ++i) {
      if (members[i] > best) {
        second = best;
        best = members[i];
      } else if (members[i] > second) {
        second = members[i];
      }
    }
    group_scores[group] = config.topk_method == TopkMethod::kNoauxTc ? best + second : best;
  }
}

}  // namespace

std::size_t routing_scratch_floats(const ModelConfig& config) {
  // Scores, choice scores, marks of taken experts; groups' scores and marks.
  return 3 * round_up_to_lanes(config.n_routed_experts) + 2 * std::size_t{config.n_group};
}

void route_token(const ModelConfig& config, const Kernels& kernels, const float* logits,
                 const float* bias, float* scratch, std::int32_t* topk_ids, float* topk_weights) {
  const std::size_t num_experts = config.n_routed_experts;
  float* const scores = scratch;
  float* const choice = scores + round_up_to_lanes(num_experts);
  float* const taken = choice + round_up_to_lanes(num_experts);
  float* const group_scores = taken + round_up_to_lanes(num_experts);
  float* const group_taken = group_scores + config.n_group;

  std::copy_n(logits, num_experts, scores);
  if (config.scoring_func == ScoringFunc::kSigmoid) {
    kernels.sigmoid(scores, num_experts);
  } else {
    const float sum = kernels.exp_minus_max(scores, num_experts, 1.0f);
    for (std::size_t i = 0; i < num_experts; ++i) {
      scores[i] /= sum;
    }
  }
  for (std::size_t i = 0; i < num_experts; ++i) {
    choice[i] = bias == nullptr ? scores[i] : scores[i] + bias[i];
  }

  if (config.topk_method != TopkMethod::kGreedy) {
    const std::size_t group_size = num_experts / config.n_group;
    score_groups(config, choice, group_scores);
    std::fill_n(group_taken, config.n_group, 0.0f);
    for (std::size_t i = 0; i < config.topk_group; ++i) {
      group_taken[best_free(group_scores, group_taken, config.n_group)] = 1.0f;
    }
    for (std::size_t i = 0; i < num_experts; ++i) {
      if (group_taken[i / group_size] == 0.0f) {
        choice[i] = 0.0f;  // As the family's own code has it: not minus infinity.
      }
    }
  }

  std::fill_n(taken, num_experts, 0.0f);
  float sum = 0.0f;
  for (std::size_t rank = 0; rank < config.num_experts_per_tok; ++rank) {
    const std::size_t expert = best_free(choice, taken, num_experts);
    taken[expert] = 1.0f;
    topk_ids[rank] = static_cast<std::int32_t>(expert);
    topk_weights[rank] = scores[expert];
    sum += scores[expert];
  }

  const bool normalise = config.num_experts_per_tok > 1 && config.norm_topk_prob;
  // The second generation scales only what it did not normalise, the third both.
  const bool scale = !normalise || config.model_type == "deepseek_v3";
  for (std::size_t rank = 0; rank < config.num_experts_per_tok; ++rank) {
    if (normalise) {
      topk_weights[rank] /= sum + 1e-20f;
    }
    if (scale) {
      topk_weights[rank] *= static_cast<float>(config.routed_scaling_factor);
    }
  }
}

}  // namespace afd::model
