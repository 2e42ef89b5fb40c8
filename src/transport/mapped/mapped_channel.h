// A channel in memory that both ends map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/mapped/copy_plan.h"
#include "transport/mapped/waiter.h"
#include "transport/mapped/window_layout.h"
#include "transport/transport.h"

namespace afd::transport {

/// One end of a channel in a window. Borrows the window and the doorbells.
///
/// Threads: one publishes, another polls. Sequences are counted here, not read back from the
/// window, so a peer cannot change which transfer comes next.
class MappedChannel final : public Channel {
 public:
  /// @param window  at least layout_window(&geometry)->window_bytes bytes, page-aligned
  MappedChannel(std::byte* window, const ChannelGeometry& geometry, const WindowLayout& layout);

  std::byte* landing(Direction direction, std::uint32_t stage_idx,
                     std::size_t part) noexcept override;
  void publish(LaneId lane, const TransferHeader& header, std::span<const PutPart, kPartsMax> parts,
               ByteSource source) noexcept override;
  LaneState poll(LaneId lane) const noexcept override;
  TransferHeader header(LaneId lane) const noexcept override;
  Result<void> try_send_control(std::span<const std::byte> message) noexcept override;
  Result<std::span<const std::byte>> peek_control() noexcept override;
  void pop_control() noexcept override;

  /// Rung when a lane of that direction and peer is published; by default nobody's.
  void set_doorbell(Direction direction, std::uint16_t peer_idx, Bell bell) noexcept;
  /// Rung when a control message has been queued; by default the window's own, without a FIFO.
  void set_owner_bell(Bell bell) noexcept { owner_bell_ = bell; }

 private:
  /// A transfer that is being published.
  struct Lane {
    SignalLine& signal;
    /// Stored together with the first signal: earlier, and the receiver, who looks at the line all
    /// the time, would take it away in between. Null: stored.
    const TransferHeader* header = nullptr;
    std::uint32_t sequence = 0;
    Bell bell;
    /// Streaming stores may be under way: ours, or those of a caller who wrote in place.
    bool streamed = false;

    void raise(std::uint32_t progress) noexcept;
    void publish_progress(std::uint64_t bytes_done) noexcept;
  };

  std::byte* target(LaneId lane, std::size_t part, const PutPart& put) noexcept;
  void copy_rows(Lane& to, std::byte* rows_target, const PutPart& rows) noexcept;
  void produce_rows(Lane& to, std::byte* rows_target, std::uint64_t size_bytes,
                    ByteSource source) noexcept;
  std::size_t lane_index(LaneId lane) const noexcept;
  SignalLine& line(LaneId lane) const noexcept;
  std::byte* control_slot(std::uint64_t message_idx) const noexcept;

  std::byte* const window_;
  const ChannelGeometry geometry_;
  const WindowLayout layout_;
  std::vector<std::uint32_t> sequences_;  // by lane: the last that this end published
  std::vector<Bell> bells_;               // [direction][peer]
  Bell owner_bell_;
  struct alignas(kLineBytes) Line {
    std::byte bytes[kLineBytes];
  };
  std::vector<Line> staging_;  // of the publishing thread, resident
  CopyChooser chooser_;        // of the publishing thread
  std::uint64_t control_sent_ = 0;
  std::uint64_t control_popped_ = 0;
};

}  // namespace afd::transport
