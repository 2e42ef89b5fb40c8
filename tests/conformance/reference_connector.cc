// Every `fault_ == Fault::k...` below is one deliberate mistake; read without them it is the
// contract. Over 500 lines, since a reader should see the whole connector in one place.
#include "conformance/reference_connector.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <stop_token>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "conformance/reference_hub.h"

namespace afd::conformance {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpin{30};
constexpr std::uint32_t kStagesMax = 8;

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// One peer's part of a stage.
struct Share {
  std::uint32_t num_rows = 0;   ///< That travel: at least 1.
  std::uint32_t first_row = 0;  ///< Within this rank's own tensor.
  bool dummy = false;           ///< A < F: the row stands in for none.
};

/// One stage of the current step, as one rank sees it.
struct Stage {
  bool active = false;
  bool open = false;  ///< Attention: sent, not received. FFN: received, not answered.
  std::uint32_t layer_idx = 0;
  std::uint32_t num_rows = 0;  ///< Of this rank's own tensor.
  std::array<Share, SeqLens::kPeersMax> shares{};
  void* sent = nullptr;                                   ///< What a fault writes to.
  std::array<std::uint32_t, SeqLens::kPeersMax> taken{};  ///< Transfers taken from each peer.
  Tensor received;
  Tensor logits;
  Tensor in_place;
};

class ReferenceConnector final : public ConnectorBase, private ControlPlane, private RoleGroup {
 public:
  ReferenceConnector(ConnectorParams params, Fault fault, Capabilities capabilities);
  ~ReferenceConnector() override { close(); }

  Result<void> init_afd_connector(Deadline deadline) override;
  bool is_initialized() const noexcept override { return quick_.load() != nullptr; }
  void close() noexcept override { leave(Presence::kLeft); }
  void abandon() noexcept { leave(Presence::kLost); }

  Result<void> send_attn_output(ConstTensorView hidden_states, const TransferContext& context,
                                const SendAttnOptions& options) override;
  Result<TensorView> recv_ffn_output(TensorView ref_tensor, std::uint32_t ubatch_idx,
                                     const RecvFfnOptions& options) override;
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t ubatch_idx,
                                              const RecvAttnOptions& options) override;
  Result<void> send_ffn_output(const F2ATransferPayload& output, const TransferContext& context,
                               const SendFfnOptions& options) override;
  ControlPlane* control_plane() noexcept override { return this; }
  RoleGroup* role_group() noexcept override { return this; }
  Capabilities capabilities() const override { return capabilities_; }
  Result<TensorView> attn_send_buffer(std::uint32_t ubatch_idx, std::uint32_t num_tokens) override;
  Result<TensorView> ffn_output_buffer(const TransferContext& context) override;

 private:
  /// A call that is under way: keeps the hub.
  class Call {
   public:
    explicit Call(ReferenceConnector& connector) : connector_(connector) {
      connector_.calls_.fetch_add(1);
      hub_ = connector_.quick_.load();
    }
    ~Call() { connector_.calls_.fetch_sub(1); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    Hub* hub() const { return hub_; }

   private:
    ReferenceConnector& connector_;
    Hub* hub_;
  };

  Result<void> update_state_from_dp_metadata(const ControlPayload& payload) override;
  Result<void> send_dp_metadata_list(const ControlPayload& payload, Deadline deadline) override;
  Result<std::optional<ControlPayload>> recv_dp_metadata_list(Deadline deadline) override;
  Result<std::vector<std::string>> all_gather(std::string_view mine, Deadline deadline) override;

  Result<void> meet(std::shared_ptr<Hub> hub, Deadline deadline);
  std::string missing(const Hub& hub) const;
  std::vector<std::pair<std::string, std::string>> values() const;
  void prepare_stages();
  void leave(Presence how) noexcept;

  /// Waits until `holds`, the end of this connector, a death, or that one of `needed` left.
  template <typename Holds>
  bool wait(Hub& hub, Holds holds, std::span<const std::uint32_t> needed, Deadline deadline);
  bool interrupted(const Hub& hub, std::span<const std::uint32_t> needed) const;
  /// Why a wait ended without what it waited for.
  Error why(const Hub& hub, std::span<const std::uint32_t> needed,
            const std::string& awaited) const;

  std::optional<Error> check_call(const Call& call, Role wanted, const char* name) const;
  Result<Stage*> find_stage(std::uint32_t stage_idx);
  std::optional<Error> check_tensor(ConstTensorView tensor, std::uint64_t num_rows,
                                    std::uint64_t width, DType dtype, const char* what) const;
  std::optional<Error> check_logits(const SendAttnOptions& options, std::uint64_t num_rows) const;
  std::optional<Error> check_source(const RowSource& source, ConstTensorView tensor,
                                    const Stage& stage) const;
  std::optional<Error> check_header(const Mailbox& box, Stage& stage, std::size_t peer,
                                    std::uint32_t stage_idx, bool& layer_known,
                                    const std::optional<ExpertRoutingSpec>& spec) const;
  void lay_out(Stage& stage, std::span<const std::int32_t> counts) const;
  Mailbox& box(Hub& hub, bool to_ffn, std::size_t peer, std::uint32_t stage_idx) const;
  void put(Hub& hub, std::uint32_t stage_idx, const Stage& stage, ConstTensorView rows,
           ConstTensorView logits, const SeqLens* lengths);
  Result<void> collect(Hub& hub, std::uint32_t stage_idx, Stage& stage,
                       const std::optional<ExpertRoutingSpec>& spec, TensorView into,
                       const RowSink& sink, Deadline deadline);
  bool has_turn(Hub& hub, std::size_t peer, std::uint32_t stage_idx) const;
  Result<void> misbehave_after_send(Hub& hub, std::uint32_t stage_idx, Deadline deadline);
  Stage& landing(Stage& stage) {
    return fault_ == Fault::kR5LandsAllStagesInOnePlace ? stages_[0] : stage;
  }
  std::uint32_t world_rank_of(std::size_t peer) const {
    return mapping_.role == Role::kFfn ? mapping_.counts.num_ffn_ranks + mapping_.peers[peer]
                                       : mapping_.peers[peer];
  }
  std::size_t num_peers() const { return mapping_.peers.size(); }
  bool is_ffn() const { return mapping_.role == Role::kFfn; }

