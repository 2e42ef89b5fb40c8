// Landing windows and ordered signals: the one mechanism under every connector.
//
// An FFN rank owns a *channel*: for every stage the memory where its attention peers' rows land
// (a2f) and where its own output rows stand for them (f2a), plus one *lane* per (peer, stage,
// direction). A lane carries one transfer at a time: rows are put into the landing memory, then the
// lane's signal is raised, ordered after the rows, with a header that says what they are (R1).
//
//      attention peer p                               FFN rank
//      publish(a2f lane p, header, rows) ---------->  poll(lane), header(lane), landing(a2f, stage)
//      poll(lane), landing(f2a, stage)   <----------  publish(f2a lane p, header, rows)
//
// There is no credit and no acknowledgement: the contract's order (send, receive, send, ... per
// stage) already says that a lane's landing memory is free when its sender may write again. A
// sender never waits for a receiver (R3).
//
// Set-up, driven by the connector:
//   create(geometry) -> blob;  exchange blobs (session);  attach(peer, blob);  barrier;  seal()
//
// Threads: one thread publishes while another polls and waits; wake() from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <afd/connector.h>
#include <afd/deadline.h>
#include <afd/result.h>

namespace afd::transport {

enum class Direction : std::uint8_t { kA2f = 0, kF2a = 1 };

/// The tensors of one transfer. Part 0 is pipelined; the others are put whole before its first
/// signal.
inline constexpr std::size_t kPartsMax = 4;
enum class A2fPart : std::uint8_t {
  kHiddenStates = 0,
  kRouterLogits = 1,
  kTopkIds = 2,
  kTopkWeights = 3
};
enum class F2aPart : std::uint8_t { kRouted = 0, kShared = 1 };

/// What a transfer says of itself (R1): 56 bytes, beside the 8-byte signal word in one cache line.
struct TransferHeader {
  std::uint64_t step = 0;
  std::uint32_t epoch = 0;
  std::uint32_t layer_idx = 0;
  std::uint16_t stage_idx = 0;
  std::uint16_t source_rank = 0;  ///< role_rank of the sender
  std::uint32_t num_rows = 0;
  std::uint32_t row_offset = 0;    ///< first row within the landing memory
  std::uint32_t row_elements = 0;  ///< hidden_size
  std::uint8_t dtype_code = 0;
  std::uint8_t dtype_bits = 0;
  std::uint8_t parts = 1;           ///< bit i: part i is there
  std::uint8_t aux_dtype_bits = 0;  ///< of the router logits
  std::uint32_t aux_elements = 0;   ///< width of the router logits
  std::uint32_t topk_elements = 0;
  std::uint32_t reserved = 0;
  std::uint64_t stamp = 0;  ///< the transport's own: overwritten by publish(), 0 in header()

  friend bool operator==(const TransferHeader&, const TransferHeader&) = default;
};
static_assert(sizeof(TransferHeader) == 56, "header and signal word share one cache line");

/// One lane of a channel.
struct LaneId {
  Direction direction = Direction::kA2f;
  std::uint16_t stage_idx = 0;
  std::uint16_t peer_idx = 0;  ///< index among the channel's attention peers
};

/// How far a lane's current transfer is.
struct LaneState {
  std::uint32_t sequence = 0;  ///< transfers begun on this lane since init; wraps
  bool complete = false;       ///< every row of the transfer `sequence` is there
  /// Leading bytes of part 0 that are there, rounded down to 64; kAllBytes if complete: clamp to
  /// what the header says.
  std::uint64_t bytes_ready = 0;

  static constexpr std::uint64_t kAllBytes = ~std::uint64_t{0};
};

/// One tensor to publish.
struct PutPart {
  const std::byte* source =
      nullptr;  ///< equal to the destination: already in place, nothing is copied
  std::uint64_t offset_bytes = 0;  ///< into landing(direction, stage, part)
  std::uint64_t size_bytes = 0;    ///< 0: the part is absent
};

/// Produces part 0 piece by piece into memory that the channel gives: the landing memory itself,
/// or, where ordinary stores into that would be slow, a small buffer that stays in the cache and is
/// streamed from there. So the producer uses ordinary stores and needs to know nothing.
struct ByteSource {
  void* argument = nullptr;
  /// Fills [offset, offset + size) of the part; offsets ascend without gaps.
  void (*produce)(void* argument, std::byte* destination, std::uint64_t offset,
                  std::uint64_t size) = nullptr;
  std::uint64_t granule_bytes = 64;  ///< pieces are multiples of this (a row), but for the last
};

/// Sizes of a channel. Equal at both ends.
struct ChannelGeometry {
  std::uint32_t num_peers = 1;
  std::uint32_t num_stages = 1;
  /// Landing bytes of one stage, all peers together, by A2fPart and F2aPart; 0: the part never
  /// occurs.
  std::array<std::uint64_t, kPartsMax> a2f_bytes{};
  std::array<std::uint64_t, kPartsMax> f2a_bytes{};
  std::uint32_t control_slots = 16;     ///< control messages that can be under way
  std::uint64_t control_bytes_max = 0;  ///< length of one control message, at most

  friend bool operator==(const ChannelGeometry&, const ChannelGeometry&) = default;
};

/// One end of a channel. Attention ranks see the FFN rank's channel through attach().
class Channel {
 public:
  virtual ~Channel() = default;

  /// Start of a stage's landing memory of one part. 64-byte aligned, zeroed, resident. Over shared
  /// memory both ends see the same bytes; on other transports the sender's is registered staging.
  virtual std::byte* landing(Direction direction, std::uint32_t stage_idx,
                             std::size_t part) noexcept = 0;

