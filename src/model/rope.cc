#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace afd::model {
namespace {

constexpr std::uint32_t kLowPositions = 256;

double yarn_mscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

/// Radians per position of each pair.
std::vector<double> frequencies(const ModelConfig& config) {
  const std::uint32_t dim = config.qk_rope_head_dim;
  std::vector<double> result(dim / 2);
  for (std::uint32_t pair = 0; pair < dim / 2; ++pair) {
    result[pair] = std::pow(config.rope_theta, -2.0 * pair / dim);
  }
  if (!config.yarn) {
    return result;
  }
  // YaRN: pairs that turn more than beta_fast times within the original context keep their
  // frequency, those that turn less than beta_slow times are slowed by `factor`, and between the
  // two bounds it passes linearly from one to the other.
  const YarnScaling& yarn = *config.yarn;
  const auto pair_that_turns = [&](double turns) {
    return dim *
           std::log(yarn.original_max_position_embeddings / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(config.rope_theta));
  };
  const double low = std::max(std::floor(pair_that_turns(yarn.beta_fast)), 0.0);
  double high = std::min(std::ceil(pair_that_turns(yarn.beta_slow)), dim - 1.0);
  if (low == high) {
    high += 0.001;
  }
  for (std::uint32_t pair = 0; pair < dim / 2; ++pair) {
    const double slowed = std::clamp((pair - low) / (high - low), 0.0, 1.0);
    result[pair] *= slowed / yarn.factor + (1.0 - slowed);
  }
  return result;
}

}  // namespace

float attention_softmax_scale(const ModelConfig& config) {
  double scale =
      1.0 / std::sqrt(static_cast<double>(config.qk_nope_head_dim + config.qk_rope_head_dim));
  if (config.yarn) {
    const double mscale = yarn_mscale(config.yarn->factor, config.yarn->mscale_all_dim);
    scale *= mscale * mscale;
  }
  return static_cast<float>(scale);
}

Rope::Rope(const ModelConfig& config) : num_pairs_(config.qk_rope_head_dim / 2) {
  if (config.yarn) {
    factor_ = yarn_mscale(config.yarn->factor, config.yarn->mscale) /
              yarn_mscale(config.yarn->factor, config.yarn->mscale_all_dim);
  }
  const std::vector<double> radians = frequencies(config);
  const auto fill = [&](std::vector<Rotation>& table, std::uint32_t count, std::uint32_t step) {
    table.reserve(count * num_pairs_);
    for (std::uint32_t i = 0; i < count; ++i) {
      for (double per_position : radians) {
        const double angle = static_cast<double>(i) * step * per_position;
        table.push_back({std::cos(angle), std::sin(angle)});
      }
    }
  };
  fill(low_, std::min(kLowPositions, config.max_position_embeddings), 1);
  fill(high_, (config.max_position_embeddings - 1) / kLowPositions + 1, kLowPositions);
}

void Rope::angles(std::uint32_t position, float* cosines, float* sines) const {
  const Rotation* const low = &low_[position % kLowPositions * num_pairs_];
  const Rotation* const high = &high_[position / kLowPositions * num_pairs_];
  for (std::size_t pair = 0; pair < num_pairs_; ++pair) {
    const double cosine = high[pair].cosine * low[pair].cosine - high[pair].sine * low[pair].sine;
    const double sine = high[pair].sine * low[pair].cosine + high[pair].cosine * low[pair].sine;
    cosines[pair] = static_cast<float>(cosine * factor_);
    sines[pair] = static_cast<float>(sine * factor_);
  }
}

void rotate_pairs(const float* cosines, const float* sines, std::size_t num_pairs, float* x) {
  for (std::size_t pair = 0; pair < num_pairs; ++pair) {
    const float even = x[2 * pair];
    const float odd = x[2 * pair + 1];
    x[2 * pair] = even * cosines[pair] - odd * sines[pair];
    x[2 * pair + 1] = even * sines[pair] + odd * cosines[pair];
  }
}

}  // namespace afd::model
