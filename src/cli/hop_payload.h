// The payload of `afd bench hop`: words that count up from a seed, so that a reader's sum proves
// what it read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace afd::cli {

/// Writes bytes [offset, offset + size) of the payload `seed` to `target`. Both are multiples of
/// 64, `target` is aligned to 16.
void fill_payload(std::byte* target, std::uint64_t seed, std::uint64_t offset, std::uint64_t size);

/// The sum of the payload's 8-byte words, modulo 2^64.
std::uint64_t payload_sum(std::uint64_t seed, std::uint64_t size);

}  // namespace afd::cli
