// The contract between the two runtimes and a transport.
//
// One layer of one stage (micro-batch) crosses the wire twice:
//
//     attention rank                                        FFN rank
//     send_attn_output(hidden_states, context)   ---->      recv_attn_output(ubatch_idx)
//     recv_ffn_output(ref_tensor, ubatch_idx)    <----      send_ffn_output(output, context)
//
// and once a step, where control_plane() is not null, the token counts come first:
//
//     update_state_from_dp_metadata(p)  (local)             p = recv_dp_metadata_list()
//     send_dp_metadata_list(p)                   ---->      update_state_from_dp_metadata(p)
//
// What a caller may rely on. Each rule has tests of its number in tests/conformance/, and every
// connector, ours or a plug-in's, passes all of them (docs/contract.md has the long form).
//
//   R1  Identity.    A transfer carries epoch, step, layer, stage, source rank, rows, row shape and
//                    dtype. The receiver checks them; a difference is kProtocolMismatch naming both
//                    sides' view, never wrong data.
//   R2  Order.       Per peer and stage in order. Stages are independent of each other.
//   R3  No hidden wait.  A send never waits for the peer's matching receive: every (peer, stage,
//                    direction) has its own pre-posted landing slot.
//   R4  Borrow.      A tensor given to a send stays untouched until the matching receive on that
//                    stage returns, or close().
//   R5  In place.    A view that a receive returned is valid until this rank's next send on that
//                    stage, or close().
//   R6  Deadline.    On expiry kDeadlineExceeded, naming who was awaited, for which layer and
//                    stage. The call can be repeated.
//   R7  Peer loss.   A peer's death reaches every blocked or later call that needs it as kPeerLost,
//                    naming the rank, within 1 s on one host.
//   R8  Close.       Wakes blocked calls; no thread, file descriptor, segment, port or process is
//                    left.
//   R9  All or nothing.  A call that fails validation has sent nothing.
//   R10 Role.        An attention call on an FFN rank, or the other way round, is
//                    kFailedPrecondition, and so is any data call before init.
//   R11 Quiet.       After warm-up a transfer allocates nothing, takes no lock, logs nothing and,
//                    while it spins, makes no system call (but a network's, where
//                    Capabilities::network_calls says so).
//   R12 Idle.        Waiting for any length of time is normal and costs no CPU after the spin
//                    budget.
//
// The order of one stage is send, receive, send, receive on the attention side, and receive, send
// on the FFN side. A second send on a stage before its receive is kFailedPrecondition.
//
// Threads: one thread sends while another receives. close() may come from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <afd/deadline.h>
#include <afd/export.h>
#include <afd/metadata.h>
#include <afd/result.h>
#include <afd/tensor.h>

namespace afd {

/// A run of rows within a tensor of one transfer.
struct RowRange {
  std::uint32_t first_row = 0;
  std::uint32_t num_rows = 0;
};

/// Lets the caller work on rows while later ones are still under way (pipelined publishing).
///
/// The connector calls `rows_arrived(argument, range)` on the thread that receives, with runs of
/// complete rows of the tensor that the call will return, each row once, in arrival order: runs of
/// one peer ascend, runs of different peers may interleave. The views of the finished call are
/// announced before the first run by `begin` (may be null). Must not call the connector. A call
/// that is repeated after kDeadlineExceeded with an equal sink (all members) goes on: keep it (R6).
struct RowSink {
  void* argument = nullptr;
  void (*begin)(void* argument, ConstTensorView rows) = nullptr;
  void (*rows_arrived)(void* argument, RowRange range) = nullptr;
};

/// Lets the caller produce rows while earlier ones are already under way (pipelined publishing).
///
/// Given with a send of a view from attn_send_buffer() or ffn_output_buffer(). The connector calls
/// `produce(argument, rows, range)` on the thread that sends, runs ascending and without gaps.
/// `rows` is memory for that run: the view's own, or a small buffer of the connector that stays in
/// the cache and is moved from there, where that is faster. The callee fills all of it with
/// ordinary stores and reads nothing from it. Must not call the connector.
///
/// On the FFN side peers are answered one after the other, and one that was may begin its next
/// transfer at once: with several peers, producing must not read what was received.
struct RowSource {
  void* argument = nullptr;
  void (*produce)(void* argument, TensorView rows, RowRange range) = nullptr;
};

/// What an attention rank may send beside the hidden states, and how long it may take.
/// (Members have `{}`, so that a call which names only some of them is no warning under -Wextra.)
struct SendAttnOptions {
  /// f32 [num_tokens, num_experts]: the gate ran on the attention side. Empty: it did not.
  ConstTensorView router_logits{};
  /// int32 / f32 [num_tokens, top_k], both or neither: top-k was chosen on the attention side.
  ConstTensorView topk_ids{};
  ConstTensorView topk_weights{};
  RowSource source{};
  Deadline deadline{};
};

struct RecvFfnOptions {
  RowSink sink{};
  Deadline deadline{};
};

struct RecvAttnOptions {
  /// Set: router logits of this width and dtype are expected. Not set: none are.
  std::optional<ExpertRoutingSpec> routing_spec{};
  RowSink sink{};
  Deadline deadline{};
};

struct SendFfnOptions {
  RowSource source{};
  Deadline deadline{};
};

/// What a connector can do. Asked of the object instead of comparing names.
struct Capabilities {
  std::vector<DeviceType> devices;
  std::vector<DType> dtypes;  ///< Of hidden states.
  std::uint32_t num_stages_max = 1;
  bool in_place_buffers = false;  ///< attn_send_buffer and ffn_output_buffer work.
  bool progressive_rows = false;  ///< RowSink and RowSource pipeline; without, one run of all rows.
  bool router_logits = false;     ///< Accepts router_logits beside hidden states.
  bool topk = false;              ///< Accepts topk_ids and topk_weights.
  bool graph_safe = false;        ///< Data calls may be captured into a device graph.
  /// Every A and F of at least 1, in any ratio, with at most 64 peers a rank (SeqLens::kPeersMax)
  /// and no more ranks than the connector has room for (the built-in ones: A + F <= 1024).
  bool any_ratio = false;
  bool cross_process = false;  ///< Ranks may be processes; else threads of one process.
  bool cross_host = false;     ///< Ranks may be on different hosts.
  /// Transfers may go through sockets: then they make the system calls that carry them, and R11
  /// allows those.
  bool network_calls = false;
};

/// The DP metadata control plane: one payload per step and designated sender.
///
/// Threads: as the connector; receives may run beside sends.
class AFD_EXPORT ControlPlane {
 public:
  virtual ~ControlPlane() = default;

