// Orderings and hints that the language has no portable word for.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace afd::base {

/// Orders every store before it ahead of every load after it, in the single order of all full
/// fences (std::atomic_thread_fence(seq_cst)). 10 to 30 ns.
inline void full_fence() noexcept {
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer does not model fences; a seq_cst exchange is one to the processor as well.
  static std::atomic<std::uint32_t> dummy{0};
  dummy.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

/// Orders non-temporal and direct stores of this thread before its later stores. A release store
/// does not: on x86 it is a plain move, which overtakes them in the write-combining buffers.
inline void streaming_store_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

/// Tells the core that this is a spin loop. About 20 ns on AMD, up to 70 on Intel.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// Begins to bring [data, data + size_bytes) into this core's cache; waits for nothing. Null: does
/// nothing.
inline void prefetch(const std::byte* data, std::size_t size_bytes) noexcept {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; data != nullptr && at < size_bytes; at += kLine) {
    __builtin_prefetch(data + at);
  }
}

}  // namespace afd::base
