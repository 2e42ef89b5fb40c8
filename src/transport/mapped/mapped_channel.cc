#include "transport/mapped/mapped_channel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/fence.h"
#include "transport/mapped/waiter.h"

namespace afd::transport {
namespace {

constexpr std::uint64_t kChunkBytes = 32 * 1024;

using HeaderWords = std::array<std::uint64_t, 7>;

/// Stores the header of a new sequence; the signal word's release store has to follow.
void store_header(SignalLine& line, const TransferHeader& header, std::uint32_t sequence) noexcept {
  const auto words = std::bit_cast<HeaderWords>(header);
  line.header[6].store(sequence, std::memory_order_relaxed);
  for (std::size_t i = 0; i < 6; ++i) {
    line.header[i].store(words[i], std::memory_order_release);
  }
}

std::uint64_t signal_word(std::uint32_t sequence, std::uint32_t progress) noexcept {
  return std::uint64_t{sequence} << 32 | progress;
}

/// Progress that stands for `bytes` leading bytes: whole units only, and never kComplete.
std::uint32_t progress_of(std::uint64_t bytes) noexcept {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(bytes / kLineBytes, SignalLine::kComplete - 1));
}

}  // namespace

MappedChannel::MappedChannel(std::byte* window, const ChannelGeometry& geometry,
                             const WindowLayout& layout)
    : window_(window),
      geometry_(geometry),
      layout_(layout),
      sequences_(2 * std::size_t{geometry.num_stages} * geometry.num_peers),
      doorbells_(2 * std::size_t{geometry.num_peers}) {}

std::size_t MappedChannel::lane_index(LaneId lane) const noexcept {
  AFD_CHECK(lane.stage_idx < geometry_.num_stages && lane.peer_idx < geometry_.num_peers,
            lane.stage_idx, geometry_.num_stages, lane.peer_idx, geometry_.num_peers);
  const auto direction = static_cast<std::size_t>(lane.direction);
  return (direction * geometry_.num_stages + lane.stage_idx) * geometry_.num_peers + lane.peer_idx;
}

SignalLine& MappedChannel::line(LaneId lane) const noexcept {
  return reinterpret_cast<SignalLine*>(window_ + layout_.signals)[lane_index(lane)];
}

std::byte* MappedChannel::landing(Direction direction, std::uint32_t stage_idx,
                                  std::size_t part) noexcept {
  AFD_CHECK(stage_idx < geometry_.num_stages && part < kPartsMax, stage_idx, part);
  const auto d = static_cast<std::size_t>(direction);
  return window_ + layout_.landing[d][part] + stage_idx * layout_.stage_bytes[d];
}

void MappedChannel::set_doorbell(Direction direction, std::uint16_t peer_idx,
                                 Doorbell* doorbell) noexcept {
  AFD_CHECK(peer_idx < geometry_.num_peers, peer_idx, geometry_.num_peers);
  doorbells_[static_cast<std::size_t>(direction) * geometry_.num_peers + peer_idx] = doorbell;
}

void MappedChannel::publish(LaneId lane, const TransferHeader& header,
                            std::span<const PutPart, kPartsMax> parts, ByteSource source) noexcept {
  const auto& capacity =
      lane.direction == Direction::kA2f ? geometry_.a2f_bytes : geometry_.f2a_bytes;
  SignalLine& signal = line(lane);
  const std::uint32_t sequence = ++sequences_[lane_index(lane)];
  Doorbell* const doorbell =
      doorbells_[static_cast<std::size_t>(lane.direction) * geometry_.num_peers + lane.peer_idx];

  for (std::size_t part = 0; part < kPartsMax; ++part) {
    const PutPart& put = parts[part];
    AFD_CHECK(
        put.size_bytes <= capacity[part] && put.offset_bytes <= capacity[part] - put.size_bytes,
        part, put.offset_bytes, put.size_bytes, capacity[part]);
    std::byte* const target = landing(lane.direction, lane.stage_idx, part) + put.offset_bytes;
    if (part > 0 && put.size_bytes > 0 && put.source != target) {
      std::memcpy(target, put.source, put.size_bytes);
    }
  }
  store_header(signal, header, sequence);

  const PutPart& rows = parts[0];
  std::byte* const target = landing(lane.direction, lane.stage_idx, 0) + rows.offset_bytes;
  if (source.produce != nullptr || rows.source != target) {
    const std::uint64_t granule = source.produce != nullptr ? source.granule_bytes : kLineBytes;
    const std::uint64_t chunk = std::max(granule, kChunkBytes / granule * granule);
    for (std::uint64_t done = 0; done < rows.size_bytes;) {
      const std::uint64_t size = std::min(chunk, rows.size_bytes - done);
      if (source.produce != nullptr) {
        source.produce(source.argument, target + done, done, size);
        base::streaming_store_fence();
      } else {
        std::memcpy(target + done, rows.source + done, size);
      }
      done += size;
      if (done < rows.size_bytes) {
        signal.word.store(signal_word(sequence, progress_of(done)), std::memory_order_release);
        if (doorbell != nullptr) {
          ring_unfenced(*doorbell);
        }
      }
    }
  }
  base::streaming_store_fence();  // For rows that the caller wrote in place.
  signal.word.store(signal_word(sequence, SignalLine::kComplete), std::memory_order_release);
  if (doorbell != nullptr) {
    ring(*doorbell);
  }
}

