// Lifecycle, liveness and the checks that every call shares.
#include <algorithm>
#include <bit>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "connectors/p2p/p2p_abandon.h"
#include "connectors/p2p/p2p_state.h"

namespace afd::p2p {
namespace {

/// Rule R7: the end of a rank is known everywhere within this time.
constexpr std::chrono::seconds kLossKnownWithin{1};

}  // namespace

P2pConnector::P2pConnector(std::string name, ConnectorParams params, P2pLayout layout,
                           TransportMaker maker, Capabilities capabilities)
    : name_(std::move(name)),
      params_(std::move(params)),
      layout_(std::move(layout)),
      make_transport_(maker),
      capabilities_(std::move(capabilities)) {}

P2pConnector::~P2pConnector() {
  close();
}

bool P2pConnector::is_initialized() const noexcept {
  return gate_.is_open();
}

Result<void> P2pConnector::init_afd_connector(Deadline deadline) {
  std::scoped_lock lifecycle(lifecycle_);
  if (gate_.is_open()) {
    return {};
  }
  {
    std::scoped_lock interrupt(interrupt_);
    if (num_closing_ != 0) {
      return fail(ErrorCode::kFailedPrecondition, name_ + " is being closed");
    }
    stop_ = std::stop_source();
    abandon_ = std::stop_source();
    stopping_.store(false, std::memory_order_release);
    gave_up_.reset();
    init_thread_ = std::this_thread::get_id();
  }
  Result<void> started = start(deadline);
  {
    std::scoped_lock interrupt(interrupt_);
    init_thread_ = {};
    if (!started && session_ != nullptr) {
      // The others may have met already: they have to hear that this rank's job is not done, and
      // why. After a close() the session has said its goodbye, and this does nothing.
      session_->give_up(started.error().message);
    }
  }
  if (!started) {
    tear_down();
    return fail(std::move(started).error().with_context(
        name_ + " " + session::rank_name(layout_.mapping().world_rank, layout_.mapping().counts)));
  }
  gate_.open();
  return {};
}

Result<void> P2pConnector::start(Deadline deadline) {
  const RankMapping& mapping = layout_.mapping();
  if (mapping.role == Role::kAttention && num_peers() > 1) {
    Result<base::Mapping> assembly =
        base::Mapping::anonymous(std::uint64_t{layout_.limits().num_stages} *
                                 layout_.limits().max_num_tokens * layout_.row_bytes());
    if (!assembly) {
      return fail(std::move(assembly).error());
    }
    assembly_ = *std::move(assembly);
  }
  std::unique_ptr<transport::Transport> transport = make_transport_(params_, mapping.world_rank);
  transport::ChannelGeometry geometry;
  if (mapping.role == Role::kFfn) {
    geometry = layout_.geometry(mapping.role_rank);
  }
  Result<std::string> blob = transport->create(mapping.role == Role::kFfn ? &geometry : nullptr);
  {
    // From here on close() can reach it.
    std::scoped_lock interrupt(interrupt_);
    transport_ = std::move(transport);
  }
  if (!blob) {
    return fail(std::move(blob).error());
  }

  Result<std::unique_ptr<session::Session>> session =
      session::Session::join(join_options(*std::move(blob)), deadline);
  if (!session) {
    return fail(std::move(session).error());
  }
  {
    std::scoped_lock interrupt(interrupt_);
    session_ = *std::move(session);
    if (stopping_.load(std::memory_order_acquire)) {
      // leave() found no session to say this with.
      gave_up_ ? session_->give_up(*gave_up_) : session_->close();
      return fail(ErrorCode::kFailedPrecondition, "closed during init");
    }
    if (abandon_.stop_requested()) {
      session_->abandon();  // The join was complete before it could end it.
    }
  }
  peer_events_.store(0, std::memory_order_release);
  none_lost_at_.store(0, std::memory_order_relaxed);
  transport_event_.store(false, std::memory_order_relaxed);
  session_->set_on_change([this] {
    peer_events_.fetch_add(1, std::memory_order_release);
    transport_->wake();
  });
  transport_->set_on_event({this, [](void* argument) {
                              auto& self = *static_cast<P2pConnector*>(argument);
                              self.transport_event_.store(true, std::memory_order_release);
                              self.peer_events_.fetch_add(1, std::memory_order_release);
                              self.transport_->wake();
                            }});
  if (Result<void> attached = attach_peers(); !attached) {
    return fail(why_not_attached(std::move(attached).error(), deadline));
  }
  if (Result<void> met = session_->barrier(deadline); !met) {
    return fail(std::move(met).error().with_context("waiting until all ranks have mapped"));
  }
  transport_->seal();
  if (Result<void> reached = reach_peers(deadline); !reached) {
    return reached;
  }

  step_ = 0;
  control_sent_ = 0;
  control_sent_to_ = 0;
  control_taken_ = 0;
  sender_left_grace_.reset();
  for (StageState& stage : stages_) {
    stage.layout = {};
    stage.incoming = {};
    stage.open.store(false, std::memory_order_relaxed);  // the gate's release publishes it
  }
  return {};
}

session::JoinOptions P2pConnector::join_options(std::string blob) {
  const RankMapping& mapping = layout_.mapping();
  const TransferLimits& limits = layout_.limits();
  session::JoinOptions options;
  options.host = params_.config.host;
  options.port = params_.config.port;
  options.role = mapping.role;
  options.role_rank = mapping.role_rank;
  options.world_rank = mapping.world_rank;
  options.counts = mapping.counts;
  options.blob = std::move(blob);
  options.on_waiting = params_.on_waiting;
  options.on_listening = params_.on_listening;
  options.network = params_.config.session;
  options.must_match = {
      {"connector", name_},
      {"hidden_size", std::to_string(limits.hidden_size)},
      {"num_layers", std::to_string(limits.num_layers)},
      {"num_experts", std::to_string(limits.num_experts)},
      {"top_k", std::to_string(limits.top_k)},
      {"max_num_tokens", std::to_string(limits.max_num_tokens)},
      {"num_stages", std::to_string(limits.num_stages)},
      {"dtype", to_string(limits.dtype)},
      {"compute_gate_on_attention", params_.config.compute_gate_on_attention ? "true" : "false"},
  };
  options.must_match.insert(options.must_match.end(), params_.must_match.begin(),
                            params_.must_match.end());
  std::scoped_lock interrupt(interrupt_);
  options.stop = stop_.get_token();
  options.abandon = abandon_.get_token();
  return options;
}

Result<void> P2pConnector::attach_peers() {
  using transport::Direction;
  const RankMapping& mapping = layout_.mapping();
  const std::uint32_t num_ffn = mapping.counts.num_ffn_ranks;
  control_channels_.clear();

  if (mapping.role == Role::kFfn) {
    transport::Channel* own = transport_->own_channel();
    for (std::size_t peer = 0; peer < num_peers(); ++peer) {
      const std::uint32_t world_rank = num_ffn + mapping.peers[peer];
      Result<transport::Channel*> attached =
          transport_->attach(world_rank, session_->blob(world_rank), nullptr);
      if (!attached) {
        return fail(std::move(attached).error().with_context("map " + peer_name(peer)));
      }
      channels_[peer] = own;
      lane_peer_[peer] = static_cast<std::uint16_t>(peer);
      transport_->set_doorbell(own, Direction::kF2a, lane_peer_[peer], world_rank);
    }
    // The rank that steers this one need not be a data peer (4A2F: A1 steers F1).
    const std::uint32_t source = mapping.dp_metadata_source;
    if (std::ranges::find(mapping.peers, source) == mapping.peers.end()) {
      Result<transport::Channel*> attached =
          transport_->attach(num_ffn + source, session_->blob(num_ffn + source), nullptr);
      if (!attached) {
        return fail(std::move(attached).error().with_context(
            "map " + session::rank_name(num_ffn + source, mapping.counts)));
      }
    }
    transport_->set_control_sender(num_ffn + source);
    return {};
  }

  const auto attach_ffn = [&](std::uint32_t ffn_rank) -> Result<transport::Channel*> {
    const transport::ChannelGeometry geometry = layout_.geometry(ffn_rank);
    Result<transport::Channel*> attached =
        transport_->attach(ffn_rank, session_->blob(ffn_rank), &geometry);
    if (!attached) {
      return fail(
          std::move(attached).error().with_context("map ffn rank " + std::to_string(ffn_rank)));
    }
    return attached;
  };
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    const std::uint32_t ffn_rank = mapping.peers[peer];
    Result<transport::Channel*> attached = attach_ffn(ffn_rank);
    if (!attached) {
      return fail(std::move(attached).error());
    }
    channels_[peer] = *attached;
    lane_peer_[peer] = layout_.peer_idx_in_channel(ffn_rank);
    transport_->set_doorbell(*attached, Direction::kA2f, lane_peer_[peer], ffn_rank);
  }
  // A designated sender steers FFN ranks that need not be its data peers (4A2F: A1 steers F1).
  for (std::uint32_t ffn_rank : mapping.dp_metadata_destinations) {
    transport::Channel* channel = nullptr;
    for (std::size_t peer = 0; peer < num_peers(); ++peer) {
      if (mapping.peers[peer] == ffn_rank) {
        channel = channels_[peer];
      }
    }
    if (channel == nullptr) {
      Result<transport::Channel*> attached = attach_ffn(ffn_rank);
      if (!attached) {
        return fail(std::move(attached).error());
      }
      channel = *attached;
    }
    control_channels_.push_back(channel);
  }
  return {};
}

