#include "model/mlp.h"

namespace afd::model {

Result<Mlp> Mlp::load(const Checkpoint& checkpoint, const std::string& prefix,
                      std::size_t intermediate_size, Arena& arena) {
  const std::size_t hidden_size = checkpoint.config().hidden_size;
  const Shape inner{intermediate_size, hidden_size};
  const Result<ConstTensorView> gate = checkpoint.tensor(prefix + ".gate_proj.weight", inner);
  if (!gate) {
    return fail(gate.error());
  }
  const Result<ConstTensorView> up = checkpoint.tensor(prefix + ".up_proj.weight", inner);
  if (!up) {
    return fail(up.error());
  }
  Mlp mlp;
  Result<PackedMatrix> gate_up =
      PackedMatrix::pack({{.tensor = *gate, .num_rows = intermediate_size},
                          {.tensor = *up, .num_rows = intermediate_size}},
                         arena);
  if (!gate_up) {
    return fail(std::move(gate_up).error());
  }
  mlp.gate_up_ = *gate_up;
  Result<PackedMatrix> down =
      load_matrix(checkpoint, prefix + ".down_proj.weight", hidden_size, intermediate_size, arena);
  if (!down) {
    return fail(std::move(down).error());
  }
  mlp.down_ = *down;
  return mlp;
}

void Mlp::forward(const Kernels& kernels, const float* x, std::size_t num_rows, float* output,
                  Scratch::Buffers& buffers) const {
  const std::size_t hidden_size = gate_up_.k();
  const std::size_t inner_stride = gate_up_.n();
  const std::size_t intermediate_size = inner_stride / 2;
  float* const inner = buffers.floats(Slot::kMlpInner, num_rows * inner_stride);
  gate_up_.multiply(kernels, x, hidden_size, num_rows, inner, inner_stride);
  for (std::size_t row = 0; row < num_rows; ++row) {
    float* const gate = inner + row * inner_stride;
    kernels.silu_multiply(gate, gate + intermediate_size, intermediate_size, gate);
  }
  down_.multiply(kernels, inner, inner_stride, num_rows, output, hidden_size);
}

Result<std::vector<float>> load_vector(const Checkpoint& checkpoint, const std::string& name,
                                       std::size_t size) {
  const Result<ConstTensorView> tensor = checkpoint.tensor(name, Shape{size});
  if (!tensor) {
    return fail(tensor.error());
  }
  std::vector<float> values(size);
  convert_to_float(*tensor, 0, size, values.data());
  return values;
}

Result<PackedMatrix> load_matrix(const Checkpoint& checkpoint, const std::string& name,
                                 std::size_t n, std::size_t k, Arena& arena) {
  const Result<ConstTensorView> tensor = checkpoint.tensor(name, Shape{n, k});
  if (!tensor) {
    return fail(tensor.error());
  }
  return PackedMatrix::pack({{.tensor = *tensor, .num_rows = n}}, arena);
}

std::string layer_name(std::uint32_t layer_idx, const std::string& rest) {
  return "model.layers." + std::to_string(layer_idx) + "." + rest;
}

Result<const Kernels*> find_kernels(InstructionSet instruction_set) {
  const Kernels* const kernels = kernels_for(instruction_set);
  if (kernels == nullptr) {
    return fail(ErrorCode::kUnavailable,
                std::string("this machine or build lacks ") +
                    (instruction_set == InstructionSet::kAvx512 ? "AVX-512" : "AVX2"));
  }
  return kernels;
}

}  // namespace afd::model
