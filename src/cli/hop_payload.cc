#include "cli/hop_payload.h"

#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace afd::cli {
namespace {

// Word i of payload `seed` is seed * kSpread + i.
constexpr std::uint64_t kSpread = 0x9e37'79b9'7f4a'7c15;

}  // namespace

void fill_payload(std::byte* target, std::uint64_t seed, std::uint64_t offset, std::uint64_t size) {
  const std::uint64_t first = seed * kSpread + offset / 8;
#if defined(__SSE2__)
  __m128i pair = _mm_set_epi64x(static_cast<long long>(first + 1), static_cast<long long>(first));
  const __m128i two = _mm_set1_epi64x(2);
  auto* out = reinterpret_cast<__m128i*>(target);
  for (std::uint64_t i = 0; i < size / 16; ++i) {
    _mm_store_si128(out + i, pair);
    pair = _mm_add_epi64(pair, two);
  }
#else
  for (std::uint64_t i = 0; i < size / 8; ++i) {
    const std::uint64_t word = first + i;
    std::memcpy(target + 8 * i, &word, sizeof(word));
  }
#endif
}

std::uint64_t payload_sum(std::uint64_t seed, std::uint64_t size) {
  const std::uint64_t words = size / 8;
  return words * (seed * kSpread) + words * (words - 1) / 2;
}

}  // namespace afd::cli