LaneState MappedChannel::poll(LaneId lane) const noexcept {
  const std::uint64_t word = line(lane).word.load(std::memory_order_acquire);
  const auto progress = static_cast<std::uint32_t>(word);
  const bool complete = progress == SignalLine::kComplete;
  return {.sequence = static_cast<std::uint32_t>(word >> 32),
          .complete = complete,
          .bytes_ready = complete ? LaneState::kAllBytes : progress * kLineBytes};
}

TransferHeader MappedChannel::header(LaneId lane) const noexcept {
  const SignalLine& signal = line(lane);
  const auto sequence =
      static_cast<std::uint32_t>(signal.word.load(std::memory_order_acquire) >> 32);
  HeaderWords words{};
  for (std::size_t i = 0; i < 6; ++i) {
    words[i] = signal.header[i].load(std::memory_order_acquire);
  }
  if (signal.header[6].load(std::memory_order_relaxed) != sequence) {
    words = {};  // The peer published again while we read.
  }
  return std::bit_cast<TransferHeader>(words);
}

std::byte* MappedChannel::control_slot(std::uint64_t message_idx) const noexcept {
  return window_ + layout_.control_slots +
         message_idx % geometry_.control_slots * layout_.control_slot_bytes;
}

Result<void> MappedChannel::try_send_control(std::span<const std::byte> message) noexcept {
  if (message.size() > geometry_.control_bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                "a control message has " + std::to_string(message.size()) +
                    " bytes, expected at most " + std::to_string(geometry_.control_bytes_max));
  }
  if (geometry_.control_bytes_max == 0) {
    return fail(ErrorCode::kInvalidArgument, "this channel has no control queue");
  }
  auto& ring_line = *reinterpret_cast<ControlRing*>(window_ + layout_.control_ring);
  // Wrong tails of a broken peer (beyond head, or long past) count as a full queue.
  const std::uint64_t waiting = control_sent_ - ring_line.tail.load(std::memory_order_acquire);
  if (waiting >= geometry_.control_slots) {
    return fail(
        ErrorCode::kWouldBlock,
        "the control queue is full: " + std::to_string(geometry_.control_slots) + " messages wait");
  }
  std::byte* const slot = control_slot(control_sent_);
  const std::uint64_t size = message.size();
  std::memcpy(slot, &size, sizeof(size));
  if (size > 0) {
    std::memcpy(slot + sizeof(size), message.data(), size);
  }
  ring_line.head.store(++control_sent_, std::memory_order_release);
  ring(*reinterpret_cast<Doorbell*>(window_ + WindowLayout::kDoorbellOffset));
  return {};
}

Result<std::span<const std::byte>> MappedChannel::peek_control() noexcept {
  if (geometry_.control_bytes_max == 0) {
    return std::span<const std::byte>();
  }
  const auto& ring_line = *reinterpret_cast<const ControlRing*>(window_ + layout_.control_ring);
  const std::uint64_t waiting = ring_line.head.load(std::memory_order_acquire) - control_popped_;
  if (waiting == 0) {
    return std::span<const std::byte>();
  }
  const std::byte* const slot = control_slot(control_popped_);
  std::uint64_t size = 0;
  std::memcpy(&size, slot, sizeof(size));
  if (waiting > geometry_.control_slots || size > geometry_.control_bytes_max) {
    return fail(ErrorCode::kProtocolMismatch, "the control queue holds " + std::to_string(waiting) +
                                                  " messages, the next of " + std::to_string(size) +
                                                  " bytes, expected at most " +
                                                  std::to_string(geometry_.control_slots) + " of " +
                                                  std::to_string(geometry_.control_bytes_max));
  }
  return std::span<const std::byte>(slot + sizeof(size), size);
}

void MappedChannel::pop_control() noexcept {
  auto& ring_line = *reinterpret_cast<ControlRing*>(window_ + layout_.control_ring);
  ring_line.tail.store(++control_popped_, std::memory_order_release);
}

}  // namespace afd::transport
