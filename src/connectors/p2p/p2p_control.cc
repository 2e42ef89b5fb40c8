// The control plane and the role group.
//
// One control message is a fixed frame and the payload's JSON:
//
//   bytes  0  magic "AFDC", version 1, source role rank, epoch, step (little-endian, fixed widths)
//         24  payload (control_payload.h)
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include <afd/control_payload.h>

#include "connectors/p2p/p2p_abandon.h"
#include "connectors/p2p/p2p_state.h"

namespace afd::p2p {
namespace {

constexpr std::uint32_t kMagic = 0x43444641;  // "AFDC" in memory
constexpr std::uint16_t kVersion = 1;

struct ControlFrame {
  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t source_rank = 0;
  std::uint32_t epoch = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t step = 0;
};
static_assert(sizeof(ControlFrame) == 24, "it crosses process borders as it stands");
static_assert(std::endian::native == std::endian::little, "fields are sent as they stand");

}  // namespace

void set_leaving_together_for_tests(ConnectorBase& connector,
                                    std::chrono::milliseconds time) noexcept {
  static_cast<P2pConnector&>(connector).set_leaving_together(time);
}

Result<void> P2pConnector::update_state_from_dp_metadata(const ControlPayload& payload) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  for (std::uint32_t stage_idx = 0; stage_idx < layout_.limits().num_stages; ++stage_idx) {
    const StageState& stage = stages_[stage_idx];
    if (stage.open.load(std::memory_order_acquire) || stage.incoming.started) {
      return fail(ErrorCode::kFailedPrecondition, "stage " + std::to_string(stage_idx) +
                                                      " of step " + std::to_string(step_) +
                                                      " is still open: finish its transfers first");
    }
  }
  std::array<StageLayout, kStagesMax> layouts{};
  if (Result<void> applied = layout_.apply(payload, layouts); !applied) {
    return fail(std::move(applied).error());
  }
  for (std::size_t stage_idx = 0; stage_idx < stages_.size(); ++stage_idx) {
    stages_[stage_idx].layout = layouts[stage_idx];
    stages_[stage_idx].layer_idx = kNoLayer;
    stages_[stage_idx].layer_known = false;
    stages_[stage_idx].incoming.announced = false;
  }
  ++step_;
  return {};
}

Result<void> P2pConnector::send_dp_metadata_list(const ControlPayload& payload, Deadline deadline) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (control_channels_.empty()) {
    return {};  // not a designated sender
  }
  const std::string text = encode_control_payload(payload);
  const ControlFrame frame{
      .source_rank = static_cast<std::uint16_t>(layout_.mapping().role_rank),
      .epoch = session_->epoch(),
      .payload_bytes = static_cast<std::uint32_t>(text.size()),
      .step = control_sent_ + 1,
  };
  std::string message(sizeof(frame) + text.size(), '\0');
  std::memcpy(message.data(), &frame, sizeof(frame));
  std::memcpy(message.data() + sizeof(frame), text.data(), text.size());

  if (control_sent_to_ != 0 && message != control_under_way_) {
    return fail(
        ErrorCode::kInvalidArgument,
        "the last call ran out of time after some ffn ranks had its payload: repeat it with "
        "the same payload");
  }
  control_under_way_ = message;
  std::chrono::microseconds pause{100};
  const std::vector<std::uint32_t>& destinations = layout_.mapping().dp_metadata_destinations;
  for (std::size_t i = control_sent_to_; i < control_channels_.size(); ++i) {
    const std::string name = "ffn rank " + std::to_string(destinations[i]);
    for (;;) {
      if (stopping_.load(std::memory_order_acquire)) {
        return fail(not_ready());
      }
      if (peer_events_.load(std::memory_order_acquire) != 0) {
        if (Result<void> checked = session_->check_peers(); !checked) {
          return fail(std::move(checked).error().with_context("send control payload"));
        }
        std::optional<Error> left = left_error(destinations[i]);
        if (!left) {
          left = relay_error();
        }
        if (left) {
          return fail(*std::move(left));
        }
      }
      Result<void> sent = control_channels_[i]->try_send_control(std::as_bytes(std::span(message)));
      if (sent) {
        break;
      }
      if (sent.error().code != ErrorCode::kWouldBlock) {
        return fail(std::move(sent).error().with_context("send control payload to " + name));
      }
      if (deadline.expired()) {
        return fail(ErrorCode::kDeadlineExceeded,
                    name + " has not taken its last control payloads: step " +
                        std::to_string(control_sent_ + 1) + " could not be announced");
      }
      // Rare: the receiver is whole steps behind. Nothing rings when it takes one.
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(5'000));
    }
    // A repeated call after a deadline goes on with the destination that did not get it.
    control_sent_to_ = i + 1;
  }
  control_sent_to_ = 0;
  ++control_sent_;
  return {};
}

