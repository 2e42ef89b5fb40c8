// How rows are copied into landing memory. Chosen by measurement, not by thought:
// benchmarks/copy_bench.cc prints, for every size, the one-way time of a fresh payload that is
// fully read, for every way to copy and every piece size.
//
// What it showed (p50, us, two pinned processes, AMD EPYC of the third generation). The host moves
// the two processors: in the *near* place (line round trip 0.11 us) they share a cache, in the
// *far* place (0.35 us) they do not.
//
//   size       near: memcpy whole, best pieces   streaming     far: memcpy, pieces   streaming
//   64 B             0.15                          0.35             0.27                0.37
//   2 KiB            0.24                          0.61             0.75                0.79
//   4 KiB            0.36                          0.88             1.08                0.87
//   16 KiB           1.05          8 KiB: 0.90     2.10             3.05                2.05
//   64 KiB           4.1          16 KiB: 3.7      4.6             10.5                 4.7
//   256 KiB         14            32 KiB: 13       15              40                  14.4
//   1 MiB           50            32 KiB: 48       58             146                  50
//   4 MiB          200            64 KiB: 190     230             525                 200
//
// On a fifth-generation EPYC, far, memcpy and streaming stores were within 10 % of each other from
// 64 KiB up. `rep movsb` is memcpy within 3 % once copying goes by pieces. So: pieces always,
// streaming stores where the lines come slowly from the other core, which the sender notices by
// its own copying (CopyChooser).
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/copy.h"

namespace afd::transport {

struct CopyPlan {
  base::CopyKind kind = base::CopyKind::kMemcpy;
  std::uint64_t piece_bytes = 0;  ///< the signal is raised after each; a multiple of 64
  bool look = false;              ///< made this way only to see what it costs
};

/// The piece is about sqrt(4 KiB * size): a smaller one costs more signals and more draining of
/// write-combining buffers, a larger one leaves the receiver more to read after the last signal.
constexpr std::uint64_t copy_piece_bytes(std::uint64_t size_bytes) {
  constexpr std::uint64_t kKiB = 1024;
  if (size_bytes <= 32 * kKiB) {
    return 8 * kKiB;
  }
  if (size_bytes <= 128 * kKiB) {
    return 16 * kKiB;
  }
  return size_bytes <= 1024 * kKiB ? 32 * kKiB : 64 * kKiB;
}

/// Chooses between memcpy and streaming stores by what copying cost lately.
///
/// memcpy has to own every line of the target before it can write; a streaming store does not. If
/// the reader's core is far, that makes memcpy three times as slow, and the sender's own time says
/// so (64 KiB: near 3.3 us, far 9.1 us; streaming 3.1 us in both). The host moves processors within
/// seconds, so two of every 64 large transfers are made one way and the other, to look.
///
/// The same choice holds for rows that are produced in place: ordinary stores own the line first.
///
/// Threads: of one sender.
class CopyChooser {
 public:
  CopyPlan plan(std::uint64_t size_bytes) noexcept {
    CopyPlan plan{.kind = streaming_ && size_bytes > kSmallBytes ? base::CopyKind::kStreaming
                                                                 : base::CopyKind::kMemcpy,
                  .piece_bytes = copy_piece_bytes(size_bytes)};
    if (size_bytes >= kLargeBytes) {
      const std::uint32_t turn = num_large_++ % kLookEvery;
      plan.look = turn < 2;
      if (plan.look) {
        plan.kind = turn == 0 ? base::CopyKind::kMemcpy : base::CopyKind::kStreaming;
      }
    }
    return plan;
  }

  /// What copying `size_bytes` by `kind` took, in any unit of time.
  void took(base::CopyKind kind, std::uint64_t size_bytes, std::uint64_t ticks) noexcept {
    if (size_bytes < kLargeBytes) {
      return;  // Store buffers hide the cost of small ones.
    }
    float& cost = kind == base::CopyKind::kStreaming ? streaming_cost_ : memcpy_cost_;
    float sample = static_cast<float>(ticks) / static_cast<float>(size_bytes);
    if (cost > 0) {
      // Quickly down, slowly up: an interrupt makes one transfer look slow, nothing makes it fast.
      sample = sample < cost ? (sample + cost) / 2 : cost + std::min(sample - cost, cost) / 8;
    }
    cost = sample;
    if (memcpy_cost_ > 0 && streaming_cost_ > 0) {
      // Reading what was streamed costs the receiver somewhat more, hence the factor.
      streaming_ = memcpy_cost_ > kStreamingWins * streaming_cost_;
    }
  }

 private:
  static constexpr std::uint64_t kSmallBytes = 2048;
  static constexpr std::uint64_t kLargeBytes = 32 * 1024;
  static constexpr std::uint32_t kLookEvery = 64;
  static constexpr float kStreamingWins = 2.0F;

  bool streaming_ = false;
  std::uint32_t num_large_ = 0;
  float memcpy_cost_ = 0;  // Per byte.
  float streaming_cost_ = 0;
};

}  // namespace afd::transport
