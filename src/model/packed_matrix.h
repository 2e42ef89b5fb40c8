// A weight matrix in the panels that the kernels read, and small vectors of weights as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <afd/result.h>
#include <afd/tensor.h>

#include "model/arena.h"
#include "model/kernels.h"

namespace afd::model {

/// The transposed weights of a linear layer: x [rows, k] times this is [rows, n].
///
/// Kept as bfloat16 where the file is bfloat16 (half the memory traffic, exact) and as float32
/// otherwise. Threads: immutable.
class PackedMatrix {
 public:
  /// A piece of a stored matrix that gives some of the columns: column j, row k is element (j, k)
  /// of `rows` [columns, k], row stride `row_stride`; or, `transposed`, element (k, j).
  struct Part {
    ConstTensorView tensor;  ///< Rank 2, f32, f16 or bf16.
    std::size_t first_row = 0;
    std::size_t num_rows = 0;
    bool transposed = false;
  };

  PackedMatrix() = default;

  /// The parts' columns side by side. All have the same k.
  /// @return kUnavailable  too little memory
  static Result<PackedMatrix> pack(const std::vector<Part>& parts, Arena& arena);

  /// out [num_rows, n] = x [num_rows, k] times this. Strides in floats.
  void multiply(const Kernels& kernels, const float* x, std::size_t x_stride, std::size_t num_rows,
                float* out, std::size_t out_stride) const;

  std::size_t k() const { return k_; }
  std::size_t n() const { return n_; }

 private:
  const void* panels_ = nullptr;
  std::size_t k_ = 0;
  std::size_t n_ = 0;
  bool is_bf16_ = false;
};

/// The elements as floats, into `out` [num_elements].
void convert_to_float(const ConstTensorView& tensor, std::size_t first_element,
                      std::size_t num_elements, float* out);

}  // namespace afd::model
