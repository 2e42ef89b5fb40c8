#include "model/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

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

/// Where the elements of one column lie: every `step` elements from `begin`.
struct Column {
  ConstTensorView tensor;
  std::size_t begin;
  std::size_t step;
};

void fill_bf16_panel(std::span<const Column> columns, std::size_t k, std::uint32_t* panel) {
  for (std::size_t lane = 0; lane < columns.size(); ++lane) {
    const Column& column = columns[lane];
    const std::uint16_t* const from = halves(column.tensor) + column.begin;
    const std::size_t step = column.step;
    if (step == 1) {  // Most of a model: pairs lie in the file as they lie in a panel.
      for (std::size_t i = 0; i < k; i += 2) {
        std::memcpy(&panel[i / 2 * kLanes + lane], from + i, sizeof(std::uint32_t));
      }
      continue;
    }
    for (std::size_t i = 0; i < k; i += 2) {
      panel[i / 2 * kLanes + lane] =
          std::uint32_t{from[i * step]} | std::uint32_t{from[(i + 1) * step]} << 16;
    }
  }
}

void fill_f32_panel(std::span<const Column> columns, std::size_t k, float* panel) {
  for (std::size_t lane = 0; lane < columns.size(); ++lane) {
    const Column& column = columns[lane];
    for (std::size_t i = 0; i < k; ++i) {
      convert_to_float(column.tensor, column.begin + i * column.step, 1, &panel[i * kLanes + lane]);
    }
  }
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
  std::vector<Column> columns;
  for (const Part& part : parts) {
    const std::size_t row_size = part.tensor.shape[1];
    const std::size_t num_columns = part.transposed ? row_size : part.num_rows;
    packed.k_ = part.transposed ? part.num_rows : row_size;
    // Rows of a bfloat16 panel go in pairs.
    packed.is_bf16_ = packed.is_bf16_ && part.tensor.dtype == kBFloat16 && packed.k_ % 2 == 0;
    for (std::size_t j = 0; j < num_columns; ++j) {
      columns.push_back(part.transposed
                            ? Column{part.tensor, part.first_row * row_size + j, row_size}
                            : Column{part.tensor, (part.first_row + j) * row_size, 1});
    }
  }
  packed.n_ = columns.size();
  const std::size_t k = packed.k_;
  const std::size_t element_bytes = packed.is_bf16_ ? sizeof(std::uint16_t) : sizeof(float);
  const std::size_t panel_bytes = kLanes * k * element_bytes;
  Result<std::byte*> memory = arena.allocate(round_up_to_lanes(packed.n_) / kLanes * panel_bytes);
  if (!memory) {
    return fail(std::move(memory).error());
  }
  packed.panels_ = *memory;
  for (std::size_t begin = 0; begin < columns.size(); begin += kLanes) {
    const std::span<const Column> in_panel =
        std::span(columns).subspan(begin, std::min(kLanes, columns.size() - begin));
    std::byte* const panel = *memory + begin / kLanes * panel_bytes;
    if (packed.is_bf16_) {
      fill_bf16_panel(in_panel, k, reinterpret_cast<std::uint32_t*>(panel));
    } else {
      fill_f32_panel(in_panel, k, reinterpret_cast<float*>(panel));
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
