// Rotary position embedding with YaRN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace afd::model {

/// The factor of attention scores before softmax: (qk head width)^-0.5, times YaRN's share.
float attention_softmax_scale(const ModelConfig& config);

/// Cosines and sines of every position, from two short tables: position = 256 high + low, and the
/// rotation by a sum of angles is the product of the rotations. In double precision, rounded once.
///
/// Threads: immutable.
class Rope {
 public:
  Rope() = default;
  explicit Rope(const ModelConfig& config);

  /// For each pair of the rope part, [qk_rope_head_dim / 2]: cosine and sine at this position,
  /// times YaRN's ratio of mscales.
  void angles(std::uint32_t position, float* cosines, float* sines) const;

  std::size_t num_pairs() const { return num_pairs_; }

 private:
  struct Rotation {
    double cosine;
    double sine;
  };

  std::size_t num_pairs_ = 0;
  double factor_ = 1.0;
  std::vector<Rotation> low_;   ///< [256][num_pairs]
  std::vector<Rotation> high_;  ///< [max_position_embeddings / 256 + 1][num_pairs]
};

/// Rotates the interleaved pairs (2 i, 2 i + 1) of `x` [2 * num_pairs].
void rotate_pairs(const float* cosines, const float* sines, std::size_t num_pairs, float* x);

}  // namespace afd::model