  const ConnectorParams params_;
  const TransferLimits limits_;
  const Fault fault_;
  const Capabilities capabilities_;
  RankMapping mapping_;
  std::uint32_t num_siblings_ = 1;  ///< A < F: FFN ranks that share this rank's attention rank.
  std::uint32_t sibling_idx_ = 0;

  std::mutex hub_mutex_;
  std::shared_ptr<Hub> hub_;  ///< Guarded by hub_mutex_. Null unless in init or initialised.
  std::atomic<Hub*> quick_{nullptr};     ///< The same once initialised; lives while calls_ > 0.
  std::atomic<std::uint32_t> calls_{0};  ///< Calls under way.
  std::atomic<bool> stopping_{false};
  bool was_initialized_ = false;

  std::uint64_t step_ = 0;
  std::uint64_t round_ = 0;
  std::vector<std::uint32_t> peer_world_ranks_;
  std::vector<std::uint32_t> role_world_ranks_;
  std::array<Stage, kStagesMax> stages_;
};

// --- Set-up ----------------------------------------------------------------------------------

ReferenceConnector::ReferenceConnector(ConnectorParams params, Fault fault,
                                       Capabilities capabilities)
    : params_(std::move(params)),
      limits_(params_.limits),
      fault_(fault),
      capabilities_(std::move(capabilities)),
      mapping_(*build_rank_mapping(params_.config.num_attention_ranks, params_.config.num_ffn_ranks,
                                   params_.config.role, params_.role_rank)) {
  const RankCounts counts = mapping_.counts;
  if (is_ffn() && counts.num_attention_ranks < counts.num_ffn_ranks) {
    const std::vector<std::uint32_t> siblings =
        build_rank_mapping(counts.num_attention_ranks, counts.num_ffn_ranks, Role::kAttention,
                           mapping_.peers.front())
            ->peers;
    num_siblings_ = static_cast<std::uint32_t>(siblings.size());
    sibling_idx_ = static_cast<std::uint32_t>(
        std::find(siblings.begin(), siblings.end(), mapping_.role_rank) - siblings.begin());
  }
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    peer_world_ranks_.push_back(world_rank_of(peer));
  }
  const std::uint32_t first = is_ffn() ? 0 : counts.num_ffn_ranks;
  const std::uint32_t size = is_ffn() ? counts.num_ffn_ranks : counts.num_attention_ranks;
  for (std::uint32_t rank = first; rank < first + size; ++rank) {
    role_world_ranks_.push_back(rank);
  }
}

std::vector<std::pair<std::string, std::string>> ReferenceConnector::values() const {
  std::vector<std::pair<std::string, std::string>> all = {
      {"hidden_size", std::to_string(limits_.hidden_size)},
      {"num_layers", std::to_string(limits_.num_layers)},
      {"num_experts", std::to_string(limits_.num_experts)},
      {"max_num_tokens", std::to_string(limits_.max_num_tokens)},
      {"num_stages", std::to_string(limits_.num_stages)},
      {"dtype", to_string(limits_.dtype)},
      {"compute_gate_on_attention", params_.config.compute_gate_on_attention ? "true" : "false"}};
  all.insert(all.end(), params_.must_match.begin(), params_.must_match.end());
  return all;
}

void ReferenceConnector::prepare_stages() {
  const std::uint64_t rows = std::uint64_t{limits_.max_num_tokens} * (is_ffn() ? num_peers() : 1);
  for (std::uint32_t stage_idx = 0; stage_idx < limits_.num_stages; ++stage_idx) {
    Stage& stage = stages_[stage_idx];
    stage = {};
    stage.received = Tensor({rows, limits_.hidden_size}, limits_.dtype);
    stage.in_place = Tensor({rows, limits_.hidden_size}, limits_.dtype);
    stage.logits = Tensor({rows, limits_.num_experts}, kFloat32);
  }
  step_ = 0;
  round_ = 0;
}

