#include "model/arena.h"

#include <algorithm>

namespace afd::model {
namespace {

constexpr std::size_t kAlignBytes = 64;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t size, std::size_t unit) {
  return (size + unit - 1) / unit * unit;
}

}  // namespace

Result<std::byte*> Arena::allocate(std::size_t size_bytes) {
  const std::size_t size = round_up(size_bytes, kAlignBytes);
  if (chunks_.empty() || chunks_.back().size() - used_bytes_ < size) {
    Result<base::Mapping> chunk = base::Mapping::anonymous(round_up(size, kHugePageBytes));
    if (!chunk) {
      return fail(std::move(chunk).error().with_context("memory for weights"));
    }
    chunks_.push_back(*std::move(chunk));
    used_bytes_ = 0;
  }
  std::byte* const piece = chunks_.back().data() + used_bytes_;
  used_bytes_ += size;
  return piece;
}

}  // namespace afd::model
