#include "model/packed_matrix.h"

#include <bit>
#include <cstring>

namespace afd::model {
namespace {

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

float from_f16(std::uint16_t bits) {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu;
  const std::uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // Zero, or a multiple of 2^-24.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t wide_exponent = exponent == 0x1fu ? 0xffu : exponent + 127 - 15;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

const std::uint16_t* halves(const ConstTensorView& tensor) {
  return static_cast<const std::uint16_t*>(tensor.data);
}

}  // namespace

void convert_to_float(const ConstTensorView& tensor, std::size_t first_element,
                      std::size_t num_elements, float* out) {
  if (tensor.dtype == kFloat32) {
    std::memcpy(out, static_cast<const float*>(tensor.data) + first_element,
                num_elements * sizeof(float));
    return;
  }
  const std::uint16_t* const from = halves(tensor) + first_element;
  const auto convert = tensor.dtype == kBFloat16 ? from_bf16 : from_f16;
  for (std::size_t i = 0; i < num_elements; ++i) {
    out[i] = convert(from[i]);
  }
}

Result<PackedMatrix> PackedMatrix::pack(const std::vector<Part>& parts, Arena& arena) {
  PackedMatrix packed;
  packed.is_bf16_ = true;
  for (const Part& part : parts) {
    const std::size_t columns = part.transposed ? part.tensor.shape[1] : part.num_rows;
    packed.k_ = part.transposed ? part.num_rows : part.tensor.shape[1];
    packed.n_ += columns;
    // Rows of a bfloat16 panel go in pairs.
    packed.is_bf16_ = packed.is_bf16_ && part.tensor.dtype == kBFloat16 && packed.k_ % 2 == 0;
  }
  const std::size_t k = packed.k_;
  const std::size_t num_elements = round_up_to_lanes(packed.n_) * k;
  Result<std::byte*> memory =
      arena.allocate(num_elements * (packed.is_bf16_ ? sizeof(std::uint16_t) : sizeof(float)));
  if (!memory) {
    return fail(std::move(memory).error());
  }
  packed.panels_ = *memory;

  std::vector<float> column(k);
  std::size_t n = 0;
  for (const Part& part : parts) {
    const std::size_t row_size = part.tensor.shape[1];
    const std::size_t columns = part.transposed ? row_size : part.num_rows;
    for (std::size_t j = 0; j < columns; ++j, ++n) {
      const std::size_t panel_begin = n / kLanes * kLanes * k;
      const std::size_t lane = n % kLanes;
      // Where element (i, j) lies in the tensor.
      const std::size_t begin =
          part.transposed ? part.first_row * row_size + j : (part.first_row + j) * row_size;
      const std::size_t step = part.transposed ? row_size : 1;
      if (packed.is_bf16_) {
        const std::uint16_t* const from = halves(part.tensor) + begin;
        auto* const to = reinterpret_cast<std::uint16_t*>(*memory) + panel_begin + lane * 2;
        for (std::size_t i = 0; i < k; i += 2) {
          to[i * kLanes] = from[i * step];
          to[i * kLanes + 1] = from[(i + 1) * step];
        }
        continue;
      }
      auto* const to = reinterpret_cast<float*>(*memory) + panel_begin + lane;
      if (step == 1) {
        convert_to_float(part.tensor, begin, k, column.data());
      } else {
        for (std::size_t i = 0; i < k; ++i) {
          convert_to_float(part.tensor, begin + i * step, 1, &column[i]);
        }
      }
      for (std::size_t i = 0; i < k; ++i) {
        to[i * kLanes] = column[i];
      }
    }
  }
  return packed;
}

void PackedMatrix::multiply(const Kernels& kernels, const float* x, std::size_t x_stride,
                            std::size_t num_rows, float* out, std::size_t out_stride) const {
  const Product product{.x = x,
                        .x_stride = x_stride,
                        .num_rows = num_rows,
                        .panels = panels_,
                        .panel_stride = k_ * kLanes,
                        .k = k_,
                        .n = n_,
                        .out = out,
                        .out_stride = out_stride};
  if (is_bf16_) {
    kernels.product_bf16(product);
  } else {
    kernels.product_f32(product);
  }
}

}  // namespace afd::model
