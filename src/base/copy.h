// Copying into memory that another core reads next.
//
// Which way is best depends on the size, on the state of the target's lines and on the processor,
// so callers choose by measurement (benchmarks/copy_bench.cc); nothing here guesses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace afd::base {

enum class CopyKind : std::uint8_t {
  kMemcpy,     ///< the C library's: on large x86 servers never non-temporal below some 100 MiB
  kRepMovsb,   ///< the processor's own string copy (x86; elsewhere memcpy)
  kStreaming,  ///< non-temporal stores (x86; elsewhere memcpy): needs streaming_store_fence() after
};

/// Copies exactly [source, source + size); any alignment. The ranges do not overlap. Neighbouring
/// bytes of the target are neither written nor read.
void copy_bytes(CopyKind kind, std::byte* target, const std::byte* source,
                std::size_t size) noexcept;

}  // namespace afd::base