Result<void> P2pConnector::reach_peers(Deadline deadline) {
  // One that has met all others and is gone again is for the calls that need it to report.
  const Deadline gone_by = Deadline::after(kLossKnownWithin);
  struct Watch {
    const P2pConnector* self;
    Deadline gone_by;
    std::uint32_t peer_events;

    std::optional<std::size_t> missing() const {
      for (std::size_t peer = 0; peer < self->num_peers(); ++peer) {
        const std::uint32_t rank = self->peer_world_rank(peer);
        if (!self->transport_->is_reached(rank) &&
            (self->is_present(rank) ||
             !(self->transport_->has_drained(rank) || gone_by.expired()))) {
          return peer;
        }
      }
      return std::nullopt;
    }
  } watch{this, gone_by, 0};
  while (const std::optional<std::size_t> peer = watch.missing()) {
    if (stopping_.load(std::memory_order_acquire)) {
      return fail(ErrorCode::kFailedPrecondition, "closed during init");
    }
    watch.peer_events = peer_events_.load(std::memory_order_acquire);
    const transport::Condition something_happened{
        &watch, [](void* argument) {
          const Watch& w = *static_cast<const Watch*>(argument);
          return !w.missing() || w.self->stopping_.load(std::memory_order_acquire) ||
                 w.self->peer_events_.load(std::memory_order_acquire) != w.peer_events;
        }};
    const bool gone = !is_present(peer_world_rank(*peer));
    if (!transport_->wait(something_happened,
                          gone ? Deadline(std::min(deadline.when(), gone_by.when())) : deadline) &&
        deadline.expired()) {
      return fail(ErrorCode::kDeadlineExceeded,
                  "awaited the first message of " + peer_name(*peer) + " over " +
                      transport_->describe_path(peer_world_rank(*peer)));
    }
  }
  return {};
}

