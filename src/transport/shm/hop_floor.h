// The floor that a hop is measured against: one direction of a bare pipelined ring, copied in, read
// in place, no header, no checks, no way to sleep. For benchmarks only.
//
// It chooses nothing: a benchmark measures each way to copy and takes the better one. A floor that
// shared the transport's choice would hide a wrong one.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transport/mapped/copy_plan.h"

namespace afd::transport {

/// One sender, one receiver, one slot: the receiver has to have read a payload before the sender
/// sends the next, as the reply of a ping-pong ensures.
class FloorLane {
 public:
  /// Size of the memory for payloads up to `payload_bytes_max`.
  static constexpr std::uint64_t bytes_needed(std::uint64_t payload_bytes_max) {
    return 4096 + payload_bytes_max;
  }

  /// @param memory  zeroed, page-aligned, resident, mapped by both ends; borrowed
  explicit FloorLane(std::byte* memory) : memory_(memory) {}

  /// Copies the payload in, piece by piece, each published.
  void send(const std::byte* payload, std::uint64_t size, CopyPlan plan) noexcept;

  /// Where a payload lands, for one that is written in place; then send_written().
  std::byte* slot() const noexcept { return memory_ + 4096; }
  void send_written() noexcept;

  /// Spins until the next payload is there and reads every byte of it behind the sender.
  /// @param stop  of a sender that will not come any more: becomes true
  /// @return the payload's read_fully(); nothing when stopped
  std::optional<std::uint64_t> receive(std::uint64_t size, const std::atomic<bool>& stop) noexcept;

  /// The flag alone: 8 bytes and nothing else.
  void send_flag() noexcept { send_written(); }
  /// @return false when stopped
  bool receive_flag(const std::atomic<bool>& stop) noexcept;

 private:
  std::atomic<std::uint64_t>& word() const noexcept {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory_);
  }

  std::byte* memory_;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

/// Reads every byte with wide loads: the sum of the 8-byte words, plus that of the bytes left over.
/// The sum of a payload is the sum over its pieces if those are multiples of 8 bytes.
std::uint64_t read_fully(const std::byte* data, std::uint64_t size) noexcept;

}  // namespace afd::transport
