// Sleeping on a 32-bit word, also one in memory that several processes share.
#pragma once

#include <atomic>
#include <cstdint>

#include <afd/deadline.h>

namespace afd::base {

/// Sleeps while `word` holds `expected`, until futex_wake_all() or the deadline. May return early;
/// the caller checks its condition again. Uses no processor time meanwhile.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Deadline deadline) noexcept;

/// Wakes everybody who sleeps on `word`, in all processes. Async-signal-safe, keeps errno.
void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace afd::base