  /// Puts the parts and raises the lane's signal. Never waits for the receiver. With
  /// `source.produce`, part 0 is produced piece by piece, each published when it is there. Rows
  /// written in place, by whatever kind of store, are ordered before the signal.
  virtual void publish(LaneId lane, const TransferHeader& header,
                       std::span<const PutPart, kPartsMax> parts, ByteSource source) noexcept = 0;

  /// One acquire load of the lane's signal word.
  virtual LaneState poll(LaneId lane) const noexcept = 0;
  /// The header of the transfer that poll() last reported; stable until the lane's next publish. A
  /// peer that breaks the contract's order and publishes meanwhile never shows as a mixture of two
  /// headers: the result is then all zero, whose epoch 0 no job has.
  virtual TransferHeader header(LaneId lane) const noexcept = 0;

  /// Appends a control message to the FFN rank's queue (attention end; one sender per channel).
  /// @return kWouldBlock       the queue is full
  ///         kInvalidArgument  empty, or longer than control_bytes_max
  virtual Result<void> try_send_control(std::span<const std::byte> message) noexcept = 0;
  /// The oldest control message (FFN end), or an empty span. Valid until pop_control().
  /// @return kProtocolMismatch  what the peer left there cannot be a message
  virtual Result<std::span<const std::byte>> peek_control() noexcept = 0;
  virtual void pop_control() noexcept = 0;
};

/// A condition that wait() polls. Called many times a microsecond: keep it to a few loads.
struct Condition {
  void* argument = nullptr;
  bool (*holds)(void* argument) = nullptr;
};

/// Whom to tell of something. No function: nobody.
struct Notice {
  void* argument = nullptr;
  void (*happened)(void* argument) = nullptr;
};

/// Numbers for metrics: how waits ended. Plain counters of the waiting thread.
struct WaitStats {
  std::uint64_t spins_won = 0;   ///< waits that ended while spinning
  std::uint64_t yields_won = 0;  ///< while yielding
  std::uint64_t sleeps = 0;      ///< waits that slept at least once
};

/// One rank's transport: its own window, those of its peers, and waiting.
class Transport {
 public:
  virtual ~Transport() = default;

  /// Allocates, pre-faults and zeroes this rank's window: a doorbell, and on FFN ranks (geometry
  /// not null) the channel. @return the blob for the peers, at most 32 KiB
  ///         kUnavailable  too little shared memory: how much is needed, free, and missing
  virtual Result<std::string> create(const ChannelGeometry* geometry) = 0;

  /// This (FFN) rank's own channel. Null before create() and on attention ranks.
  virtual Channel* own_channel() noexcept = 0;

  /// Maps the window behind a peer's blob, so that its doorbell can be rung. For an FFN peer also
  /// checks `geometry` against the window and returns the channel, owned by the transport; null for
  /// an attention peer. Pass null geometry for an attention peer.
  /// @return kProtocolMismatch (not a window, other layout), kUnavailable (cannot be mapped)
  virtual Result<Channel*> attach(std::uint32_t world_rank, std::string_view blob,
                                  const ChannelGeometry* geometry) = 0;

  /// Says which attached peer's doorbell rings when a lane of `channel` is published, by direction
  /// and peer index. Called once per peer after attach.
  virtual void set_doorbell(Channel* channel, Direction direction, std::uint16_t peer_idx,
                            std::uint32_t world_rank) noexcept = 0;

  /// Says which attached peer sends control messages to this (FFN) rank's own channel. Of no other
  /// they are taken, where a sender can be told. Once, after attach.
  virtual void set_control_sender(std::uint32_t world_rank) noexcept {
    static_cast<void>(world_rank);
  }

  /// Everybody has attached: removes the window's name. Nothing is left if all processes die now.
  virtual void seal() noexcept = 0;

  /// Waits until condition.holds(), wake(), or the deadline: spins, yields, sleeps. Returns whether
  /// the condition holds. After wake() it returns at once if the condition does not hold, so the
  /// condition should include closed and peer-loss flags.
  virtual bool wait(Condition condition, Deadline deadline) noexcept = 0;
  /// Wakes a wait() of this rank. Async-signal-safe.
  virtual void wake() noexcept = 0;

  virtual WaitStats wait_stats() const noexcept = 0;

  // What only transports with connections have to say. Over memory that both ends map there is
  // nothing between a publish and the peer's poll().

  /// Called, on whichever thread is in this transport, when fault() or why_broken() has changed:
  /// must not block and must not call this transport, but for wake().
  virtual void set_on_event(Notice on_event) { static_cast<void>(on_event); }
  /// The first thing that a peer sent and that cannot be (kProtocolMismatch).
  virtual std::optional<Error> fault() const { return std::nullopt; }
  /// Whether messages of that attached peer have come.
  virtual bool is_reached(std::uint32_t world_rank) const {
    static_cast<void>(world_rank);
    return true;
  }
  /// Why nothing more can come from that peer, unless it has left in order.
  virtual std::optional<std::string> why_broken(std::uint32_t world_rank) const {
    static_cast<void>(world_rank);
    return std::nullopt;
  }
  /// Whether poll() has everything that this peer, which has left, published before.
  virtual bool has_drained(std::uint32_t world_rank) {
    static_cast<void>(world_rank);
    return true;
  }
  /// Tells the peers that nothing more comes. Repeatable; from any thread.
  virtual void leave_peers() noexcept {}
  /// That peer is dead: nobody need wait until it has got what was sent.
  virtual void forget(std::uint32_t world_rank) noexcept { static_cast<void>(world_rank); }
  /// What carries rows to and from that peer: "shared memory", "UCX tcp/eth0".
  virtual std::string describe_path(std::uint32_t world_rank) const = 0;
};

}  // namespace afd::transport
