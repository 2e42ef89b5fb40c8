#include "transport/shm/hop_floor.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "base/fence.h"

namespace afd::transport {
namespace {

constexpr std::uint64_t kComplete = 0xffff'ffff;
constexpr std::uint64_t kUnitBytes = 64;

}  // namespace

void FloorLane::send(const std::byte* payload, std::uint64_t size, CopyPlan plan) noexcept {
  ++sent_;
  for (std::uint64_t done = 0; done < size;) {
    const std::uint64_t piece = std::min(plan.piece_bytes, size - done);
    base::copy_bytes(plan.kind, slot() + done, payload + done, piece);
    done += piece;
    if (plan.kind == base::CopyKind::kStreaming) {
      base::streaming_store_fence();
    }
    word().store(sent_ << 32 | (done < size ? done / kUnitBytes : kComplete),
                 std::memory_order_release);
  }
}

void FloorLane::send_written() noexcept {
  base::streaming_store_fence();
  word().store(++sent_ << 32 | kComplete, std::memory_order_release);
}

std::optional<std::uint64_t> FloorLane::receive(std::uint64_t size,
                                                const std::atomic<bool>& stop) noexcept {
  ++received_;
  std::uint64_t sum = 0;
  for (std::uint64_t done = 0; done < size;) {
    const std::uint64_t value = word().load(std::memory_order_acquire);
    const std::uint64_t progress = value & kComplete;
    const std::uint64_t there = value >> 32 != received_ ? 0
                                : progress == kComplete  ? size
                                                         : std::min(size, progress * kUnitBytes);
    if (there <= done) {
      if (stop.load(std::memory_order_relaxed)) {
        return std::nullopt;
      }
      base::spin_pause();
      continue;
    }
    sum += read_fully(slot() + done, there - done);
    done = there;
  }
  return sum;
}

bool FloorLane::receive_flag(const std::atomic<bool>& stop) noexcept {
  ++received_;
  while (word().load(std::memory_order_acquire) >> 32 != received_) {
    if (stop.load(std::memory_order_relaxed)) {
      return false;
    }
    base::spin_pause();
  }
  return true;
}

std::uint64_t read_fully(const std::byte* data, std::uint64_t size) noexcept {
  std::uint64_t sum = 0;
  std::uint64_t done = 0;
#if defined(__SSE2__)
  __m128i sums[4] = {_mm_setzero_si128(), _mm_setzero_si128(), _mm_setzero_si128(),
                     _mm_setzero_si128()};
  for (; done + 64 <= size; done += 64) {
    for (std::size_t i = 0; i < 4; ++i) {
      sums[i] = _mm_add_epi64(
          sums[i], _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + done + 16 * i)));
    }
  }
  alignas(16) std::uint64_t lanes[2];
  _mm_store_si128(reinterpret_cast<__m128i*>(lanes),
                  _mm_add_epi64(_mm_add_epi64(sums[0], sums[1]), _mm_add_epi64(sums[2], sums[3])));
  sum = lanes[0] + lanes[1];
#endif
  for (; done + 8 <= size; done += 8) {
    std::uint64_t value;
    std::memcpy(&value, data + done, sizeof(value));
    sum += value;
  }
  for (; done < size; ++done) {
    sum += std::to_integer<std::uint64_t>(data[done]);
  }
  return sum;
}

}  // namespace afd::transport