Result<void> ReferenceConnector::init_afd_connector(Deadline deadline) {
  if (is_initialized()) {
    return {};
  }
  if (fault_ == Fault::kR8InitialisesOnce && was_initialized_) {
    return afd::fail(ErrorCode::kFailedPrecondition, "closed");
  }
  const Call call(*this);  // close() waits for this
  std::shared_ptr<Hub> hub = hub_of(params_.config.port, mapping_.counts, limits_);
  {
    std::scoped_lock lock(hub_mutex_);
    stopping_.store(false);
    hub_ = hub;
  }
  prepare_stages();
  Result<void> met = meet(hub, deadline);
  std::scoped_lock lock(hub_mutex_);
  if (met && stopping_.load()) {
    met = afd::fail(ErrorCode::kFailedPrecondition, "closed during init");
  }
  if (!met) {
    hub_.reset();
    return met;
  }
  was_initialized_ = true;
  if (fault_ == Fault::kR8LeavesADescriptor) {
    (void)open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  if (fault_ == Fault::kR8LeavesAThread) {
    static std::mutex left_mutex;
    static std::vector<std::jthread> left;
    std::scoped_lock left_lock(left_mutex);
    left.emplace_back([](std::stop_token stop) {
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
  }
  quick_.store(hub.get());
  return met;
}

std::string ReferenceConnector::missing(const Hub& hub) const {
  std::string names;
  for (std::uint32_t rank = 0; rank < hub.num_ranks(); ++rank) {
    if (hub.presence[rank].load() == Presence::kAbsent) {
      names += (names.empty() ? "" : ", ") + hub.rank_name(rank);
    }
  }
  return names;
}

Result<void> ReferenceConnector::meet(std::shared_ptr<Hub> hub, Deadline deadline) {
  const std::uint32_t self = mapping_.world_rank;
  std::unique_lock lock(hub->mutex);
  if (hub->presence[self].load() != Presence::kAbsent) {
    return afd::fail(ErrorCode::kInvalidArgument, hub->rank_name(self) + " is already present");
  }
  hub->presence[self].store(Presence::kPresent);
  if (hub->values.empty()) {
    hub->values = values();
    hub->first_name = hub->rank_name(self);
  }
  const auto mine = values();
  for (std::size_t i = 0; i < mine.size() && fault_ != Fault::kR1ComparesNothingInInit; ++i) {
    if (!hub->failure && i < hub->values.size() && mine[i] != hub->values[i]) {
      hub->failure =
          Error{ErrorCode::kProtocolMismatch, mine[i].first + " differs: " + hub->first_name +
                                                  " has " + hub->values[i].second + ", " +
                                                  hub->rank_name(self) + " has " + mine[i].second};
    }
  }
  if (missing(*hub).empty() && !hub->failure) {
    hub->complete = true;
  }
  if (hub->complete || hub->failure) {
    forget(params_.config.port, hub);
  }
  hub->changed.notify_all();

  Clock::time_point next_word = Clock::now() + std::chrono::seconds(1);
  for (;;) {
    if (hub->complete) {
      return {};
    }
    if (hub->failure) {
      return afd::fail(*hub->failure);
    }
    const bool stopped = stopping_.load() && fault_ != Fault::kR8WakesNobody;
    const std::int32_t lost = fault_ == Fault::kR7NoticesNoDeath ? -1 : hub->first_lost.load();
    if (stopped || lost >= 0 || deadline.expired()) {
      const std::string who = missing(*hub);
      hub->presence[self].store(Presence::kAbsent);
      if (stopped) {
        return afd::fail(ErrorCode::kFailedPrecondition, "closed");
      }
      if (lost >= 0) {
        return afd::fail(why(*hub, {}, ""));
      }
      return afd::fail(ErrorCode::kDeadlineExceeded,
                       fault_ == Fault::kR6NamesNobody ? "timed out" : who + " did not arrive");
    }
    if (params_.on_waiting && Clock::now() >= next_word) {
      next_word += std::chrono::seconds(1);
      params_.on_waiting(missing(*hub));
    }
    hub->changed.wait_until(lock,
                            deadline.is_never() ? next_word : std::min(next_word, deadline.when()));
  }
}

void ReferenceConnector::leave(Presence how) noexcept {
  std::shared_ptr<Hub> hub;
  {
    std::scoped_lock lock(hub_mutex_);
    stopping_.store(true);
    hub = hub_;
    quick_.store(nullptr);
  }
  if (hub == nullptr) {
    return;
  }
  {
    std::scoped_lock lock(hub->mutex);
    std::atomic<Presence>& presence = hub->presence[mapping_.world_rank];
    if (how == Presence::kLost) {
      std::int32_t none = -1;
      hub->first_lost.compare_exchange_strong(none, static_cast<std::int32_t>(mapping_.world_rank));
      presence.store(how);
    } else if (presence.load() == Presence::kPresent) {
      presence.store(hub->complete ? how : Presence::kAbsent);
    }
    hub->changed.notify_all();
  }
  while (calls_.load() != 0) {
    std::this_thread::yield();
  }
  std::scoped_lock lock(hub_mutex_);
  if (hub_ == hub) {
    hub_.reset();
  }
}

// --- Waiting ---------------------------------------------------------------------------------

bool ReferenceConnector::interrupted(const Hub& hub, std::span<const std::uint32_t> needed) const {
  if (stopping_.load() && fault_ != Fault::kR8WakesNobody) {
    return true;
  }
  if (hub.first_lost.load() >= 0 && fault_ != Fault::kR7NoticesNoDeath) {
    return true;
  }
  for (std::uint32_t rank : needed) {
    if (hub.presence[rank].load() == Presence::kLeft) {
      return true;
    }
  }
  return false;
}

template <typename Holds>
bool ReferenceConnector::wait(Hub& hub, Holds holds, std::span<const std::uint32_t> needed,
                              Deadline deadline) {
  const auto ended = [&] { return holds() || interrupted(hub, needed); };
  const Clock::time_point spin_until = Clock::now() + kSpin;
  const bool for_ever = fault_ == Fault::kR12SpinsForEver;
  while (for_ever || Clock::now() < spin_until) {
    if (ended() || deadline.expired()) {
      return holds();
    }
    fault_ == Fault::kR11YieldsWhileItSpins ? static_cast<void>(sched_yield()) : cpu_relax();
  }
  std::unique_lock lock(hub.mutex);
  hub.num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (deadline.is_never()) {
    hub.changed.wait(lock, ended);
  } else {
    hub.changed.wait_until(lock, deadline.when(), ended);
  }
  hub.num_sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return holds();
}

Error ReferenceConnector::why(const Hub& hub, std::span<const std::uint32_t> needed,
                              const std::string& awaited) const {
  if (stopping_.load()) {
    return {ErrorCode::kFailedPrecondition, "closed"};
  }
  const std::int32_t lost = hub.first_lost.load();
  if (lost >= 0 && fault_ != Fault::kR7NoticesNoDeath) {
    return {ErrorCode::kPeerLost, fault_ == Fault::kR7NamesNobody
                                      ? "a peer was lost"
                                      : hub.rank_name(static_cast<std::uint32_t>(lost)) + " lost"};
  }
  for (std::uint32_t rank : needed) {
    if (hub.presence[rank].load() == Presence::kLeft) {
      return {ErrorCode::kPeerLost, hub.rank_name(rank) + " has left"};
    }
  }
  return {ErrorCode::kDeadlineExceeded,
          fault_ == Fault::kR6NamesNobody ? "timed out" : "awaited " + awaited};
}

// --- Checks ----------------------------------------------------------------------------------

std::optional<Error> ReferenceConnector::check_call(const Call& call, Role wanted,
                                                    const char* name) const {
  if (call.hub() == nullptr) {
    return Error{ErrorCode::kFailedPrecondition, "not initialised"};
  }
  if (mapping_.role != wanted) {
    const ErrorCode code = fault_ == Fault::kR10IgnoresRoles ? ErrorCode::kInvalidArgument
                                                             : ErrorCode::kFailedPrecondition;
    return Error{code, std::string(name) + " is not a call of this role"};
  }
  return std::nullopt;
}

Result<Stage*> ReferenceConnector::find_stage(std::uint32_t stage_idx) {
  if (stage_idx < limits_.num_stages && stages_[stage_idx].active) {
    return &stages_[stage_idx];
  }
  if (step_ == 0) {
    return afd::fail(ErrorCode::kFailedPrecondition, "no step has begun");
  }
  std::string known;
  for (std::uint32_t stage = 0; stage < limits_.num_stages; ++stage) {
    known += stages_[stage].active ? " " + std::to_string(stage) : "";
  }
  return afd::fail(ErrorCode::kInvalidArgument,
                   "stage " + std::to_string(stage_idx) + " is not one of this step:" + known);
}

std::optional<Error> ReferenceConnector::check_tensor(ConstTensorView tensor,
                                                      std::uint64_t num_rows, std::uint64_t width,
                                                      DType dtype, const char* what) const {
  if (tensor.empty() || tensor.device.type != DeviceType::kCpu ||
      tensor.shape != Shape{num_rows, width} || tensor.dtype != dtype) {
    return Error{ErrorCode::kInvalidArgument,
                 std::string(what) + " is " + to_string(tensor.dtype) + to_string(tensor.shape) +
                     " on " + to_string(tensor.device) + ", expected " + to_string(dtype) +
                     to_string(Shape{num_rows, width})};
  }
  return std::nullopt;
}

std::optional<Error> ReferenceConnector::check_logits(const SendAttnOptions& options,
                                                      std::uint64_t num_rows) const {
  if (!options.topk_ids.empty() || !options.topk_weights.empty()) {
    return Error{ErrorCode::kInvalidArgument, "top-k is not supported"};
  }
  if (options.router_logits.empty()) {
    return std::nullopt;
  }
  return check_tensor(options.router_logits, num_rows, limits_.num_experts, kFloat32,
                      "router logits");
}

std::optional<Error> ReferenceConnector::check_source(const RowSource& source,
                                                      ConstTensorView tensor,
                                                      const Stage& stage) const {
  if (source.produce != nullptr && tensor.data != stage.in_place.view().data) {
    return Error{ErrorCode::kInvalidArgument, "a row source needs a view of the in-place buffer"};
  }
  return std::nullopt;
}

std::optional<Error> ReferenceConnector::check_header(
    const Mailbox& mail, Stage& stage, std::size_t peer, std::uint32_t stage_idx, bool& layer_known,
    const std::optional<ExpertRoutingSpec>& spec) const {
  const MailHeader& found = mail.header;
  if (is_ffn() && !layer_known) {
    stage.layer_idx = found.layer_idx;
    layer_known = true;
  }
  if (fault_ == Fault::kR1TakesWhatComes) {
    return std::nullopt;
  }
  std::string text;
  const auto compare = [&](const char* field, std::uint64_t theirs, std::uint64_t ours) {
    if (theirs != ours) {
      text += std::string(" ") + field + " is " + std::to_string(theirs) + ", expected " +
              std::to_string(ours) + ";";
    }
  };
  compare("step", found.step, step_);
  compare("layer", found.layer_idx, stage.layer_idx);
  compare("rows", found.num_rows, stage.shares[peer].num_rows);
  compare("router logits", found.router_logits ? 1 : 0, spec ? 1 : 0);
  if (text.empty()) {
    return std::nullopt;
  }
  return Error{ErrorCode::kProtocolMismatch,
               "a transfer of " + std::string(is_ffn() ? "attention rank " : "ffn rank ") +
                   std::to_string(mapping_.peers[peer]) + " on stage " + std::to_string(stage_idx) +
                   ":" + text};
}

// --- Transfers -------------------------------------------------------------------------------

void ReferenceConnector::lay_out(Stage& stage, std::span<const std::int32_t> counts) const {
  const auto rows_of = [&](std::uint32_t attention_rank) {
    return num_tokens_for_attention_rank(counts, attention_rank,
                                         mapping_.counts.num_attention_ranks);
  };
  const auto peers = static_cast<std::uint32_t>(num_peers());
  stage.active = true;
  stage.num_rows = 0;
  for (std::uint32_t peer = 0; peer < peers; ++peer) {
    Share& share = stage.shares[peer];
    const std::uint32_t rows =
        is_ffn() ? rows_for_peer(rows_of(mapping_.peers[peer]), sibling_idx_, num_siblings_)
                 : rows_for_peer(rows_of(mapping_.role_rank), peer, peers);
    share.dummy = rows == 0;
    share.num_rows = std::max(rows, 1u);
    share.first_row = !is_ffn() && share.dummy ? 0 : stage.num_rows;
    stage.num_rows += is_ffn() ? share.num_rows : rows;
  }
}

Mailbox& ReferenceConnector::box(Hub& hub, bool to_ffn, std::size_t peer,
                                 std::uint32_t stage_idx) const {
  return is_ffn() ? hub.mailbox(to_ffn, mapping_.peers[peer], mapping_.role_rank, stage_idx)
                  : hub.mailbox(to_ffn, mapping_.role_rank, mapping_.peers[peer], stage_idx);
}

void ReferenceConnector::put(Hub& hub, std::uint32_t stage_idx, const Stage& stage,
                             ConstTensorView rows, ConstTensorView logits, const SeqLens* lengths) {
  const std::uint64_t row_bytes = limits_.hidden_size * limits_.dtype.size_bytes();
  const std::uint64_t logit_bytes = std::uint64_t{limits_.num_experts} * sizeof(float);
  std::uint64_t next_row = 0;
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    std::uint64_t first = stage.shares[peer].first_row;
    std::uint64_t count = stage.shares[peer].num_rows;
    if (lengths != nullptr) {  // kR9TakesAnyShares
      first = next_row;
      count = (*lengths)[std::min(peer, lengths->size() - 1)];
      next_row += lengths->size() == 1 ? 0 : count;
    }
    Mailbox& mail = box(hub, !is_ffn(), peer, stage_idx);
    std::memcpy(mail.rows.data(), static_cast<const std::byte*>(rows.data) + first * row_bytes,
                std::min<std::uint64_t>(count * row_bytes, mail.rows.size()));
    mail.borrowed = static_cast<const std::byte*>(rows.data) + first * row_bytes;
    if (!logits.empty()) {
      std::memcpy(mail.logits.data(),
                  static_cast<const std::byte*>(logits.data) + first * logit_bytes,
                  count * logit_bytes);
    }
    mail.header = {.step = step_,
                   .order = hub.tickets.fetch_add(1),
                   .layer_idx = stage.layer_idx,
                   .num_rows = static_cast<std::uint32_t>(count),
                   .router_logits = !logits.empty()};
    mail.published.fetch_add(1, std::memory_order_seq_cst);
    hub.notify();
  }
}

bool ReferenceConnector::has_turn(Hub& hub, std::size_t peer, std::uint32_t stage_idx) const {
  if (fault_ != Fault::kR2ServesStagesInSendOrder || !is_ffn()) {
    return true;
  }
  const std::uint64_t order = box(hub, true, peer, stage_idx).header.order;
  for (std::uint32_t other = 0; other < limits_.num_stages; ++other) {
    const Mailbox& mail = box(hub, true, peer, other);
    if (mail.published.load() != stages_[other].taken[peer] && mail.header.order < order) {
      return false;
    }
  }
  return true;
}

Result<void> ReferenceConnector::collect(Hub& hub, std::uint32_t stage_idx, Stage& stage,
                                         const std::optional<ExpertRoutingSpec>& spec,
                                         TensorView into, const RowSink& sink, Deadline deadline) {
  const bool to_ffn = is_ffn();
  const auto arrived = [&](std::size_t peer) {
    return box(hub, to_ffn, peer, stage_idx).published.load(std::memory_order_seq_cst) !=
               stage.taken[peer] &&
           has_turn(hub, peer, stage_idx);
  };
  // First everything is there and right, then it is taken: what fails has no effect.
  std::array<std::size_t, SeqLens::kPeersMax> order{};
  bool layer_known = false;
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    order[peer] = peer;
    const std::span needed(&peer_world_ranks_[peer], 1);
    if (wait(
            hub, [&] { return arrived(peer); }, needed, deadline)) {
      if (std::optional<Error> error = check_header(box(hub, to_ffn, peer, stage_idx), stage, peer,
                                                    stage_idx, layer_known, spec)) {
        return afd::fail(*std::move(error));
      }
      continue;
    }
    std::string names;
    for (std::size_t other = 0; other < num_peers(); ++other) {
      if (!arrived(other)) {
        names += hub.rank_name(peer_world_ranks_[other]) + " ";
      } else if (to_ffn) {
        stage.layer_idx = box(hub, to_ffn, other, stage_idx).header.layer_idx;
        layer_known = true;
      }
      if (fault_ == Fault::kR6ForgetsWhatHadArrived && arrived(other)) {
        ++stage.taken[other];
      }
    }
    const std::string layer =
        !to_ffn || layer_known ? "layer " + std::to_string(stage.layer_idx) : "the next layer";
    return afd::fail(
        why(hub, needed, names + "for " + layer + " of stage " + std::to_string(stage_idx)));
  }
  if (fault_ == Fault::kR2ConcatenatesInArrivalOrder && to_ffn) {
    std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(num_peers()),
              [&](std::size_t a, std::size_t b) {
                return box(hub, true, a, stage_idx).header.order <
                       box(hub, true, b, stage_idx).header.order;
              });
  }
  if (sink.begin != nullptr) {
    sink.begin(sink.argument, into);
  }
  const std::uint64_t row_bytes = limits_.hidden_size * limits_.dtype.size_bytes();
  const std::uint64_t logit_bytes = std::uint64_t{limits_.num_experts} * sizeof(float);
  std::uint32_t next_row = 0;
  for (std::size_t i = 0; i < num_peers(); ++i) {
    const std::size_t peer = order[i];
    const Share& share = stage.shares[peer];
    Mailbox& mail = box(hub, to_ffn, peer, stage_idx);
    const std::uint32_t first = to_ffn ? next_row : share.first_row;
    if (to_ffn || !share.dummy) {
      std::memcpy(static_cast<std::byte*>(into.data) + first * row_bytes, mail.rows.data(),
                  share.num_rows * row_bytes);
      if (spec) {
        std::memcpy(
            static_cast<std::byte*>(landing(stage).logits.view().data) + first * logit_bytes,
            mail.logits.data(), share.num_rows * logit_bytes);
      }
      if (sink.rows_arrived != nullptr) {
        sink.rows_arrived(sink.argument, {first, share.num_rows});
      }
    }
    next_row += share.num_rows;
    stage.taken[peer] = mail.published.load();
    mail.taken.store(stage.taken[peer], std::memory_order_seq_cst);
    if (fault_ == Fault::kR3WaitsForTheReceiver) {
      hub.notify();
    }
  }
  return {};
}

