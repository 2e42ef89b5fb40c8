// A file of weights from somewhere: every tensor that is taken lies inside it, aligned and alone.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "model/safetensors.h"

namespace {

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const auto entries = afd::model::parse_safetensors(file);
  if (!entries) {
    check(entries.error().code == afd::ErrorCode::kInvalidArgument);
    check(entries.error().message.size() < 4000);
    return 0;
  }
  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
  std::uint64_t covered = 0;
  for (const afd::model::SafetensorsEntry& entry : *entries) {
    const std::uint64_t bytes = entry.shape.num_elements() * entry.dtype.size_bytes();
    check(!entry.name.empty());
    check(entry.begin_bytes <= size && bytes <= size - entry.begin_bytes);
    check(entry.begin_bytes % entry.dtype.size_bytes() == 0);
    extents.emplace_back(entry.begin_bytes, entry.begin_bytes + bytes);
    covered += bytes;
  }
  std::sort(extents.begin(), extents.end());
  for (std::size_t i = 1; i < extents.size(); ++i) {
    check(extents[i - 1].second <= extents[i].first);
  }
  check(covered < size);  // The header is no tensor's.
  return 0;
}
