#include "base/copy.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// The sanitizers see through memcpy, but not through assembly and not through every streaming
// store.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define AFD_COPY_X86 1
#endif

namespace afd::base {
namespace {

#if defined(AFD_COPY_X86)

constexpr std::size_t kLineBytes = 64;

void copy_rep_movsb(std::byte* target, const std::byte* source, std::size_t size) noexcept {
  asm volatile("rep movsb" : "+D"(target), "+S"(source), "+c"(size) : : "memory");
}

__attribute__((target("avx512f"))) void stream_lines_avx512(std::byte* target,
                                                            const std::byte* source,
                                                            std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; i += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(target + i), _mm512_loadu_si512(source + i));
  }
}

__attribute__((target("avx"))) void stream_lines_avx(std::byte* target, const std::byte* source,
                                                     std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; i += kLineBytes) {
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i + 32), high);
  }
}

void stream_lines_sse2(std::byte* target, const std::byte* source, std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; i += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i)));
  }
}

using StreamLines = void (*)(std::byte*, const std::byte*, std::size_t) noexcept;

StreamLines best_stream_lines() noexcept {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    return stream_lines_avx512;
  }
  return __builtin_cpu_supports("avx") ? stream_lines_avx : stream_lines_sse2;
}

/// Whole lines of the target by streaming stores, what is left at either end by memcpy: a partial
/// line belongs to a neighbour too.
void copy_streaming(std::byte* target, const std::byte* source, std::size_t size) noexcept {
  static const StreamLines stream_lines = best_stream_lines();
  const std::size_t to_line = (0 - reinterpret_cast<std::uintptr_t>(target)) % kLineBytes;
  const std::size_t head = std::min(size, to_line);
  std::memcpy(target, source, head);
  const std::size_t lines = (size - head) / kLineBytes * kLineBytes;
  stream_lines(target + head, source + head, lines);
  std::memcpy(target + head + lines, source + head + lines, size - head - lines);
}

#endif

}  // namespace

void copy_bytes(CopyKind kind, std::byte* target, const std::byte* source,
                std::size_t size) noexcept {
#if defined(AFD_COPY_X86)
  switch (kind) {
    case CopyKind::kRepMovsb:
      copy_rep_movsb(target, source, size);
      return;
    case CopyKind::kStreaming:
      copy_streaming(target, source, size);
      return;
    case CopyKind::kMemcpy:
      break;
  }
#else
  static_cast<void>(kind);
#endif
  if (size > 0) {
    std::memcpy(target, source, size);
  }
}

}  // namespace afd::base