Result<void> ReferenceConnector::misbehave_after_send(Hub& hub, std::uint32_t stage_idx,
                                                      Deadline deadline) {
  switch (fault_) {
    case Fault::kR3WaitsForTheReceiver:
      for (std::size_t peer = 0; peer < num_peers(); ++peer) {
        Mailbox& mail = box(hub, !is_ffn(), peer, stage_idx);
        const std::span needed(&peer_world_ranks_[peer], 1);
        if (!wait(
                hub, [&] { return mail.taken.load() == mail.published.load(); }, needed,
                deadline)) {
          return afd::fail(why(hub, needed, "the receiver"));
        }
      }
      break;
    case Fault::kR11Allocates: {
      void* volatile memory = std::malloc(16);  // volatile, or the compiler drops the pair
      std::free(memory);
      break;
    }
    case Fault::kR11Locks: {
      std::scoped_lock lock(hub.mutex);
      break;
    }
    case Fault::kR11MakesASystemCall:
      syscall(SYS_getppid);
      break;
    case Fault::kR11TouchesANewPage: {
      static thread_local void* page =
          mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      madvise(page, 4096, MADV_DONTNEED);
      *static_cast<volatile char*>(page) = 1;
      break;
    }
    default:
      break;
  }
  return {};
}

Result<void> ReferenceConnector::send_attn_output(ConstTensorView hidden_states,
                                                  const TransferContext& context,
                                                  const SendAttnOptions& options) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kAttention, "send_attn_output")) {
    return afd::fail(*std::move(error));
  }
  const TransferMetadata& metadata = context.metadata;
  const Result<Stage*> found = find_stage(metadata.stage_idx);
  if (!found) {
    return afd::fail(found.error());
  }
  Stage& stage = **found;
  if (stage.open && fault_ != Fault::kR10OverwritesAnOpenTransfer) {
    return afd::fail(ErrorCode::kFailedPrecondition, "the stage's last output was not received");
  }
  if (!metadata.is_valid() || metadata.total_tokens() != stage.num_rows ||
      metadata.layer_idx >= limits_.num_layers) {
    return afd::fail(ErrorCode::kInvalidArgument,
                     "metadata of " + std::to_string(metadata.total_tokens()) + " rows in layer " +
                         std::to_string(metadata.layer_idx) + ", announced " +
                         std::to_string(stage.num_rows) + " rows of a layer below " +
                         std::to_string(limits_.num_layers));
  }
  std::optional<Error> error = check_tensor(hidden_states, stage.num_rows, limits_.hidden_size,
                                            limits_.dtype, "hidden_states");
  if (!error) {
    error = check_source(options.source, hidden_states, stage);
  }
  const bool late = fault_ == Fault::kR9ChecksLogitsAfterSending;
  if (!error && !late) {
    error = check_logits(options, stage.num_rows);
  }
  if (error) {
    return afd::fail(*std::move(error));
  }
  if (interrupted(*call.hub(), peer_world_ranks_)) {
    return afd::fail(why(*call.hub(), peer_world_ranks_, ""));
  }
  if (options.source.produce != nullptr) {
    for (std::uint32_t first = 0; first < stage.num_rows; first += 3) {
      const std::uint32_t count = std::min(3u, stage.num_rows - first);
      TensorView run = stage.in_place.view();
      run.data = static_cast<std::byte*>(run.data) +
                 first * limits_.hidden_size * limits_.dtype.size_bytes();
      run.shape = {count, limits_.hidden_size};
      options.source.produce(options.source.argument, run, {first, count});
    }
  }
  stage.layer_idx = metadata.layer_idx;
  // A wrong view of a tensor that is only read: what a fault needs to write to it.
  std::memcpy(&stage.sent, &hidden_states.data, sizeof stage.sent);
  if (late && check_logits(options, stage.num_rows)) {
    put(*call.hub(), metadata.stage_idx, stage, hidden_states, {}, nullptr);
    return afd::fail(*check_logits(options, stage.num_rows));
  }
  stage.open = true;
  put(*call.hub(), metadata.stage_idx, stage, hidden_states, options.router_logits, nullptr);
  return misbehave_after_send(*call.hub(), metadata.stage_idx, options.deadline);
}

