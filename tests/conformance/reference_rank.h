// The reference connector's class: one rank. Its parts:
//
//   reference_connector.cc   meeting, leaving, waiting
//   reference_transfer.cc    the data calls
//   reference_control.cc     the control plane and the role group
//
// Every `fault_ == Fault::k...` in them is one deliberate mistake; read without them it is the
// contract.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>

#include "conformance/reference_connector.h"
#include "conformance/reference_hub.h"

namespace afd::conformance::reference {

using Clock = std::chrono::steady_clock;

inline constexpr std::chrono::microseconds kSpin{30};
inline constexpr std::uint32_t kStagesMax = 8;

inline void cpu_relax() {
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
  std::optional<bool>
      expects_logits;  ///< Of a receive that found a header right and has not ended.
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
                                    bool expects_logits) const;
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

template <typename Holds>
bool ReferenceConnector::wait(Hub& hub, Holds holds, std::span<const std::uint32_t> needed,
                              Deadline deadline) {
  const auto ended = [&] { return holds() || interrupted(hub, needed); };
  // Before the clock: who is held up here has not waited, and takes no lock for what is there.
  if (ended()) {
    return holds();
  }
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

}  // namespace afd::conformance::reference
