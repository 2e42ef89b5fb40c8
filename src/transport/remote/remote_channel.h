// One end of a channel whose other ends are on other hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/spin_lock.h"
#include "transport/mapped/mapped_channel.h"
#include "transport/mapped/window_layout.h"
#include "transport/remote/remote_message.h"
#include "transport/remote/remote_peer.h"
#include "transport/transport.h"
#include "transport/wire.h"

namespace afd::transport {

/// What a channel needs of its transport.
class RemoteLink {
 public:
  virtual base::SpinLock& lock() noexcept = 0;
  virtual Wire& wire() noexcept = 0;
  virtual std::uint32_t own_world_rank() const noexcept = 0;
  /// What travels as one message.
  virtual std::uint64_t piece_bytes() const noexcept = 0;
  /// Makes progress. With the lock held.
  virtual void progress() noexcept = 0;
  /// Progress, and somebody who goes on with it if sends are left. With the lock held.
  virtual void push_out() noexcept = 0;
  /// Sends a message that is not a piece; copies what it is given. With the lock held.
  virtual void post(RemotePeer& peer, RemoteHeader header,
                    std::span<const std::byte> bytes) noexcept = 0;

 protected:
  ~RemoteLink() = default;
};

/// The windows stand in this rank's own memory, laid out as over shared memory. An attention rank's
/// is a mirror of the FFN rank's: of its landing memory only this rank's own rows are ever used.
///
/// Threads: as Channel. publish() holds the link's lock, and gives way between pieces.
class RemoteChannel final : public Channel {
 public:
  /// @param window       as MappedChannel
  /// @param owner_rank  world rank of the FFN rank that the channel belongs to
  /// @param owner       that rank; null: this rank is it
  RemoteChannel(RemoteLink& link, std::byte* window, const ChannelGeometry& geometry,
                const WindowLayout& layout, std::uint32_t owner_rank, RemotePeer* owner);

  std::byte* landing(Direction direction, std::uint32_t stage_idx,
                     std::size_t part) noexcept override {
    return window_.landing(direction, stage_idx, part);
  }
  void publish(LaneId lane, const TransferHeader& header, std::span<const PutPart, kPartsMax> parts,
               ByteSource source) noexcept override;
  LaneState poll(LaneId lane) const noexcept override { return window_.poll(lane); }
  TransferHeader header(LaneId lane) const noexcept override { return window_.header(lane); }
  Result<void> try_send_control(std::span<const std::byte> message) noexcept override;
  Result<std::span<const std::byte>> peek_control() noexcept override {
    return window_.peek_control();
  }
  void pop_control() noexcept override;

  /// Where publishes of that direction and peer go, and where the other direction's come from.
  void set_peer(Direction direction, std::uint16_t peer_idx, RemotePeer* peer) noexcept;

  /// The same for a peer that maps this window: `bell` is rung.
  void set_near_peer(Direction direction, std::uint16_t peer_idx, Bell bell) noexcept;

  /// Whose control messages are taken (FFN end); null: nobody's.
  void set_control_sender(RemotePeer* peer) noexcept { control_peer_ = peer; }

  /// Takes a message for this channel, with the lock held. `header` has been decoded, and `from`
  /// is its source. @return what is wrong with it; empty: nothing
  std::string take(const RemoteHeader& header, const Arrival& arrival, RemotePeer& from,
                   bool* fetching) noexcept;

 private:
  /// A lane's transfer on its way out.
  struct Sending final : WireEnd {
    void on_end(const char* why_not) noexcept override;
    RemotePeer* peer = nullptr;
    bool near = false;  ///< the peer maps the window: nothing is sent
    std::uint32_t sequence = 0;
    std::uint64_t num_under_way = 0;  ///< pieces whose header and bytes the wire still needs
    std::vector<RemoteHeaderBytes> headers;
    std::size_t num_headers = 0;
  };
  /// A lane's transfer on its way in.
  struct Receiving {
    RemotePeer* peer = nullptr;  ///< who may publish here
    std::uint32_t sequence = 0;
    std::uint64_t bytes_left = 0;
    std::uint64_t other_bytes_left = 0;  ///< of the parts but 0
    std::uint64_t rows_begin = 0;
    std::uint64_t rows_done = 0;  ///< leading bytes of part 0 that are there
    TransferHeader header;
    bool raised = false;  ///< its header stands in the signal line
  };
  /// Bytes that are being fetched.
  struct Fetching final : WireEnd {
    void on_end(const char* why_not) noexcept override;
    RemoteChannel* channel = nullptr;
    RemotePeer* peer = nullptr;
    std::size_t lane_idx = 0;
    RemoteHeader header;
    bool busy = false;
  };

  std::size_t lane_index(LaneId lane) const noexcept;
  std::uint64_t capacity(Direction direction, std::size_t part) const noexcept;
  void send_part(Sending& out, RemoteHeader header, const std::byte* bytes, std::uint64_t size,
                 std::unique_lock<base::SpinLock>& lock) noexcept;
  /// @return false  the peer is broken
  bool finish_previous(Sending& out, std::unique_lock<base::SpinLock>& lock) noexcept;
  std::string take_piece(const RemoteHeader& header, const Arrival& arrival, RemotePeer& from,
                         bool* fetching) noexcept;
  std::string take_control(const RemoteHeader& header, const Arrival& arrival) noexcept;
  void arrived(std::size_t lane_idx, const RemoteHeader& header) noexcept;
  void raise(std::size_t lane_idx, std::uint32_t progress) noexcept;
  Fetching& free_fetching();

  RemoteLink& link_;
  std::byte* const memory_;
  const ChannelGeometry geometry_;
  const WindowLayout layout_;
  const std::uint32_t owner_rank_;
  const std::uint64_t piece_bytes_;
  MappedChannel window_;
  std::vector<Sending> sending_;      // by lane
  std::vector<Receiving> receiving_;  // by lane
  std::vector<std::unique_ptr<Fetching>> fetching_;
  /// The sending end of the queue in this window, for the messages that arrive.
  MappedChannel control_in_;
  const bool is_own_;         ///< the FFN end
  RemotePeer* control_peer_;  ///< FFN end: who sends them. Attention end: who takes them.
  std::uint32_t control_received_ = 0;
  std::uint32_t control_sent_ = 0;
  std::uint32_t control_credit_ = 0;  ///< messages that the FFN rank has popped
  std::uint32_t control_popped_ = 0;
};

}  // namespace afd::transport