  /// Applies a step's token counts to this rank: the expected rows of every stage and peer. Local,
  /// sends nothing. Starts a new step: the transfers that follow carry its number.
  ///
  /// @return kInvalidArgument     a stage is not in [0, num_stages), or rows exceed max_num_tokens
  ///         kFailedPrecondition  not initialised, or a transfer of the last step is still open
  virtual Result<void> update_state_from_dp_metadata(const ControlPayload& payload) = 0;

  /// Sends the payload if this rank is a designated sender; otherwise does nothing.
  ///
  /// @return kDeadlineExceeded  the receiver lags by the whole (bounded) queue
  ///         kPeerLost          R7
  virtual Result<void> send_dp_metadata_list(const ControlPayload& payload, Deadline deadline) = 0;

  /// Waits for the next payload (FFN ranks). Idle time of any length is normal (R12).
  ///
  /// @return nothing            every attention rank closed its connector in order: the job is done
  ///         kPeerLost          also where a rank gave up (give_up)
  ///         kDeadlineExceeded, kPeerLost, kProtocolMismatch, kFailedPrecondition
  virtual Result<std::optional<ControlPayload>> recv_dp_metadata_list(Deadline deadline) = 0;
};

/// Small exchanges among the ranks of one role, off the data path: what the attention ranks agree
/// on once a step. An engine that has its own data-parallel group uses that instead.
class AFD_EXPORT RoleGroup {
 public:
  virtual ~RoleGroup() = default;

  /// Gives every rank of this role the contribution of each, by role_rank. Collective over the
  /// role. Takes tens of microseconds.
  ///
  /// @param mine  at most 64 KiB
  /// @return kDeadlineExceeded (naming who is missing), kPeerLost, kFailedPrecondition
  virtual Result<std::vector<std::string>> all_gather(std::string_view mine, Deadline deadline) = 0;
};

/// What carries rows between this rank and one of its peers.
struct PeerPath {
  std::uint32_t peer_role_rank = 0;  ///< Of the other role.
  std::string path;                  ///< For people: "shared memory", "UCX tcp/eth0".

  friend bool operator==(const PeerPath&, const PeerPath&) = default;
};

class AFD_EXPORT ConnectorBase {
 public:
  virtual ~ConnectorBase() = default;

  /// Creates every resource and meets the other ranks. Collective; idempotent; on failure leaves
  /// nothing behind. After close() it may be called again.
  ///
  /// @return kDeadlineExceeded  naming the ranks that are missing
  ///         kProtocolMismatch  a value that must match differs: key, both values, both ranks
  ///         kInvalidArgument   settings that cannot work
  ///         kUnavailable       this machine cannot run it: what is missing, and how much
  virtual Result<void> init_afd_connector(Deadline deadline) = 0;
  virtual bool is_initialized() const noexcept = 0;

  /// Leaves in order: tells the others, wakes every blocked call, releases everything, the memory
  /// behind views too: whoever reads or writes them on another thread has to be done. From any
  /// thread, repeatable, never fails and waits for no peer; but where transfers go through a
  /// network (Capabilities::network_calls) for up to a second, until the peers have what was sent.
  virtual void close() noexcept = 0;

  /// By which way rows reach each peer, in the peers' order. Empty before init, after close, and
  /// from a connector that does not say.
  virtual std::vector<PeerPath> peer_paths() const { return {}; }

