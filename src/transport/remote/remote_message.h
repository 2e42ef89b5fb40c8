// The bytes in front of every message between two remote transports (docs/wire-format.md).
//
// Pure functions over bytes. A peer's header is checked for its form here; whether it fits this
// rank's windows is the transport's to judge. Numbers are little-endian, as the machines are that
// this runs on (a static_assert says so).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/transport.h"

namespace afd::transport {

inline constexpr std::uint32_t kRemoteMessageMagic = 0x3278'6461;  // "adx2"

enum class RemoteMessageKind : std::uint8_t {
  kHello = 1,    ///< the sender has attached; answers go back over its own endpoint
  kPiece = 2,    ///< bytes of one part of one transfer
  kControl = 3,  ///< a control message; `sequence` counts them
  kCredit = 4,   ///< `sequence` control messages have been popped
  kBye = 5,      ///< the sender publishes nothing after this
  kByeSeen = 6,  ///< and its peer has got all of it
};

/// One message's header. Every field is there in every kind; those that a kind does not use are 0.
struct RemoteHeader {
  std::uint32_t magic = kRemoteMessageMagic;
  RemoteMessageKind kind = RemoteMessageKind::kHello;
  Direction direction = Direction::kA2f;
  std::uint16_t part = 0;
  std::uint64_t token = 0;    ///< the receiver's, from its blob: strangers do not know it
  std::uint32_t source = 0;   ///< world rank of the sender
  std::uint32_t channel = 0;  ///< world rank of the FFN rank that owns the channel
  std::uint16_t stage_idx = 0;
  std::uint16_t peer_idx = 0;           ///< of the attention rank, in the channel
  std::uint32_t sequence = 0;           ///< of the lane's transfer
  std::uint64_t offset_bytes = 0;       ///< of this piece, in landing(direction, stage, part)
  std::uint64_t size_bytes = 0;         ///< of this piece
  std::uint64_t total_bytes = 0;        ///< of all pieces of all parts of the transfer
  std::uint64_t rows_offset_bytes = 0;  ///< where part 0 of the transfer begins
  std::uint64_t rows_bytes = 0;         ///< of part 0
  TransferHeader transfer{};

  friend bool operator==(const RemoteHeader&, const RemoteHeader&) = default;
};
static_assert(sizeof(RemoteHeader) == 128);

/// The header's bytes as they travel.
using RemoteHeaderBytes = std::array<std::byte, sizeof(RemoteHeader)>;
RemoteHeaderBytes encode_remote_header(const RemoteHeader& header);

/// What a peer sent, if it has the form of a header: its length and magic, a kind, direction and
/// part that exist, a piece that lies within its own total, and zeros in what the kind does not
/// use. An accepted header encodes to the same bytes again.
std::optional<RemoteHeader> decode_remote_header(std::span<const std::byte> bytes);

}  // namespace afd::transport
