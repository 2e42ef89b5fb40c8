#include "transport/remote/remote_channel.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "transport/mapped/signal.h"

namespace afd::transport {
namespace {

/// How long a publish waits for the wire to be done with the lane's previous transfer. Its receiver
/// has answered that one, so it is, but for a peer that breaks the contract.
constexpr std::chrono::milliseconds kPreviousDone{1'000};

}  // namespace

RemoteChannel::RemoteChannel(RemoteLink& link, std::byte* window, const ChannelGeometry& geometry,
                             const WindowLayout& layout, std::uint32_t owner_rank,
                             RemotePeer* owner)
    : link_(link),
      memory_(window),
      geometry_(geometry),
      layout_(layout),
      owner_rank_(owner_rank),
      piece_bytes_(link.piece_bytes()),
      window_(window, geometry, layout),
      sending_(2 * std::size_t{geometry.num_stages} * geometry.num_peers),
      receiving_(sending_.size()),
      control_in_(window, geometry, layout),
      is_own_(owner == nullptr),
      control_peer_(owner) {}

std::size_t RemoteChannel::lane_index(LaneId lane) const noexcept {
  AFD_CHECK(lane.stage_idx < geometry_.num_stages && lane.peer_idx < geometry_.num_peers,
            lane.stage_idx, geometry_.num_stages, lane.peer_idx, geometry_.num_peers);
  const auto direction = static_cast<std::size_t>(lane.direction);
  return (direction * geometry_.num_stages + lane.stage_idx) * geometry_.num_peers + lane.peer_idx;
}

std::uint64_t RemoteChannel::capacity(Direction direction, std::size_t part) const noexcept {
  return (direction == Direction::kA2f ? geometry_.a2f_bytes : geometry_.f2a_bytes)[part];
}

void RemoteChannel::set_peer(Direction direction, std::uint16_t peer_idx,
                             RemotePeer* peer) noexcept {
  AFD_CHECK(peer_idx < geometry_.num_peers, peer_idx, geometry_.num_peers);
  const Direction back = direction == Direction::kA2f ? Direction::kF2a : Direction::kA2f;
  for (std::uint16_t stage = 0; stage < geometry_.num_stages; ++stage) {
    sending_[lane_index({direction, stage, peer_idx})].peer = peer;
    receiving_[lane_index({back, stage, peer_idx})].peer = peer;
  }
}

void RemoteChannel::set_near_peer(Direction direction, std::uint16_t peer_idx, Bell bell) noexcept {
  for (std::uint16_t stage = 0; stage < geometry_.num_stages; ++stage) {
    sending_[lane_index({direction, stage, peer_idx})].near = true;
  }
  window_.set_doorbell(direction, peer_idx, bell);
}

// -- sending -------------------------------------------------------------------------------------

void RemoteChannel::Sending::on_end(const char* why_not) noexcept {
  --num_under_way;
  --peer->num_under_way;
  if (why_not != nullptr) {
    peer->break_off(why_not);
  }
}

bool RemoteChannel::finish_previous(Sending& out, std::unique_lock<base::SpinLock>& lock) noexcept {
  if (out.num_under_way == 0) {
    return true;
  }
  const Deadline given_up = Deadline::after(kPreviousDone);
  while (out.num_under_way != 0) {
    if (given_up.expired()) {
      out.peer->break_off("it answered a transfer before it had taken all of it");
    }
    if (out.peer->broken()) {
      return false;
    }
    link_.progress();
    lock.unlock();
    lock.lock();
  }
  return true;
}

void RemoteChannel::publish(LaneId lane, const TransferHeader& header,
                            std::span<const PutPart, kPartsMax> parts, ByteSource source) noexcept {
  Sending& out = sending_[lane_index(lane)];
  if (out.near) {
    window_.publish(lane, header, parts, source);
    return;
  }
  AFD_CHECK(out.peer != nullptr, lane.stage_idx, lane.peer_idx);
  RemoteHeader message{.kind = RemoteMessageKind::kPiece,
                       .direction = lane.direction,
                       .token = out.peer->token(),
                       .source = link_.own_world_rank(),
                       .channel = owner_rank_,
                       .stage_idx = lane.stage_idx,
                       .peer_idx = lane.peer_idx,
                       .sequence = ++out.sequence,
                       .rows_offset_bytes = parts[0].offset_bytes,
                       .rows_bytes = parts[0].size_bytes,
                       .transfer = header};
  std::size_t num_pieces = 0;
  for (std::size_t part = 0; part < kPartsMax; ++part) {
    const std::uint64_t limit = capacity(lane.direction, part);
    AFD_CHECK(parts[part].size_bytes <= limit &&
                  parts[part].offset_bytes <= limit - parts[part].size_bytes,
              part, parts[part].offset_bytes, parts[part].size_bytes, limit);
    message.total_bytes += parts[part].size_bytes;
    // A division takes as long as some checks.
    num_pieces +=
        parts[part].size_bytes < piece_bytes_ ? 1 : parts[part].size_bytes / piece_bytes_ + 1;
  }
  // What is produced at once: whole granules, at least one.
  std::uint64_t produced = 0;
  if (source.produce != nullptr) {
    const std::uint64_t granule = std::max<std::uint64_t>(source.granule_bytes, 1);
    produced = std::max(granule, piece_bytes_ / granule * granule);
    num_pieces += (parts[0].size_bytes / produced + 1) * (produced / piece_bytes_ + 1);
  }
  std::unique_lock lock(link_.lock());
  if (!finish_previous(out, lock)) {
    return;  // Its end is known, or will be: nobody waits for this.
  }
  if (out.headers.size() < num_pieces) {
    out.headers.resize(num_pieces);  // The first transfers only: it never shrinks.
  }
  out.num_headers = 0;

  for (std::size_t part = 1; part < kPartsMax; ++part) {
    message.part = static_cast<std::uint16_t>(part);
    message.offset_bytes = parts[part].offset_bytes;
    send_part(out, message, parts[part].source, parts[part].size_bytes, lock);
  }
  message.part = 0;
  message.offset_bytes = parts[0].offset_bytes;
  if (source.produce == nullptr) {
    send_part(out, message, parts[0].source, parts[0].size_bytes, lock);
  } else {
    std::byte* const target = landing(lane.direction, lane.stage_idx, 0) + parts[0].offset_bytes;
    for (std::uint64_t done = 0; done < parts[0].size_bytes;) {
      const std::uint64_t size = std::min(produced, parts[0].size_bytes - done);
      if (out.num_under_way != 0) {
        link_.push_out();  // The next rows may take long: these do not wait for them.
      }
      lock.unlock();
      source.produce(source.argument, target + done, done, size);
      lock.lock();
      message.offset_bytes = parts[0].offset_bytes + done;
      send_part(out, message, target + done, size, lock);
      done += size;
    }
  }
  if (out.num_under_way != 0) {
    link_.push_out();
  }
}

void RemoteChannel::send_part(Sending& out, RemoteHeader header, const std::byte* bytes,
                              std::uint64_t size, std::unique_lock<base::SpinLock>& lock) noexcept {
  const std::uint64_t begin = header.offset_bytes;
  for (std::uint64_t done = 0; done < size;) {
    if (done != 0) {
      lock.unlock();  // Whoever receives has its turn.
      lock.lock();
    }
    if (out.peer->broken()) {
      return;
    }
    header.offset_bytes = begin + done;
    header.size_bytes = std::min(piece_bytes_, size - done);
    AFD_CHECK(out.num_headers < out.headers.size(), out.headers.size());
    RemoteHeaderBytes& encoded = out.headers[out.num_headers++];
    encoded = encode_remote_header(header);
    const Result<bool> sent =
        link_.wire().send(out.peer->endpoint(), encoded, {bytes + done, header.size_bytes}, out);
    if (!sent) {
      out.peer->break_off(sent.error().message.c_str());
      return;
    }
    if (*sent) {
      ++out.num_under_way;
      ++out.peer->num_under_way;
    }
    done += header.size_bytes;
  }
}

// -- receiving -----------------------------------------------------------------------------------

std::string RemoteChannel::take(const RemoteHeader& header, const Arrival& arrival,
                                RemotePeer& from, bool* fetching) noexcept {
  switch (header.kind) {
    case RemoteMessageKind::kPiece:
      return take_piece(header, arrival, from, fetching);
    case RemoteMessageKind::kControl:
      return is_own_ && &from == control_peer_ ? take_control(header, arrival)
                                               : "a control message, which it does not send here";
    case RemoteMessageKind::kCredit:
      if (is_own_ || &from != control_peer_) {
        return "it took control messages that it does not get";
      }
      if (header.sequence - control_credit_ > control_sent_ - control_credit_) {
        return "it took " + std::to_string(header.sequence) + " control messages of " +
               std::to_string(control_sent_);
      }
      control_credit_ = header.sequence;
      return {};
    default:
      return "a message of another kind";
  }
}

std::string RemoteChannel::take_piece(const RemoteHeader& header, const Arrival& arrival,
                                      RemotePeer& from, bool* fetching) noexcept {
  if (header.stage_idx >= geometry_.num_stages || header.peer_idx >= geometry_.num_peers) {
    return "stage " + std::to_string(header.stage_idx) + ", peer " +
           std::to_string(header.peer_idx) + " of " + std::to_string(geometry_.num_stages) +
           " stages, " + std::to_string(geometry_.num_peers) + " peers";
  }
  const std::size_t idx = lane_index({header.direction, header.stage_idx, header.peer_idx});
  Receiving& in = receiving_[idx];
  if (in.peer != &from) {
    return "a piece for a lane that is not its own";
  }
  const std::uint64_t limit = capacity(header.direction, header.part);
  if (header.size_bytes > limit || header.offset_bytes > limit - header.size_bytes ||
      arrival.size_bytes != header.size_bytes) {
    return std::to_string(arrival.size_bytes) + " bytes, said to be " +
           std::to_string(header.size_bytes) + ", for offset " +
           std::to_string(header.offset_bytes) + " of part " + std::to_string(header.part) +
           ", which has " + std::to_string(limit);
  }
  if (header.sequence == in.sequence + 1) {
    in.sequence = header.sequence;
    in.bytes_left = header.total_bytes;
    in.other_bytes_left = header.total_bytes - header.rows_bytes;
    in.rows_begin = header.rows_offset_bytes;
    in.rows_done = 0;
    in.header = header.transfer;
    in.raised = false;
  } else if (header.sequence != in.sequence) {
    return "transfer " + std::to_string(header.sequence) + " after " + std::to_string(in.sequence);
  }
  std::uint64_t& left_of_kind = header.part == 0 ? in.bytes_left : in.other_bytes_left;
  if (header.size_bytes > in.bytes_left || header.size_bytes > left_of_kind) {
    return "more bytes than the transfer's " + std::to_string(header.total_bytes);
  }
  std::byte* const target =
      landing(header.direction, header.stage_idx, header.part) + header.offset_bytes;
  if (arrival.data != nullptr) {
    std::memcpy(target, arrival.data, header.size_bytes);
    arrived(idx, header);
    return {};
  }
  Fetching& fetch = free_fetching();
  fetch.channel = this;
  fetch.peer = &from;
  fetch.lane_idx = idx;
  fetch.header = header;
  fetch.busy = true;
  *fetching = true;
  link_.wire().fetch(arrival, target, fetch);
  return {};
}

RemoteChannel::Fetching& RemoteChannel::free_fetching() {
  for (const std::unique_ptr<Fetching>& fetch : fetching_) {
    if (!fetch->busy) {
      return *fetch;
    }
  }
  return *fetching_.emplace_back(std::make_unique<Fetching>());
}

void RemoteChannel::Fetching::on_end(const char* why_not) noexcept {
  busy = false;
  if (why_not != nullptr) {
    peer->break_off(why_not);
    return;
  }
  // One of an older transfer, which its sender has given up, counts for nothing.
  if (channel->receiving_[lane_idx].sequence == header.sequence) {
    channel->arrived(lane_idx, header);
  }
}

void RemoteChannel::arrived(std::size_t lane_idx, const RemoteHeader& header) noexcept {
  Receiving& in = receiving_[lane_idx];
  in.bytes_left -= std::min(in.bytes_left, header.size_bytes);
  if (header.part != 0) {
    in.other_bytes_left -= std::min(in.other_bytes_left, header.size_bytes);
  } else if (header.offset_bytes == in.rows_begin + in.rows_done) {
    in.rows_done += header.size_bytes;
  }
  if (in.bytes_left == 0) {
    raise(lane_idx, SignalLine::kComplete);
  } else if (in.other_bytes_left == 0 && in.rows_done > 0) {
    raise(lane_idx, progress_of(in.rows_done));
  }
}

void RemoteChannel::raise(std::size_t lane_idx, std::uint32_t progress) noexcept {
  Receiving& in = receiving_[lane_idx];
  SignalLine& line = reinterpret_cast<SignalLine*>(memory_ + layout_.signals)[lane_idx];
  if (!in.raised) {
    store_header(line, in.header, in.sequence);
    in.raised = true;
  }
  // Pairs with the acquire load in MappedChannel::poll(), on whichever thread receives.
  line.word.store(signal_word(in.sequence, progress), std::memory_order_release);
}

// -- control -------------------------------------------------------------------------------------

Result<void> RemoteChannel::try_send_control(std::span<const std::byte> message) noexcept {
  if (message.empty() || message.size() > geometry_.control_bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                "a control message has " + std::to_string(message.size()) +
                    " bytes, expected 1 to " + std::to_string(geometry_.control_bytes_max));
  }
  const std::scoped_lock lock(link_.lock());
  AFD_CHECK(control_peer_ != nullptr);
  if (control_sent_ - control_credit_ >= geometry_.control_slots) {
    link_.progress();
  }
  if (control_sent_ - control_credit_ >= geometry_.control_slots) {
    return fail(
        ErrorCode::kWouldBlock,
        "the control queue is full: " + std::to_string(geometry_.control_slots) + " messages wait");
  }
  link_.post(*control_peer_,
             {.kind = RemoteMessageKind::kControl,
              .channel = owner_rank_,
              .sequence = ++control_sent_,
              .size_bytes = message.size()},
             message);
  link_.push_out();
  return {};
}

std::string RemoteChannel::take_control(const RemoteHeader& header,
                                        const Arrival& arrival) noexcept {
  if (arrival.data == nullptr || arrival.size_bytes != header.size_bytes) {
    return "a control message of " + std::to_string(arrival.size_bytes) + " bytes, said to be " +
           std::to_string(header.size_bytes);
  }
  if (header.sequence != control_received_ + 1) {
    return "control message " + std::to_string(header.sequence) + " after " +
           std::to_string(control_received_);
  }
  ++control_received_;
  const Result<void> queued = control_in_.try_send_control({arrival.data, arrival.size_bytes});
  return queued ? std::string() : queued.error().message;
}

void RemoteChannel::pop_control() noexcept {
  window_.pop_control();
  const std::scoped_lock lock(link_.lock());
  if (control_peer_ != nullptr) {
    link_.post(
        *control_peer_,
        {.kind = RemoteMessageKind::kCredit, .channel = owner_rank_, .sequence = ++control_popped_},
        {});
  }
}

}  // namespace afd::transport