  /// Sends one layer and stage of attention output to this rank's FFN peers.
  ///
  /// @param hidden_states  [num_tokens, hidden_size], row-major; dtype and hidden_size as agreed at
  ///                       init. Stays untouched until recv_ffn_output on the stage returns (R4).
  ///                       A view from attn_send_buffer() is sent without a copy.
  /// @param context        metadata.total_tokens() equals num_tokens and the rows announced by the
  ///                       control plane for this stage.
  /// @return kInvalidArgument     shape, dtype or options break a rule above; nothing was sent (R9)
  ///         kFailedPrecondition  not initialised, closed, wrong role (R10), or the stage's last
  ///                              output was not received yet
  ///         kPeerLost            R7
  virtual Result<void> send_attn_output(ConstTensorView hidden_states,
                                        const TransferContext& context,
                                        const SendAttnOptions& options) = 0;

  /// Receives the FFN's output for the last send on the stage.
  ///
  /// @param ref_tensor  [num_tokens, hidden_size] to fill, or empty: then a view in place (R5)
  /// @return the filled ref_tensor, or the view
  ///         kInvalidArgument     ref_tensor has another shape or dtype, or the stage is unknown
  ///         kFailedPrecondition  nothing was sent on this stage, not initialised, closed, or R10
  ///         kDeadlineExceeded    R6
  ///         kPeerLost            R7
  ///         kProtocolMismatch    R1
  virtual Result<TensorView> recv_ffn_output(TensorView ref_tensor, std::uint32_t ubatch_idx,
                                             const RecvFfnOptions& options) = 0;

  /// Receives one layer of a stage from every attention peer, in arrival order, into one tensor in
  /// peer order. Returns when the set is complete.
  ///
  /// A connector with a control plane receives the next transfer of `ubatch_idx`. One without
  /// returns the next transfer of any peer, layer and stage, whatever `ubatch_idx` is; its metadata
  /// says which. There the end of the job comes this way too: empty hidden_states once every
  /// attention rank closed its connector in order and every transfer was handed out.
  ///
  /// @return the views in place (R5), with the layer, stage and rows that the peers sent
  ///         kInvalidArgument     the stage is not among those of this step
  ///         kFailedPrecondition, kDeadlineExceeded, kPeerLost, kProtocolMismatch
  virtual Result<A2FTransferPayload> recv_attn_output(std::uint32_t ubatch_idx,
                                                      const RecvAttnOptions& options) = 0;

  /// Sends the output of the last receive on the stage back to its peers, each its own rows.
  ///
  /// @param output   routed_output [context.metadata.total_tokens(), hidden_size]; shared_output
  ///                 where the connector wants it. A view from ffn_output_buffer() is sent without
  ///                 a copy.
  /// @param context  as received
  /// @return kProtocolMismatch  the context's lengths are not those that were received: rows could
  ///                            go to the wrong rank; nothing was sent (R9)
  ///         kInvalidArgument, kFailedPrecondition, kPeerLost, as for send_attn_output
  virtual Result<void> send_ffn_output(const F2ATransferPayload& output,
                                       const TransferContext& context,
                                       const SendFfnOptions& options) = 0;

  /// Null for a connector that needs none: then FFN steps are driven by what arrives. Lives as long
  /// as the connector.
  virtual ControlPlane* control_plane() noexcept { return nullptr; }

  /// Null where the connector has none. Lives as long as the connector.
  virtual RoleGroup* role_group() noexcept { return nullptr; }

  virtual Capabilities capabilities() const = 0;

  /// A view of [num_tokens, hidden_size] in the landing memory of `ubatch_idx`: what is written
  /// there and then sent as that view is not copied. Yours to write until that send; from it until
  /// this rank's next receive on the stage it is the peer's to read (R5) and nobody's to write.
  /// docs/threads.md says which stores pay.
  ///
  /// @return kUnavailable         this layout or connector has no such memory: send from your own
  ///         kInvalidArgument     num_tokens is not what the step announced, an unknown stage
  ///         kFailedPrecondition  the stage's output was not received yet, not initialised, R10
  virtual Result<TensorView> attn_send_buffer(std::uint32_t ubatch_idx, std::uint32_t num_tokens) {
    (void)ubatch_idx;
    (void)num_tokens;
    return fail(ErrorCode::kUnavailable, "this connector has no in-place buffers");
  }

  /// The same for the FFN side, [context.metadata.total_tokens(), hidden_size]: yours to write from
  /// recv_attn_output to send_ffn_output on the stage, the peers' to read from then on until the
  /// next recv_attn_output.
  virtual Result<TensorView> ffn_output_buffer(const TransferContext& context) {
    (void)context;
    return fail(ErrorCode::kUnavailable, "this connector has no in-place buffers");
  }

  /// Leaves without having finished: as close(), but the others hear so, and why. A close() of all
  /// attention ranks is the end of a job that is done; this never is. A connector that cannot tell
  /// the two apart does what close() does.
  virtual void give_up(std::string_view reason) noexcept {
    (void)reason;
    close();
  }
};

}  // namespace afd
