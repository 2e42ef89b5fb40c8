// Raising a lane's signal in memory, and reading it.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "transport/mapped/window_layout.h"
#include "transport/transport.h"

namespace afd::transport {

using HeaderWords = std::array<std::uint64_t, 7>;

/// Stores the header of a new sequence; the signal word's release store has to follow.
inline void store_header(SignalLine& line, const TransferHeader& header,
                         std::uint32_t sequence) noexcept {
  const auto words = std::bit_cast<HeaderWords>(header);
  line.header[6].store(sequence, std::memory_order_relaxed);
  for (std::size_t i = 0; i < 6; ++i) {
    line.header[i].store(words[i], std::memory_order_release);
  }
}

inline std::uint64_t signal_word(std::uint32_t sequence, std::uint32_t progress) noexcept {
  return std::uint64_t{sequence} << 32 | progress;
}

/// Progress that stands for `bytes` leading bytes: whole units only, and never kComplete.
inline std::uint32_t progress_of(std::uint64_t bytes) noexcept {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(bytes / kLineBytes, SignalLine::kComplete - 1));
}

}  // namespace afd::transport
