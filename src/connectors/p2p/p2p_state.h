// One rank's end of a P2P job: the state that the five parts of the connector share.
//
//   p2p_connector.cc   init, close, liveness
//   p2p_attention.cc   send_attn_output, recv_ffn_output
//   p2p_ffn.cc         recv_attn_output, send_ffn_output
//   p2p_control.cc     the control plane and the role group
//   p2p_receive.h      receiving from several peers in arrival order, used by both roles
//
// A stage goes round one cycle. Attention: idle -> send -> open -> receive -> idle. FFN: idle ->
// receive -> open -> send -> idle. `StageState::open` is the one word that says where it stands.
//
// Threads: one sends while another receives (they share a stage only through `open`); the control
// plane's update runs between transfers; close() from any thread.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <afd/connector.h>
#include <afd/factory.h>

#include "base/gate.h"
#include "base/mapping.h"
#include "connectors/p2p/p2p_layout.h"
#include "session/session.h"
#include "transport/transport.h"

namespace afd::p2p {

/// "No layer of this step was received yet on the stage."
inline constexpr std::uint32_t kNoLayer = UINT32_MAX;

/// Attention ranks that end a job together leave within this time of each other. One that left
/// alone takes the FFN ranks that it steered with it, so that nobody waits for a step that cannot
/// come.
inline constexpr std::chrono::milliseconds kLeavingTogether{5'000};

/// How long what a peer sent last may come after the news that it left, and how often it is looked
/// for meanwhile.
inline constexpr std::chrono::milliseconds kDrained{500};
inline constexpr std::chrono::milliseconds kDrainLook{5};

/// Makes one rank's transport. The connector's own settings have been checked.
using TransportMaker = std::unique_ptr<transport::Transport> (*)(const ConnectorParams& params,
                                                                 std::uint32_t world_rank);

/// Where the rows of a receive go: a repeated call may name another target or sink.
struct RowTarget {
  const void* rows = nullptr;
  RowSink sink;

  friend bool operator==(const RowTarget& a, const RowTarget& b) {
    return a.rows == b.rows && a.sink.argument == b.sink.argument && a.sink.begin == b.sink.begin &&
           a.sink.rows_arrived == b.sink.rows_arrived;
  }
};

/// A receive on one stage: kept between calls, so that one which ran out of time can be repeated.
struct Incoming {
  std::uint64_t pending = 0;         ///< bit p: peer p's rows are not complete
  std::uint64_t header_checked = 0;  ///< bit p: peer p's header was found right
  bool started = false;              ///< some peer's transfer has begun to arrive
  bool announced = false;            ///< `target` was told of this transfer
  RowTarget target;
  std::array<std::uint32_t, SeqLens::kPeersMax> rows_done{};
  /// Transfers taken from each peer's lane since init; the next one has this number plus one.
  std::array<std::uint32_t, SeqLens::kPeersMax> sequence{};
};

struct StageState {
  StageLayout layout;
  Incoming incoming;
  /// Layer of the transfer that is open. FFN: also of the one that is being received, once known.
  std::uint32_t layer_idx = kNoLayer;
  bool layer_known = false;
  std::uint8_t parts = 1;
  ExpertRoutingSpec routing;
  /// The side that opens stores with release after filling the fields above; the side that closes
  /// the cycle loads with acquire, and the other way round.
  std::atomic<bool> open{false};
};

class P2pConnector final : public ConnectorBase, private ControlPlane, private RoleGroup {
 public:
  P2pConnector(std::string name, ConnectorParams params, P2pLayout layout, TransportMaker maker,
               Capabilities capabilities);
  ~P2pConnector() override;

  Result<void> init_afd_connector(Deadline deadline) override;
  bool is_initialized() const noexcept override;
  void close() noexcept override { leave({}); }
  void give_up(std::string_view reason) noexcept override { leave(reason); }
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
  std::vector<PeerPath> peer_paths() const override;
  Result<TensorView> attn_send_buffer(std::uint32_t ubatch_idx, std::uint32_t num_tokens) override;
  Result<TensorView> ffn_output_buffer(const TransferContext& context) override;

  /// Test only: ends the session, or the join under way, as a dead process would: without a
  /// goodbye. Everything else stays until close(). From any thread.
  void abandon() noexcept;
  /// Test only: another time than kLeavingTogether. Before any receive.
  void set_leaving_together(std::chrono::milliseconds time) noexcept { leaving_together_ = time; }

 private:
  // ControlPlane
  Result<void> update_state_from_dp_metadata(const ControlPayload& payload) override;
  Result<void> send_dp_metadata_list(const ControlPayload& payload, Deadline deadline) override;
  Result<std::optional<ControlPayload>> recv_dp_metadata_list(Deadline deadline) override;
  // RoleGroup
  Result<std::vector<std::string>> all_gather(std::string_view mine, Deadline deadline) override;
  bool all_attention_ranks_left() const;
  /// Checks the frame and decodes the payload behind it.
  Result<ControlPayload> take_control(std::span<const std::byte> message);

  // Lifecycle (p2p_connector.cc).
  Result<void> start(Deadline deadline);
  Result<void> attach_peers();
  Result<void> reach_peers(Deadline deadline);
  /// What it means that a peer's memory is gone: mostly that init failed there, because of a death
  /// that this rank hears of in a moment.
  Error why_not_attached(Error error, Deadline deadline) const;
  session::JoinOptions join_options(std::string blob);
  /// @param gave_up  why this rank did not finish; none: it leaves in order
  void leave(std::optional<std::string_view> gave_up) noexcept;
  void tear_down() noexcept;

  // Liveness (p2p_connector.cc).
  /// The error for a call that needs these peers (bits of RankMapping::peers): somebody of the job
  /// died, or one of them left.
  std::optional<Error> liveness_error(std::uint64_t peers) const;
  /// Whether everything that those of `peers` which have left had published is in the lanes.
  bool has_drained(std::uint64_t peers) const;
  bool is_present(std::uint32_t world_rank) const;
  std::optional<Error> left_error(std::uint32_t world_rank) const;
  std::optional<Error> relay_error() const;
  std::uint32_t peer_world_rank(std::size_t peer) const;
  std::string peer_name(std::size_t peer) const;
  std::string name_peers(std::uint64_t peers) const;

  // What every data call checks first (p2p_connector.cc).
  Error not_ready() const;
  std::optional<Error> check_role(Role wanted, std::string_view call) const;
  Result<StageState*> find_stage(std::uint32_t stage_idx);
  std::optional<Error> check_tensor(ConstTensorView tensor, std::uint32_t width, DType dtype,
                                    std::string_view what) const;

  transport::TransferHeader make_header(std::uint32_t stage_idx, const StageState& stage,
                                        std::size_t peer) const;
  transport::Channel& channel(std::size_t peer) const { return *channels_[peer]; }
  transport::LaneId lane(transport::Direction direction, std::uint32_t stage_idx,
                         std::size_t peer) const;
  std::size_t num_peers() const { return layout_.mapping().peers.size(); }
  std::uint64_t all_peers() const {
    return num_peers() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << num_peers()) - 1;
  }

  // p2p_receive.h
  template <typename Handler>
  void resume_rows(StageState& stage, const RowTarget& target, ConstTensorView rows,
                   Handler& handler);
  template <typename Handler>
  Result<void> receive_rows(transport::Direction direction, std::uint32_t stage_idx,
                            StageState& stage, bool progressive, Deadline deadline,
                            Handler& handler);
  template <typename Handler>
  std::optional<Error> take_ready_rows(transport::Direction direction, std::uint32_t stage_idx,
                                       StageState& stage, bool progressive, Handler& handler);
  std::optional<Error> check_lanes_rest(transport::Direction direction, std::uint32_t stage_idx,
                                        const StageState& stage) const;
  Error out_of_turn(std::uint32_t stage_idx, std::size_t peer, std::uint32_t found,
                    std::uint32_t wanted) const;
  std::optional<Error> check_header(const transport::TransferHeader& found, std::uint32_t stage_idx,
                                    StageState& stage, std::size_t peer);
  Error deadline_error(std::uint32_t stage_idx, const StageState& stage) const;
  Error another_view_of_router_logits(std::uint32_t stage_idx, const StageState& stage) const;

  // p2p_attention.cc, p2p_ffn.cc
  std::optional<Error> check_send_attn(ConstTensorView hidden_states,
                                       const TransferContext& context,
                                       const SendAttnOptions& options, StageState*& stage);
  std::optional<Error> check_send_ffn(const F2ATransferPayload& output,
                                      const TransferContext& context, const SendFfnOptions& options,
                                      StageState*& stage);
  /// Whether these rows are (a part of) what the stage's last receive returned.
  bool stands_in_landing(const std::byte* rows, std::uint32_t stage_idx) const;
  std::byte* own_landing(transport::Direction direction, std::uint32_t stage_idx,
                         std::size_t part) const;

  const std::string name_;
  const ConnectorParams params_;
  const P2pLayout layout_;
  const TransportMaker make_transport_;
  const Capabilities capabilities_;

  std::mutex lifecycle_;  ///< held through init and through the teardown of close
  std::mutex interrupt_;  ///< guards the six below against a close() during init
  std::stop_source stop_;
  std::stop_source abandon_;
  std::uint32_t num_closing_ = 0;  ///< close() calls under way: an init may not undo their stop
  std::thread::id init_thread_;    ///< that is in init; none: no thread is
  std::optional<std::string> gave_up_;  ///< why, since the last init began
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<session::Session> session_;

  mutable base::Gate gate_;  ///< open from the end of init to close: every call passes through
  /// Stored (release) by close() before it wakes; loaded by whoever waits.
  std::atomic<bool> stopping_{false};
  /// Counts changes of any peer's state. Added to (release) by the session's thread before it wakes
  /// the transport; loaded (acquire) by waits, which then look at the peers.
  std::atomic<std::uint32_t> peer_events_{0};
  /// The transport had something to say. Set (release) by whichever thread is in it.
  std::atomic<bool> transport_event_{false};
  /// The number of changes after which the session last said that nobody was lost: until there is
  /// another, nobody is. Relaxed: it stands for nothing but itself.
  mutable std::atomic<std::uint32_t> none_lost_at_{0};

  // Set by init, before the gate opens.
  std::array<transport::Channel*, SeqLens::kPeersMax> channels_{};  ///< by peer; FFN: own, for all
  std::array<std::uint16_t, SeqLens::kPeersMax> lane_peer_{};       ///< peer index within channel
  std::vector<transport::Channel*> control_channels_;  ///< where this rank sends control payloads

  std::uint64_t step_ = 0;           ///< updates applied since init
  std::uint64_t control_sent_ = 0;   ///< control payloads sent since init
  std::size_t control_sent_to_ = 0;  ///< destinations that already got the one under way
  std::string control_under_way_;    ///< its bytes, while control_sent_to_ is not 0
  std::uint64_t control_taken_ = 0;  ///< control payloads received since init
  std::chrono::milliseconds leaving_together_ = kLeavingTogether;
  std::optional<Deadline> sender_left_grace_;  ///< set by the receive that sees that it has left
  std::array<StageState, kStagesMax> stages_;
  base::Mapping assembly_;  ///< A < F: where an output without ref_tensor is put together
};

}  // namespace afd::p2p
