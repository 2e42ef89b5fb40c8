// The arithmetic of the network, one row at a time, in several instruction sets with the same bits.
//
// Layout invariance starts here. Every value that these functions compute is defined by a fixed
// sequence of IEEE single-precision operations on its own inputs:
//
//   product   out[r][j] is one chain of fused multiply-adds over k in ascending order, from +0.
//   sums      element i goes to partial sum i % 16, in ascending order; the 16 are then added in
//             halves (i and i + 8, i and i + 4, ...).
//   exp       the same polynomial for every element.
//
// so it depends neither on the other rows, nor on how rows and columns are cut into tiles, nor on
// the width of the machine's vectors.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace afd::model {

/// Elements a vector of the kernels has, and columns a panel has.
inline constexpr std::size_t kLanes = 16;

constexpr std::size_t round_up_to_lanes(std::size_t count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

/// out = x times a matrix in panels. All strides in elements.
///
/// float32: panel p holds columns [16 p, 16 p + 16); element (k, j) at k * k_stride + j.
/// bfloat16: rows 2 i and 2 i + 1 are interleaved, element (k, j) at (k / 2 * 16 + j) * 2 + k % 2,
/// so that one shift and one mask turn 16 words into two rows; k is even and k_stride unused.
struct Product {
  const float* x = nullptr;  ///< [num_rows, k]
  std::size_t x_stride = 0;
  std::size_t num_rows = 0;
  const void* panels = nullptr;
  std::size_t panel_stride = 0;
  std::size_t k_stride = kLanes;
  std::size_t k = 0;
  std::size_t n = 0;     ///< Columns that are stored; the last panel is readable up to its 16th.
  float* out = nullptr;  ///< [num_rows, n]
  std::size_t out_stride = 0;
};

struct Kernels {
  const char* name;  ///< "avx512", "avx2", "portable"

  void (*product_f32)(const Product& product);
  void (*product_bf16)(const Product& product);

  /// out = x / sqrt(mean(x^2) + eps) * weight. In place is fine.
  void (*rms_norm)(const float* x, const float* weight, std::size_t count, float eps, float* out);

  /// x[i] = exp((x[i] - max) * scale), returns their sum. `x` has room up to a multiple of 16
  /// elements; those from `count` on become 0. `scale` is positive.
  float (*exp_minus_max)(float* x, std::size_t count, float scale);

  /// x[i] = 1 / (1 + exp(-x[i])).
  void (*sigmoid)(float* x, std::size_t count);

  /// out[i] = gate[i] * sigmoid(gate[i]) * up[i]. `out` may be `gate`.
  void (*silu_multiply)(const float* gate, const float* up, std::size_t count, float* out);

  /// out[i] += in[i].
  void (*add)(float* out, const float* in, std::size_t count);
  /// out[i] = in[i] * factor. In place is fine.
  void (*scale)(float* out, const float* in, float factor, std::size_t count);
  /// out[i] = fma(in[i], factor, out[i]).
  void (*scale_add)(float* out, const float* in, float factor, std::size_t count);

  /// panel[i * 16 + r] = rows[r][i] for i < count rounded up to 16: the rows have that many
  /// readable elements.
  void (*transpose)(const float* const rows[kLanes], std::size_t count, float* panel);
};

enum class InstructionSet : std::uint8_t { kBest, kPortable, kAvx2, kAvx512 };

/// Null where this machine or this build has no such instructions; never for kBest and kPortable.
const Kernels* kernels_for(InstructionSet instruction_set);

}  // namespace afd::model
