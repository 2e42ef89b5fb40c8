#include "transport/mapped/mapped_channel.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/fence.h"
#include "transport/mapped/signal.h"

namespace afd::transport {
namespace {

/// The largest piece that is copied or produced at once, unless a row is larger.
constexpr std::size_t kStagingBytes = 64 * 1024;
static_assert(copy_piece_bytes(~std::uint64_t{0}) <= kStagingBytes);

/// Sizes of rows that are produced in the staging memory wherever the processors are.
constexpr std::uint64_t kStagedFromBytes = 2 * 1024;
constexpr std::uint64_t kStagedToBytes = 128 * 1024;

}  // namespace

MappedChannel::MappedChannel(std::byte* window, const ChannelGeometry& geometry,
                             const WindowLayout& layout)
    : window_(window),
      geometry_(geometry),
      layout_(layout),
      sequences_(2 * std::size_t{geometry.num_stages} * geometry.num_peers),
      bells_(2 * std::size_t{geometry.num_peers}),
      owner_bell_{reinterpret_cast<Doorbell*>(window + WindowLayout::kDoorbellOffset)},
      staging_(kStagingBytes / kLineBytes) {}

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

void MappedChannel::set_doorbell(Direction direction, std::uint16_t peer_idx, Bell bell) noexcept {
  AFD_CHECK(peer_idx < geometry_.num_peers, peer_idx, geometry_.num_peers);
  bells_[static_cast<std::size_t>(direction) * geometry_.num_peers + peer_idx] = bell;
}

void MappedChannel::publish(LaneId lane, const TransferHeader& header,
                            std::span<const PutPart, kPartsMax> parts, ByteSource source) noexcept {
  Lane to{
      .signal = line(lane),
      .header = &header,
      .sequence = ++sequences_[lane_index(lane)],
      .bell =
          bells_[static_cast<std::size_t>(lane.direction) * geometry_.num_peers + lane.peer_idx]};
  for (std::size_t part = 1; part < kPartsMax; ++part) {
    if (parts[part].size_bytes > 0) {
      std::byte* const part_target = target(lane, part, parts[part]);
      if (parts[part].source == part_target) {
        to.streamed = true;
      } else {
        std::memcpy(part_target, parts[part].source, parts[part].size_bytes);
      }
    }
  }

  const PutPart& rows = parts[0];
  std::byte* const rows_target = target(lane, 0, rows);
  if (source.produce != nullptr) {
    produce_rows(to, rows_target, rows.size_bytes, source);
  } else if (rows.source != rows_target) {
    copy_rows(to, rows_target, rows);
  } else {
    to.streamed = true;
  }

  to.raise(SignalLine::kComplete);
  if (to.bell.doorbell != nullptr) {
    ring(to.bell);
  }
}

std::byte* MappedChannel::target(LaneId lane, std::size_t part, const PutPart& put) noexcept {
  const std::uint64_t capacity =
      (lane.direction == Direction::kA2f ? geometry_.a2f_bytes : geometry_.f2a_bytes)[part];
  AFD_CHECK(put.size_bytes <= capacity && put.offset_bytes <= capacity - put.size_bytes, part,
            put.offset_bytes, put.size_bytes, capacity);
  return landing(lane.direction, lane.stage_idx, part) + put.offset_bytes;
}

void MappedChannel::copy_rows(Lane& to, std::byte* rows_target, const PutPart& rows) noexcept {
  const CopyPlan plan = chooser_.plan(rows.size_bytes);
  to.streamed |= plan.kind == base::CopyKind::kStreaming;
  const std::uint64_t start = base::ticks();
  for (std::uint64_t done = 0; done < rows.size_bytes;) {
    const std::uint64_t size = std::min(plan.piece_bytes, rows.size_bytes - done);
    base::copy_bytes(plan.kind, rows_target + done, rows.source + done, size);
    done += size;
    if (done < rows.size_bytes) {
      to.publish_progress(done);
    }
  }
  chooser_.took(plan.kind, rows.size_bytes, base::ticks() - start);
}

void MappedChannel::produce_rows(Lane& to, std::byte* rows_target, std::uint64_t size_bytes,
                                 ByteSource source) noexcept {
  const std::uint64_t granule = source.granule_bytes;
  AFD_CHECK(granule > 0);
  const CopyPlan plan = chooser_.plan(size_bytes);
  const std::uint64_t piece = std::max(granule, plan.piece_bytes / granule * granule);
  // Where the other core's lines come slowly, ordinary stores into them would wait for each. The
  // staging memory stays in this core's cache, and streaming it out waits for none. Payloads of a
  // few pieces gain little from overlap, so there the copy's wide stores win even where lines come
  // fast (near, 16 KiB: 1.8 us staged, 2.1 in place; from 256 KiB on in place is faster).
  const bool few_pieces = size_bytes > kStagedFromBytes && size_bytes <= kStagedToBytes;
  const bool staged = (plan.kind == base::CopyKind::kStreaming || plan.look || few_pieces) &&
                      piece <= kStagingBytes;
  to.streamed = true;  // The producer may have its own reasons to stream.
  std::byte* const staging = staging_.front().bytes;
  std::uint64_t copy_ticks = 0;
  for (std::uint64_t done = 0; done < size_bytes;) {
    const std::uint64_t size = std::min(piece, size_bytes - done);
    source.produce(source.argument, staged ? staging : rows_target + done, done, size);
    const std::uint64_t produced_at = base::ticks();
    if (staged) {
      base::copy_bytes(plan.kind, rows_target + done, staging, size);
    }
    done += size;
    if (done < size_bytes) {
      to.publish_progress(done);
    }
    copy_ticks += base::ticks() - produced_at;
  }
  if (staged) {
    chooser_.took(plan.kind, size_bytes, copy_ticks);
  }
}

void MappedChannel::Lane::raise(std::uint32_t progress) noexcept {
  if (streamed) {
    base::streaming_store_fence();
  }
  if (header != nullptr) {
    store_header(signal, *header, sequence);
    header = nullptr;
  }
  signal.word.store(signal_word(sequence, progress), std::memory_order_release);
}

void MappedChannel::Lane::publish_progress(std::uint64_t bytes_done) noexcept {
  raise(progress_of(bytes_done));
  if (bell.doorbell != nullptr) {
    ring_unfenced(bell);
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
  if (message.empty() || message.size() > geometry_.control_bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                "a control message has " + std::to_string(message.size()) +
                    " bytes, expected 1 to " + std::to_string(geometry_.control_bytes_max));
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
  std::memcpy(slot + sizeof(size), message.data(), size);
  ring_line.head.store(++control_sent_, std::memory_order_release);
  ring(owner_bell_);
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
  if (waiting > geometry_.control_slots || size == 0 || size > geometry_.control_bytes_max) {
    return fail(ErrorCode::kProtocolMismatch,
                "the control queue holds " + std::to_string(waiting) + " messages, the next of " +
                    std::to_string(size) + " bytes, expected at most " +
                    std::to_string(geometry_.control_slots) + " of 1 to " +
                    std::to_string(geometry_.control_bytes_max));
  }
  return std::span<const std::byte>(slot + sizeof(size), size);
}

void MappedChannel::pop_control() noexcept {
  auto& ring_line = *reinterpret_cast<ControlRing*>(window_ + layout_.control_ring);
  ring_line.tail.store(++control_popped_, std::memory_order_release);
}

}  // namespace afd::transport