Result<TensorView> ReferenceConnector::recv_ffn_output(TensorView ref_tensor,
                                                       std::uint32_t ubatch_idx,
                                                       const RecvFfnOptions& options) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kAttention, "recv_ffn_output")) {
    return afd::fail(*std::move(error));
  }
  const Result<Stage*> found = find_stage(ubatch_idx);
  if (!found) {
    return afd::fail(found.error());
  }
  Stage& stage = **found;
  if (!stage.open) {
    return afd::fail(ErrorCode::kFailedPrecondition, "nothing was sent on this stage");
  }
  TensorView into = ref_tensor;
  if (ref_tensor.empty()) {
    into = landing(stage).received.view();
    into.shape = {stage.num_rows, limits_.hidden_size};
  } else if (std::optional<Error> error = check_tensor(
                 ref_tensor, stage.num_rows, limits_.hidden_size, limits_.dtype, "ref_tensor")) {
    return afd::fail(*std::move(error));
  }
  if (Result<void> collected = collect(*call.hub(), ubatch_idx, stage, std::nullopt, into,
                                       options.sink, options.deadline);
      !collected) {
    return afd::fail(std::move(collected).error());
  }
  stage.open = false;
  if (fault_ == Fault::kR4WritesIntoWhatItBorrowed && stage.sent != into.data) {
    std::memcpy(stage.sent, into.data, static_cast<std::size_t>(into.size_bytes()));
  }
  return into;
}

