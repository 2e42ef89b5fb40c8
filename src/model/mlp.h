// A gated MLP: down(silu(gate(x)) * up(x)). Dense layers, experts and shared experts are all this.
#pragma once

#include <cstddef>
#include <string>

#include <afd/result.h>

#include "model/checkpoint.h"
#include "model/packed_matrix.h"
#include "model/scratch.h"

namespace afd::model {

/// Threads: immutable once loaded.
class Mlp {
 public:
  Mlp() = default;

  /// Reads `prefix`.{gate,up,down}_proj.weight.
  static Result<Mlp> load(const Checkpoint& checkpoint, const std::string& prefix,
                          std::size_t intermediate_size, Arena& arena);

  /// x and output: [num_rows, hidden_size].
  void forward(const Kernels& kernels, const float* x, std::size_t num_rows, float* output,
               Scratch::Buffers& buffers) const;

 private:
  PackedMatrix gate_up_;
  PackedMatrix down_;
};

/// The vector `name` [size] as floats.
Result<std::vector<float>> load_vector(const Checkpoint& checkpoint, const std::string& name,
                                       std::size_t size);

/// The whole matrix `name` [n, k].
Result<PackedMatrix> load_matrix(const Checkpoint& checkpoint, const std::string& name,
                                 std::size_t n, std::size_t k, Arena& arena);

/// "model.layers.<layer_idx>.<rest>".
std::string layer_name(std::uint32_t layer_idx, const std::string& rest);

/// @return kUnavailable  this machine has no such instructions
Result<const Kernels*> find_kernels(InstructionSet instruction_set);

}  // namespace afd::model
