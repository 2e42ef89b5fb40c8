#include "conformance/pattern.h"

#include <algorithm>
#include <cstring>

namespace afd::conformance {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 over the golden ratio: bits spread well

constexpr std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 32;
  value *= kOdd;
  value ^= value >> 29;
  value *= 0xd6e8feb86659fd93u;
  value ^= value >> 32;
  return value;
}

std::uint64_t row_seed(const RowKey& key, std::uint32_t row) {
  std::uint64_t seed = mix(key.step * kOdd + static_cast<std::uint64_t>(key.part));
  seed = mix(seed ^ (std::uint64_t{key.layer_idx} << 32 | key.stage_idx));
  return mix(seed ^ (std::uint64_t{key.attention_rank} << 32 | row));
}

std::uint64_t row_bytes(const Shape& shape, DType dtype) {
  return shape.rank() == 2 ? shape[1] * dtype.size_bytes() : 0;
}

std::string describe(const RowKey& key, std::uint32_t row) {
  constexpr const char* kParts[] = {"hidden states", "router logits", "output"};
  return std::string(kParts[static_cast<std::size_t>(key.part)]) + " of attention rank " +
         std::to_string(key.attention_rank) + ", step " + std::to_string(key.step) + ", layer " +
         std::to_string(key.layer_idx) + ", stage " + std::to_string(key.stage_idx) + ", row " +
         std::to_string(row);
}

}  // namespace

void fill_rows(TensorView rows, const RowKey& key, std::uint32_t first_row) {
  const std::uint64_t width = row_bytes(rows.shape, rows.dtype);
  auto* memory = static_cast<std::byte*>(rows.data);
  for (std::uint64_t row = 0; row < rows.num_rows(); ++row) {
    std::uint64_t word = row_seed(key, first_row + static_cast<std::uint32_t>(row));
    for (std::uint64_t done = 0; done < width; done += sizeof word) {
      word = word * kOdd + 1;
      const std::uint64_t value = word ^ (word >> 31);
      std::memcpy(memory + done, &value, std::min<std::uint64_t>(sizeof value, width - done));
    }
    memory += width;
  }
}

std::optional<std::string> wrong_rows(ConstTensorView rows, const RowKey& key,
                                      std::uint32_t first_row) {
  const std::uint64_t width = row_bytes(rows.shape, rows.dtype);
  const auto* memory = static_cast<const std::byte*>(rows.data);
  for (std::uint64_t row = 0; row < rows.num_rows(); ++row) {
    const std::uint32_t row_idx = first_row + static_cast<std::uint32_t>(row);
    std::uint64_t word = row_seed(key, row_idx);
    for (std::uint64_t done = 0; done < width; done += sizeof word) {
      word = word * kOdd + 1;
      const std::uint64_t value = word ^ (word >> 31);
      if (std::memcmp(memory + done, &value, std::min<std::uint64_t>(sizeof value, width - done)) !=
          0) {
        return "the " + describe(key, row_idx) + " differ from byte " + std::to_string(done) +
               " of " + std::to_string(width) + " on";
      }
    }
    memory += width;
  }
  return std::nullopt;
}

TensorView slice(TensorView tensor, std::uint32_t first, std::uint32_t count) {
  tensor.data =
      static_cast<std::byte*>(tensor.data) + first * row_bytes(tensor.shape, tensor.dtype);
  tensor.shape = {count, tensor.shape[1]};
  return tensor;
}

ConstTensorView slice(ConstTensorView tensor, std::uint32_t first, std::uint32_t count) {
  tensor.data =
      static_cast<const std::byte*>(tensor.data) + first * row_bytes(tensor.shape, tensor.dtype);
  tensor.shape = {count, tensor.shape[1]};
  return tensor;
}

std::string bytes_of(ConstTensorView tensor) {
  return {static_cast<const char*>(tensor.data), static_cast<std::size_t>(tensor.size_bytes())};
}

}  // namespace afd::conformance