Error P2pConnector::why_not_attached(Error error, Deadline deadline) const {
  if (error.code != ErrorCode::kUnavailable) {
    return error;
  }
  const Deadline known(std::min(deadline.when(), Deadline::after(kLossKnownWithin).when()));
  const std::uint32_t num_ranks =
      layout_.mapping().counts.num_ffn_ranks + layout_.mapping().counts.num_attention_ranks;
  while (true) {
    if (Result<void> checked = session_->check_peers(); !checked) {
      return std::move(checked).error();
    }
    for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
      if (std::optional<Error> left = left_error(rank)) {
        return std::move(*left).with_context(error.message);
      }
    }
    if (stopping_.load(std::memory_order_acquire) || known.expired()) {
      return error;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void P2pConnector::leave(std::optional<std::string_view> gave_up) noexcept {
  {
    std::scoped_lock interrupt(interrupt_);
    ++num_closing_;
    // Pairs with the acquire loads in waits: who wakes up below sees it.
    stopping_.store(true, std::memory_order_release);
    stop_.request_stop();
    if (gave_up) {
      gave_up_ = *gave_up;
    }
    if (transport_ != nullptr) {
      transport_->leave_peers();  // before the goodbye, which says that nothing more comes
    }
    if (session_ != nullptr && gave_up) {
      session_->give_up(*gave_up);
    } else if (session_ != nullptr) {
      session_->close();
    }
    if (transport_ != nullptr) {
      transport_->wake();
    }
    if (init_thread_ == std::this_thread::get_id()) {
      // Called from on_waiting: init, further up this stack, ends now and releases everything.
      --num_closing_;
      return;
    }
  }
  std::scoped_lock lifecycle(lifecycle_);
  if (gate_.is_open()) {
    gate_.close_and_drain([this] { transport_->wake(); });
  }
  tear_down();
  std::scoped_lock interrupt(interrupt_);
  --num_closing_;
}

void P2pConnector::abandon() noexcept {
  std::scoped_lock interrupt(interrupt_);
  abandon_.request_stop();
  if (session_ != nullptr) {
    session_->abandon();
  }
}

void abandon_for_tests(ConnectorBase& connector) noexcept {
  static_cast<P2pConnector&>(connector).abandon();
}

void P2pConnector::tear_down() noexcept {
  // The session's thread calls into the transport until close() has joined it: the session goes
  // first, and transport_ stays where that thread finds it.
  std::unique_ptr<session::Session> session;
  {
    std::scoped_lock interrupt(interrupt_);
    session = std::move(session_);
  }
  if (session != nullptr && transport_ != nullptr) {
    const RankCounts& counts = layout_.mapping().counts;
    for (std::uint32_t rank = 0; rank < counts.num_ffn_ranks + counts.num_attention_ranks; ++rank) {
      if (session->peer_state(rank) == session::PeerState::kLost) {
        transport_->forget(rank);
      }
    }
  }
  session.reset();
  if (transport_ != nullptr) {
    transport_->set_on_event({});  // it calls this object
  }
  std::unique_ptr<transport::Transport> transport;
  {
    std::scoped_lock interrupt(interrupt_);
    transport = std::move(transport_);
  }
  transport.reset();
  channels_.fill(nullptr);
  control_channels_.clear();
  assembly_ = {};
}

std::uint32_t P2pConnector::peer_world_rank(std::size_t peer) const {
  const RankMapping& mapping = layout_.mapping();
  return mapping.role == Role::kFfn ? mapping.counts.num_ffn_ranks + mapping.peers[peer]
                                    : mapping.peers[peer];
}

std::string P2pConnector::peer_name(std::size_t peer) const {
  return session::rank_name(peer_world_rank(peer), layout_.mapping().counts);
}

std::string P2pConnector::name_peers(std::uint64_t peers) const {
  std::string names;
  for (std::uint64_t left = peers; left != 0; left &= left - 1) {
    if (!names.empty()) {
      names += ", ";
    }
    names += peer_name(static_cast<std::size_t>(std::countr_zero(left)));
  }
  return names;
}

std::vector<PeerPath> P2pConnector::peer_paths() const {
  const base::GateScope scope(gate_);
  std::vector<PeerPath> paths;
  for (std::size_t peer = 0; scope.entered() && peer < num_peers(); ++peer) {
    paths.push_back(
        {layout_.mapping().peers[peer], transport_->describe_path(peer_world_rank(peer))});
  }
  return paths;
}

bool P2pConnector::is_present(std::uint32_t world_rank) const {
  return session_->peer_state(world_rank) == session::PeerState::kPresent;
}

std::optional<Error> P2pConnector::left_error(std::uint32_t world_rank) const {
  if (is_present(world_rank)) {
    return std::nullopt;
  }
  return Error{ErrorCode::kPeerLost, session_->departure_text(world_rank)};
}

std::optional<Error> P2pConnector::liveness_error(std::uint64_t peers) const {
  // After a rank left that this call does not need (R11): no lock, only a load for each peer.
  const std::uint32_t events = peer_events_.load(std::memory_order_acquire);
  bool all_present = is_present(0);
  for (std::uint64_t left = peers; left != 0; left &= left - 1) {
    all_present &= is_present(peer_world_rank(static_cast<std::size_t>(std::countr_zero(left))));
  }
  const bool transport_event = transport_event_.load(std::memory_order_acquire);
  if (all_present && !transport_event && events == none_lost_at_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  // A dead rank anywhere ends the step for all: the others wait for it, and soon for each other.
  // Asked before any goodbye is judged, so that the rank that died first is named.
  if (Result<void> checked = session_->check_peers(); !checked) {
    return std::move(checked).error();
  }
  none_lost_at_.store(events, std::memory_order_relaxed);
  for (std::uint64_t left = peers; left != 0; left &= left - 1) {
    if (std::optional<Error> error =
            left_error(peer_world_rank(static_cast<std::size_t>(std::countr_zero(left))))) {
      return error;
    }
  }
  if (transport_event) {
    if (std::optional<Error> fault = transport_->fault()) {
      return fault;
    }
    for (std::uint64_t left = peers; left != 0; left &= left - 1) {
      const auto peer = static_cast<std::size_t>(std::countr_zero(left));
      if (std::optional<std::string> why = transport_->why_broken(peer_world_rank(peer))) {
        return Error{ErrorCode::kPeerLost,
                     peer_name(peer) + " lost: its data connection ended (" + *why + ")"};
      }
    }
  }
  return relay_error();
}

bool P2pConnector::has_drained(std::uint64_t peers) const {
  bool drained = true;
  for (std::uint64_t left = peers; left != 0; left &= left - 1) {
    const std::uint32_t rank = peer_world_rank(static_cast<std::size_t>(std::countr_zero(left)));
    drained &= is_present(rank) || transport_->has_drained(rank);
  }
  return drained;
}

std::optional<Error> P2pConnector::relay_error() const {
  // Without world rank 0 nobody hears of anybody's end any more: waiting on could be for ever.
  if (layout_.mapping().world_rank == 0 || is_present(0)) {
    return std::nullopt;
  }
  return Error{ErrorCode::kPeerLost,
               session_->departure_text(0) + ", and it relays the news of all others"};
}

Error P2pConnector::not_ready() const {
  return {ErrorCode::kFailedPrecondition,
          "P2P connector is not initialized: call init_afd_connector first, or it was closed"};
}

std::optional<Error> P2pConnector::check_role(Role wanted, std::string_view call) const {
  if (layout_.mapping().role == wanted) {
    return std::nullopt;
  }
  return Error{ErrorCode::kFailedPrecondition,
               std::string(call) + " is a call of " + std::string(to_string(wanted)) +
                   " ranks, this is " +
                   session::rank_name(layout_.mapping().world_rank, layout_.mapping().counts)};
}

Result<StageState*> P2pConnector::find_stage(std::uint32_t stage_idx) {
  if (stage_idx < layout_.limits().num_stages && stages_[stage_idx].layout.active) {
    return &stages_[stage_idx];
  }
  if (step_ == 0) {
    return fail(ErrorCode::kFailedPrecondition,
                "no step has begun: call control_plane()->update_state_from_dp_metadata first");
  }
  std::string known;
  for (std::uint32_t stage = 0; stage < layout_.limits().num_stages; ++stage) {
    if (stages_[stage].layout.active) {
      known += (known.empty() ? "" : ", ") + std::to_string(stage);
    }
  }
  return fail(ErrorCode::kInvalidArgument, "stage " + std::to_string(stage_idx) +
                                               " is not among those of this step, [" + known + "]");
}

std::optional<Error> P2pConnector::check_tensor(ConstTensorView tensor, std::uint32_t width,
                                                DType dtype, std::string_view what) const {
  const auto wrong = [&](const std::string& text) {
    return Error{ErrorCode::kInvalidArgument, std::string(what) + " " + text};
  };
  if (tensor.data == nullptr) {
    return wrong("is empty");
  }
  if (tensor.device.type != DeviceType::kCpu) {
    return wrong("must be on the cpu, is on " + to_string(tensor.device));
  }
  if (tensor.shape.rank() != 2 || tensor.shape[1] != width) {
    return wrong("has shape " + to_string(tensor.shape) + ", expected [num_tokens, " +
                 std::to_string(width) + "]");
  }
  if (tensor.dtype != dtype) {
    return wrong("has dtype " + to_string(tensor.dtype) + ", expected " + to_string(dtype));
  }
  return std::nullopt;
}

transport::LaneId P2pConnector::lane(transport::Direction direction, std::uint32_t stage_idx,
                                     std::size_t peer) const {
  return {.direction = direction,
          .stage_idx = static_cast<std::uint16_t>(stage_idx),
          .peer_idx = lane_peer_[peer]};
}

std::byte* P2pConnector::own_landing(transport::Direction direction, std::uint32_t stage_idx,
                                     std::size_t part) const {
  return channels_[0]->landing(direction, stage_idx, part);
}

transport::TransferHeader P2pConnector::make_header(std::uint32_t stage_idx,
                                                    const StageState& stage,
                                                    std::size_t peer) const {
  const PeerRows& share = stage.layout.peers[peer];
  const bool router_logits = (stage.parts & 2) != 0;
  return {
      .step = step_,
      .epoch = session_->epoch(),
      .layer_idx = stage.layer_idx,
      .stage_idx = static_cast<std::uint16_t>(stage_idx),
      .source_rank = static_cast<std::uint16_t>(layout_.mapping().role_rank),
      .num_rows = share.num_rows,
      .row_offset = share.row_offset,
      .row_elements = layout_.limits().hidden_size,
      .dtype_code = layout_.limits().dtype.code,
      .dtype_bits = layout_.limits().dtype.bits,
      .parts = stage.parts,
      .aux_dtype_bits = router_logits ? stage.routing.router_logits_dtype.bits : std::uint8_t{0},
      .aux_elements = router_logits ? stage.routing.router_logits_width : 0,
  };
}

std::optional<Error> P2pConnector::check_header(const transport::TransferHeader& found,
                                                std::uint32_t stage_idx, StageState& stage,
                                                std::size_t peer) {
  if (layout_.mapping().role == Role::kFfn && !stage.layer_known) {
    // The first peer says which layer this is; the others have to agree.
    stage.layer_idx = found.layer_idx;
    stage.layer_known = found.layer_idx < layout_.limits().num_layers;
  }
  transport::TransferHeader wanted = make_header(stage_idx, stage, peer);
  wanted.source_rank = static_cast<std::uint16_t>(layout_.mapping().peers[peer]);
  if (found == wanted && found.layer_idx < layout_.limits().num_layers) {
    return std::nullopt;
  }
  std::string differences;
  const auto compare = [&](std::string_view field, std::uint64_t theirs, std::uint64_t ours) {
    if (theirs != ours) {
      differences += (differences.empty() ? "" : "; ") + std::string(field) + " is " +
                     std::to_string(theirs) + ", expected " + std::to_string(ours);
    }
  };
  compare("epoch", found.epoch, wanted.epoch);
  compare("step", found.step, wanted.step);
  compare("layer_idx", found.layer_idx, wanted.layer_idx);
  compare("stage_idx", found.stage_idx, wanted.stage_idx);
  compare("source_rank", found.source_rank, wanted.source_rank);
  compare("num_rows", found.num_rows, wanted.num_rows);
  compare("row_offset", found.row_offset, wanted.row_offset);
  compare("row width", found.row_elements, wanted.row_elements);
  if (found.dtype_code != wanted.dtype_code || found.dtype_bits != wanted.dtype_bits) {
    differences += (differences.empty() ? "" : "; ") + std::string("dtype is ") +
                   to_string(DType{found.dtype_code, found.dtype_bits, 1}) + ", expected " +
                   to_string(layout_.limits().dtype);
  }
  compare("router logits present", (found.parts >> 1) & 1, (wanted.parts >> 1) & 1);
  compare("router logits width", found.aux_elements, wanted.aux_elements);
  compare("router logits bits", found.aux_dtype_bits, wanted.aux_dtype_bits);
  compare("further parts", found.parts >> 2, wanted.parts >> 2);
  compare("top-k width", found.topk_elements, wanted.topk_elements);
  compare("the reserved field", found.reserved, wanted.reserved);
  if (differences.empty()) {
    differences = "layer_idx is " + std::to_string(found.layer_idx) + ", expected below " +
                  std::to_string(layout_.limits().num_layers);
  }
  return Error{ErrorCode::kProtocolMismatch, "transfer from " + peer_name(peer) + " on stage " +
                                                 std::to_string(stage_idx) + " of step " +
                                                 std::to_string(step_) + ": " + differences};
}

Error P2pConnector::out_of_turn(std::uint32_t stage_idx, std::size_t peer, std::uint32_t found,
                                std::uint32_t wanted) const {
  return {ErrorCode::kProtocolMismatch,
          "stage " + std::to_string(stage_idx) + ": " + peer_name(peer) + " is at transfer " +
              std::to_string(found) + " of its lane, expected " + std::to_string(wanted)};
}

Error P2pConnector::deadline_error(std::uint32_t stage_idx, const StageState& stage) const {
  std::string layer = "layer " + std::to_string(stage.layer_idx);
  if (layout_.mapping().role == Role::kFfn && !stage.layer_known) {
    layer = stage.layer_idx == kNoLayer ? "its first layer of step " + std::to_string(step_)
                                        : "the layer after " + std::to_string(stage.layer_idx);
  }
  return {ErrorCode::kDeadlineExceeded, "awaited " + name_peers(stage.incoming.pending) + " for " +
                                            layer + " of stage " + std::to_string(stage_idx)};
}

}  // namespace afd::p2p