Result<A2FTransferPayload> ReferenceConnector::recv_attn_output(std::uint32_t ubatch_idx,
                                                                const RecvAttnOptions& options) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kFfn, "recv_attn_output")) {
    return afd::fail(*std::move(error));
  }
  const Result<Stage*> found = find_stage(ubatch_idx);
  if (!found) {
    return afd::fail(found.error());
  }
  Stage& stage = **found;
  if (stage.open) {
    return afd::fail(ErrorCode::kFailedPrecondition, "the stage's last transfer was not answered");
  }
  TensorView into = landing(stage).received.view();
  into.shape = {stage.num_rows, limits_.hidden_size};
  if (Result<void> collected = collect(*call.hub(), ubatch_idx, stage, options.routing_spec, into,
                                       options.sink, options.deadline);
      !collected) {
    return afd::fail(std::move(collected).error());
  }
  stage.open = true;
  A2FTransferPayload payload;
  payload.hidden_states = into;
  if (fault_ == Fault::kR4LendsOutWhatItBorrowed && num_peers() == 1) {
    payload.hidden_states.data = box(*call.hub(), true, 0, ubatch_idx).borrowed;
  }
  if (options.routing_spec) {
    TensorView logits = landing(stage).logits.view();
    logits.shape = {stage.num_rows, limits_.num_experts};
    payload.router_logits = logits;
  }
  payload.context.metadata.layer_idx = stage.layer_idx;
  payload.context.metadata.stage_idx = ubatch_idx;
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    payload.context.metadata.seq_lens.push_back(stage.shares[peer].num_rows);
  }
  return payload;
}

