// The bytes of a window: what two processes agree on (docs/shm-layout.md).
//
//   0      WindowHeader      written by the owner before anybody attaches, then constant
//   256    Doorbell          the owner sleeps on it, its peers ring it
//   4096   SignalLine a2f [stage][peer], f2a [stage][peer]        | windows with a channel only
//          ControlRing, then its slots                            |
//          landing memory: a2f [stage][part], f2a [stage][part]   | each part starts on a page
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <afd/result.h>

#include "transport/transport.h"

namespace afd::transport {

inline constexpr std::uint64_t kLineBytes = 64;
inline constexpr std::uint64_t kPageBytes = 4096;
inline constexpr std::uint64_t kWindowMagic = 0x3177'6f64'6e69'7764;  // "dwindow1"
inline constexpr std::uint32_t kLayoutVersion = 2;

/// Constant once the window has been handed out.
struct WindowHeader {
  std::uint64_t magic = kWindowMagic;
  std::uint32_t layout_version = kLayoutVersion;
  std::uint32_t has_channel = 0;
  std::uint64_t window_bytes = 0;
  std::uint32_t num_peers = 0;
  std::uint32_t num_stages = 0;
  std::array<std::uint64_t, kPartsMax> a2f_bytes{};
  std::array<std::uint64_t, kPartsMax> f2a_bytes{};
  std::uint64_t control_bytes_max = 0;
  std::uint32_t control_slots = 0;
  std::uint32_t reserved = 0;

  friend bool operator==(const WindowHeader&, const WindowHeader&) = default;
};
static_assert(sizeof(WindowHeader) == 112);

/// Where an owner sleeps. Any process that maps the window may ring.
struct alignas(kLineBytes) Doorbell {
  // Odd: somebody sleeps or is about to; even: nobody does. A sleeper makes it odd (fetch_or 1),
  // whoever rings makes an odd value even (compare_exchange to value + 1) and wakes all; so does
  // the last sleeper that gets up without having been rung, if another has come meanwhile. So the
  // value never repeats while somebody still sleeps on an old one. The order against the published
  // data comes from a full fence on either side: see ring() and Sleepers.
  std::atomic<std::uint32_t> word{0};
  // Not 0: the owner's threads sleep where they poll descriptors, and are woken by a byte in its
  // FIFO. Stored by the owner before it sleeps, loaded by whoever has made the word even: that
  // compare_exchange (acquire) has read what the sleeper's fetch_or (release) wrote.
  std::atomic<std::uint32_t> polled{0};
};
static_assert(sizeof(Doorbell) == kLineBytes);

/// One lane of one direction: 8 bytes of signal, 56 of header.
struct alignas(kLineBytes) SignalLine {
  // sequence << 32 | progress. Stored by the sender with release after the bytes that it counts,
  // loaded by the receiver with acquire: a receiver that sees a value sees those bytes, the other
  // parts and the header of that sequence. Progress counts 64-byte units of part 0; kComplete says
  // that everything is there.
  std::atomic<std::uint64_t> word{0};
  // A TransferHeader; its last 8 bytes are the sequence that it belongs to. The sender stores that
  // stamp first and then the others, each with release; a receiver loads the others with acquire
  // and the stamp last. If it read even one field of a later header, it sees the later stamp too.
  std::array<std::atomic<std::uint64_t>, 7> header{};

  static constexpr std::uint32_t kComplete = 0xffff'ffff;
};
static_assert(sizeof(SignalLine) == kLineBytes && offsetof(TransferHeader, stamp) == 48);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

/// A queue of one sender and one receiver. `head` and `tail` count messages since the window was
/// made and never wrap; message n lies in slot n % control_slots.
struct ControlRing {
  // Stored by the sender with release after it filled a slot, loaded by the receiver with acquire.
  alignas(kLineBytes) std::atomic<std::uint64_t> head{0};
  // Stored by the receiver with release after it was done with a slot, loaded by the sender with
  // acquire: a sender that sees n + 1 may overwrite the slot of message n.
  alignas(kLineBytes) std::atomic<std::uint64_t> tail{0};
};
static_assert(sizeof(ControlRing) == 2 * kLineBytes);

/// Offsets within a window. Plain arithmetic of the geometry, equal at both ends.
struct WindowLayout {
  static constexpr std::uint64_t kDoorbellOffset = 256;

  std::uint64_t signals = 0;       ///< a2f lines, then f2a lines
  std::uint64_t control_ring = 0;  ///< 0: no control queue
  std::uint64_t control_slots = 0;
  std::uint64_t control_slot_bytes = 0;  ///< 8 bytes of length, the message, rounded up to lines
  /// [direction][part], of stage 0
  std::array<std::array<std::uint64_t, kPartsMax>, 2> landing{};
  /// Distance from a stage to the next.
  std::array<std::uint64_t, 2> stage_bytes{};
  std::uint64_t window_bytes = kPageBytes;
};

/// The layout of a window with this channel; null: without one.
/// @return kInvalidArgument  no peers or stages, or sizes beyond what an address space holds
Result<WindowLayout> layout_window(const ChannelGeometry* geometry);

/// What a window's header says for this channel.
WindowHeader describe_window(const ChannelGeometry* geometry, const WindowLayout& layout);

}  // namespace afd::transport
