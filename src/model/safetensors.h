// The header of a safetensors file: 8 bytes little-endian length, that many bytes of JSON, then the
// tensors' bytes. Checked completely before any tensor is looked at.
//
// Threads: plain functions on plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <afd/result.h>
#include <afd/tensor.h>

namespace afd::model {

struct SafetensorsEntry {
  std::string name;
  DType dtype;
  Shape shape;
  std::uint64_t begin_bytes = 0;  ///< From the start of the file.
};

/// Reads the header of a file whose bytes are `file`.
///
/// Every tensor's bytes lie in the file, match its shape and dtype, are aligned for it, overlap no
/// other's, and together they cover the file without a hole.
/// @return kInvalidArgument  the first thing that is not so: which tensor, found, wanted
Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file);

}  // namespace afd::model
