#include "transport/remote/remote_message.h"

#include <bit>
#include <cstring>

namespace afd::transport {

static_assert(std::endian::native == std::endian::little, "headers travel as they lie in memory");
static_assert(std::has_unique_object_representations_v<TransferHeader> &&
                  std::has_unique_object_representations_v<RemoteHeader>,
              "no padding travels");

RemoteHeaderBytes encode_remote_header(const RemoteHeader& header) {
  return std::bit_cast<RemoteHeaderBytes>(header);
}

namespace {

bool is_of_its_kind(const RemoteHeader& header) {
  if (header.kind == RemoteMessageKind::kPiece) {  // First: rows wait for it.
    return header.part < kPartsMax && header.size_bytes > 0 &&
           header.size_bytes <= header.total_bytes && header.rows_bytes <= header.total_bytes &&
           header.transfer.stamp == 0 && header.transfer.reserved == 0;
  }
  RemoteHeader wanted;
  wanted.kind = header.kind;
  wanted.token = header.token;
  wanted.source = header.source;
  if (header.kind == RemoteMessageKind::kControl || header.kind == RemoteMessageKind::kCredit) {
    wanted.channel = header.channel;
    wanted.sequence = header.sequence;
  }
  if (header.kind == RemoteMessageKind::kControl) {
    if (header.size_bytes == 0) {
      return false;
    }
    wanted.size_bytes = header.size_bytes;
  }
  return header == wanted;
}

}  // namespace

std::optional<RemoteHeader> decode_remote_header(std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(RemoteHeader)) {
    return std::nullopt;
  }
  // The bytes of the two enumerations first: a value that they lack may not become one.
  const auto kind = std::to_integer<std::uint8_t>(bytes[offsetof(RemoteHeader, kind)]);
  const auto direction = std::to_integer<std::uint8_t>(bytes[offsetof(RemoteHeader, direction)]);
  if (kind < static_cast<std::uint8_t>(RemoteMessageKind::kHello) ||
      kind > static_cast<std::uint8_t>(RemoteMessageKind::kByeSeen) || direction > 1) {
    return std::nullopt;
  }
  RemoteHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kRemoteMessageMagic || !is_of_its_kind(header)) {
    return std::nullopt;
  }
  return header;
}

}  // namespace afd::transport