Result<std::optional<ControlPayload>> P2pConnector::recv_dp_metadata_list(Deadline deadline) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kFfn, "recv_dp_metadata_list")) {
    return fail(*std::move(error));
  }
  const std::uint32_t source = layout_.mapping().dp_metadata_source;
  const std::uint32_t source_world = layout_.mapping().counts.num_ffn_ranks + source;
  const std::string source_name = session::rank_name(source_world, layout_.mapping().counts);
  transport::Channel* own = channels_[0];
  std::optional<Deadline>& grace = sender_left_grace_;

  struct Watch {
    P2pConnector* self;
    transport::Channel* channel;
    std::uint32_t peer_events;
  } watch{this, own, 0};
  const transport::Condition something_happened{
      &watch, [](void* argument) {
        const Watch& w = *static_cast<const Watch*>(argument);
        const Result<std::span<const std::byte>> message = w.channel->peek_control();
        return !message || !message->empty() || w.self->stopping_.load(std::memory_order_acquire) ||
               w.self->peer_events_.load(std::memory_order_acquire) != w.peer_events;
      }};

  std::optional<Deadline> drained_by;  // set once the sender has left with something under way
  for (;;) {
    if (stopping_.load(std::memory_order_acquire)) {
      return fail(not_ready());
    }
    watch.peer_events = peer_events_.load(std::memory_order_acquire);
    std::optional<Error> lost;
    bool job_done = false;
    bool drained = true;
    if (watch.peer_events != 0) {
      // In this order: rank 0's goodbye comes after those that it relayed.
      lost = relay_error();
      const bool source_left = session_->peer_state(source_world) != session::PeerState::kPresent;
      // Before the queue is looked at: what it had sent has to be in it.
      drained = !source_left || transport_->has_drained(source_world);
      job_done = all_attention_ranks_left();
      if (const std::optional<std::uint32_t> rank = session_->first_to_give_up()) {
        lost = Error{ErrorCode::kPeerLost, session_->departure_text(*rank)};
        job_done = false;
      }
      if (Result<void> checked = session_->check_peers(); !checked) {
        lost = std::move(checked).error();
        job_done = false;
      }
      if (source_left && !grace) {
        grace = Deadline::after(leaving_together_);
      }
    }
    Result<std::span<const std::byte>> message = own->peek_control();
    if (!message) {
      return fail(std::move(message).error().with_context("control payload from " + source_name));
    }
    if (!message->empty()) {
      Result<ControlPayload> payload = take_control(*message);
      own->pop_control();
      if (!payload) {
        return fail(std::move(payload).error().with_context("control payload from " + source_name));
      }
      return std::optional<ControlPayload>(*std::move(payload));
    }
    if ((job_done || lost) && !drained) {
      if (!drained_by) {
        drained_by = Deadline::after(kDrained);
      }
      if (!drained_by->expired()) {
        transport_->wait(something_happened, Deadline::after(kDrainLook));
        continue;
      }
    }
    if (job_done) {
      return std::optional<ControlPayload>();
    }
    if (!lost && grace && grace->expired()) {
      lost = Error{ErrorCode::kPeerLost,
                   source_name + " has left the job, other attention ranks have not"};
    }
    if (lost) {
      return fail(std::move(*lost).with_context("await control payload from " + source_name));
    }
    const Deadline until = grace && grace->when() < deadline.when() ? *grace : deadline;
    if (!transport_->wait(something_happened, until) && deadline.expired()) {
      return fail(ErrorCode::kDeadlineExceeded, "awaited " + source_name +
                                                    " for the control payload of step " +
                                                    std::to_string(control_taken_ + 1));
    }
  }
}

bool P2pConnector::all_attention_ranks_left() const {
  // All, not only the sender: a rank that relays the session's news has to outlive the others'
  // goodbyes.
  const RankCounts& counts = layout_.mapping().counts;
  for (std::uint32_t rank = 0; rank < counts.num_attention_ranks; ++rank) {
    if (session_->peer_state(counts.num_ffn_ranks + rank) != session::PeerState::kLeft) {
      return false;
    }
  }
  return true;
}

Result<ControlPayload> P2pConnector::take_control(std::span<const std::byte> message) {
  const auto mismatch = [](std::string_view what, std::uint64_t found, std::uint64_t wanted) {
    return fail(ErrorCode::kProtocolMismatch, std::string(what) + " is " + std::to_string(found) +
                                                  ", expected " + std::to_string(wanted));
  };
  if (message.size() < sizeof(ControlFrame)) {
    return mismatch("its length", message.size(), sizeof(ControlFrame));
  }
  ControlFrame frame;
  std::memcpy(&frame, message.data(), sizeof(frame));
  message = message.subspan(sizeof(frame));
  if (frame.magic != kMagic) {
    return mismatch("the frame's magic", frame.magic, kMagic);
  }
  if (frame.version != kVersion) {
    return mismatch("the frame's version", frame.version, kVersion);
  }
  if (frame.source_rank != layout_.mapping().dp_metadata_source) {
    return mismatch("the sender's role rank", frame.source_rank,
                    layout_.mapping().dp_metadata_source);
  }
  if (frame.epoch != session_->epoch()) {
    return mismatch("the epoch", frame.epoch, session_->epoch());
  }
  if (frame.step != control_taken_ + 1) {
    return mismatch("the step", frame.step, control_taken_ + 1);
  }
  if (frame.payload_bytes != message.size()) {
    return mismatch("the payload's length", message.size(), frame.payload_bytes);
  }
  ++control_taken_;
  return decode_control_payload(message);
}

Result<std::vector<std::string>> P2pConnector::all_gather(std::string_view mine,
                                                          Deadline deadline) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  return session_->all_gather(mine, deadline);
}

}  // namespace afd::p2p