Result<void> ReferenceConnector::send_ffn_output(const F2ATransferPayload& output,
                                                 const TransferContext& context,
                                                 const SendFfnOptions& options) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kFfn, "send_ffn_output")) {
    return afd::fail(*std::move(error));
  }
  const TransferMetadata& metadata = context.metadata;
  const Result<Stage*> found = find_stage(metadata.stage_idx);
  if (!found) {
    return afd::fail(found.error());
  }
  Stage& stage = **found;
  if (!stage.open) {
    return afd::fail(ErrorCode::kFailedPrecondition, "nothing was received on this stage");
  }
  if (metadata.layer_idx != stage.layer_idx) {
    return afd::fail(ErrorCode::kInvalidArgument, "the context is not the one that was received");
  }
  bool same = metadata.seq_lens.size() == num_peers();
  for (std::size_t peer = 0; peer < metadata.seq_lens.size() && same; ++peer) {
    same = metadata.seq_lens[peer] == stage.shares[peer].num_rows;
  }
  if (!same && fault_ != Fault::kR9TakesAnyShares) {
    return afd::fail(ErrorCode::kProtocolMismatch, "the peers' shares are not the received ones");
  }
  std::optional<Error> error = check_tensor(output.routed_output, stage.num_rows,
                                            limits_.hidden_size, limits_.dtype, "routed_output");
  if (!error) {
    error = check_source(options.source, output.routed_output, stage);
  }
  if (error) {
    return afd::fail(*std::move(error));
  }
  if (interrupted(*call.hub(), peer_world_ranks_)) {
    return afd::fail(why(*call.hub(), peer_world_ranks_, ""));
  }
  if (options.source.produce != nullptr) {
    TensorView all = stage.in_place.view();
    all.shape = {stage.num_rows, limits_.hidden_size};
    options.source.produce(options.source.argument, all, {0, stage.num_rows});
  }
  stage.open = false;
  put(*call.hub(), metadata.stage_idx, stage, output.routed_output, {},
      fault_ == Fault::kR9TakesAnyShares ? &metadata.seq_lens : nullptr);
  return misbehave_after_send(*call.hub(), metadata.stage_idx, options.deadline);
}

Result<TensorView> ReferenceConnector::attn_send_buffer(std::uint32_t ubatch_idx,
                                                        std::uint32_t num_tokens) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kAttention, "attn_send_buffer")) {
    return afd::fail(*std::move(error));
  }
  const Result<Stage*> found = find_stage(ubatch_idx);
  if (!found) {
    return afd::fail(found.error());
  }
  if ((*found)->open) {
    return afd::fail(ErrorCode::kFailedPrecondition, "the stage's last output was not received");
  }
  if (num_tokens != (*found)->num_rows) {
    return afd::fail(ErrorCode::kInvalidArgument, std::to_string(num_tokens) + " rows, announced " +
                                                      std::to_string((*found)->num_rows));
  }
  TensorView view = (*found)->in_place.view();
  view.shape = {num_tokens, limits_.hidden_size};
  return view;
}

Result<TensorView> ReferenceConnector::ffn_output_buffer(const TransferContext& context) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kFfn, "ffn_output_buffer")) {
    return afd::fail(*std::move(error));
  }
  const Result<Stage*> found = find_stage(context.metadata.stage_idx);
  if (!found) {
    return afd::fail(found.error());
  }
  if (!(*found)->open) {
    return afd::fail(ErrorCode::kFailedPrecondition, "nothing was received on this stage");
  }
  TensorView view = (*found)->in_place.view();
  view.shape = {(*found)->num_rows, limits_.hidden_size};
  return view;
}

// --- Control ---------------------------------------------------------------------------------

Result<void> ReferenceConnector::update_state_from_dp_metadata(const ControlPayload& payload) {
  const Call call(*this);
  if (call.hub() == nullptr) {
    return afd::fail(ErrorCode::kFailedPrecondition, "not initialised");
  }
  for (const Stage& stage : stages_) {
    if (stage.open) {
      return afd::fail(ErrorCode::kFailedPrecondition, "a transfer of the last step is open");
    }
  }
  for (const auto& [stage_idx, counts] : payload.dp_metadata_list) {
    if (stage_idx < 0 || stage_idx >= std::int64_t{limits_.num_stages}) {
      return afd::fail(ErrorCode::kInvalidArgument,
                       "stage " + std::to_string(stage_idx) + " is beyond the limit");
    }
    for (std::int32_t count : counts.num_tokens_across_dp) {
      if (count > std::int64_t{limits_.max_num_tokens}) {
        return afd::fail(ErrorCode::kInvalidArgument,
                         std::to_string(count) + " tokens are beyond the limit");
      }
    }
  }
  for (Stage& stage : stages_) {
    stage.active = false;
    if (fault_ == Fault::kR5ClearsViewsWithTheStep && stage.received.view().data != nullptr) {
      std::memset(stage.received.view().data, 0,
                  static_cast<std::size_t>(stage.received.view().size_bytes()));
    }
  }
  for (const auto& [stage_idx, counts] : payload.dp_metadata_list) {
    lay_out(stages_[static_cast<std::size_t>(stage_idx)], counts.num_tokens_across_dp);
  }
  ++step_;
  return {};
}

