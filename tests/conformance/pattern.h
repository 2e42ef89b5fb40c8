// Contents that say where they come from: every byte of every row is a function of direction, step,
// layer, stage, attention rank and row, so that a row in the wrong place is seen, and named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <afd/tensor.h>

namespace afd::conformance {

/// What a row belongs to. Rows count within the attention rank's own tensor, on both sides.
struct RowKey {
  enum class Part : std::uint8_t { kHidden, kRouterLogits, kOutput };
  Part part = Part::kHidden;
  std::uint64_t step = 0;
  std::uint32_t layer_idx = 0;
  std::uint32_t stage_idx = 0;
  std::uint32_t attention_rank = 0;
};

/// Fills whole rows; the first one is row `first_row` of the key's tensor.
void fill_rows(TensorView rows, const RowKey& key, std::uint32_t first_row = 0);

/// @return what is wrong with the first wrong row, naming the row of the key's tensor; nothing if
///         every byte is right
std::optional<std::string> wrong_rows(ConstTensorView rows, const RowKey& key,
                                      std::uint32_t first_row = 0);

/// Rows [first, first + count) of a 2-D tensor.
TensorView slice(TensorView tensor, std::uint32_t first, std::uint32_t count);
ConstTensorView slice(ConstTensorView tensor, std::uint32_t first, std::uint32_t count);

/// A copy of the bytes, to see later whether they are still the same.
std::string bytes_of(ConstTensorView tensor);

}  // namespace afd::conformance