Result<void> ReferenceConnector::send_dp_metadata_list(const ControlPayload& payload,
                                                       Deadline deadline) {
  constexpr std::size_t kQueueMax = 16;
  const Call call(*this);
  if (call.hub() == nullptr) {
    return afd::fail(ErrorCode::kFailedPrecondition, "not initialised");
  }
  Hub& hub = *call.hub();
  for (std::uint32_t ffn_rank : mapping_.dp_metadata_destinations) {
    const std::span needed(&ffn_rank, 1);
    const bool room = wait(
        hub,
        [&] {
          std::scoped_lock lock(hub.control_mutex);
          return hub.control[ffn_rank].size() < kQueueMax;
        },
        needed, deadline);
    if (!room || interrupted(hub, needed)) {
      return afd::fail(why(hub, needed, hub.rank_name(ffn_rank) + " to take a control payload"));
    }
    {
      std::scoped_lock lock(hub.control_mutex);
      hub.control[ffn_rank].push_back(payload);
    }
    hub.notify();
  }
  return {};
}

Result<std::optional<ControlPayload>> ReferenceConnector::recv_dp_metadata_list(Deadline deadline) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kFfn, "recv_dp_metadata_list")) {
    return afd::fail(*std::move(error));
  }
  Hub& hub = *call.hub();
  const std::uint32_t source = mapping_.counts.num_ffn_ranks + mapping_.dp_metadata_source;
  const std::span needed(&source, 1);
  auto& queue = hub.control[mapping_.role_rank];
  const bool there = wait(
      hub,
      [&] {
        std::scoped_lock lock(hub.control_mutex);
        return !queue.empty();
      },
      needed, deadline);
  if (there) {
    std::optional<ControlPayload> payload;
    {
      std::scoped_lock lock(hub.control_mutex);
      payload = std::move(queue.front());
      queue.pop_front();
    }
    hub.notify();
    return payload;
  }
  if (!stopping_.load() && hub.first_lost.load() < 0 &&
      hub.presence[source].load() == Presence::kLeft) {
    return std::optional<ControlPayload>();
  }
  return afd::fail(why(hub, needed, hub.rank_name(source) + " for a control payload"));
}

Result<std::vector<std::string>> ReferenceConnector::all_gather(std::string_view mine,
                                                                Deadline deadline) {
  const Call call(*this);
  if (call.hub() == nullptr) {
    return afd::fail(ErrorCode::kFailedPrecondition, "not initialised");
  }
  Hub& hub = *call.hub();
  auto& rounds = hub.gathers[is_ffn() ? 1 : 0];
  {
    std::scoped_lock lock(hub.control_mutex);
    auto& parts = rounds[round_];
    parts.resize(role_world_ranks_.size());
    parts[mapping_.role_rank] = std::string(mine);
  }
  hub.notify();
  std::string missing_names;
  const bool whole = wait(
      hub,
      [&] {
        std::scoped_lock lock(hub.control_mutex);
        missing_names.clear();
        const auto& parts = rounds[round_];
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
          if (!parts[rank]) {
            missing_names += hub.rank_name(role_world_ranks_[rank]) + " ";
          }
        }
        return missing_names.empty();
      },
      role_world_ranks_, deadline);
  if (!whole) {
    return afd::fail(why(hub, role_world_ranks_, missing_names + "in a gather"));
  }
  std::vector<std::string> all;
  std::scoped_lock lock(hub.control_mutex);
  for (const std::optional<std::string>& part : rounds[round_]) {
    all.push_back(*part);
  }
  ++round_;
  return all;
}

}  // namespace

std::string_view to_string(Fault fault) {
  constexpr std::string_view kNames[] = {"None",
                                         "R1TakesWhatComes",
                                         "R1ComparesNothingInInit",
                                         "R2ServesStagesInSendOrder",
                                         "R2ConcatenatesInArrivalOrder",
                                         "R3WaitsForTheReceiver",
                                         "R4WritesIntoWhatItBorrowed",
                                         "R4LendsOutWhatItBorrowed",
                                         "R5LandsAllStagesInOnePlace",
                                         "R5ClearsViewsWithTheStep",
                                         "R6NamesNobody",
                                         "R6ForgetsWhatHadArrived",
                                         "R7NoticesNoDeath",
                                         "R7NamesNobody",
                                         "R8WakesNobody",
                                         "R8LeavesADescriptor",
                                         "R8LeavesAThread",
                                         "R8InitialisesOnce",
                                         "R9ChecksLogitsAfterSending",
                                         "R9TakesAnyShares",
                                         "R10IgnoresRoles",
                                         "R10OverwritesAnOpenTransfer",
                                         "R11Allocates",
                                         "R11Locks",
                                         "R11MakesASystemCall",
                                         "R11TouchesANewPage",
                                         "R11YieldsWhileItSpins",
                                         "R12SpinsForEver"};
  static_assert(sizeof kNames / sizeof *kNames ==
                static_cast<std::size_t>(Fault::kR12SpinsForEver) + 1);
  return kNames[static_cast<std::size_t>(fault)];
}

ConnectorUnderTest reference_connector(Fault fault) {
  ConnectorUnderTest connector;
  connector.name = "Reference";
  connector.connector_name = "ReferenceConnector";
  connector.capabilities = {.devices = {DeviceType::kCpu},
                            .dtypes = {kFloat32, kBFloat16, kFloat16, kInt8},
                            .num_stages_max = kStagesMax,
                            .in_place_buffers = true,
                            .progressive_rows = false,
                            .router_logits = true,
                            .any_ratio = true};
  connector.create = [fault, capabilities = connector.capabilities](
                         const ConnectorParams& params) -> Result<std::unique_ptr<ConnectorBase>> {
    return std::make_unique<ReferenceConnector>(params, fault, capabilities);
  };
  connector.abandon = [](ConnectorBase& connector_base) {
    static_cast<ReferenceConnector&>(connector_base).abandon();
  };
  if (fault != Fault::kNone) {
    connector.patience = std::chrono::milliseconds(1500);
  }
  return connector;
}

}  // namespace afd::conformance
