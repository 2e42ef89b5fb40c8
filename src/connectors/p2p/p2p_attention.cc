// The attention side's two data calls.
#include <cstring>
#include <string>
#include <utility>

#include "connectors/p2p/p2p_receive.h"
#include "connectors/p2p/p2p_state.h"
#include "connectors/p2p/row_source_bridge.h"

namespace afd::p2p {
namespace {

using transport::Direction;

constexpr std::size_t kHidden = static_cast<std::size_t>(transport::A2fPart::kHiddenStates);
constexpr std::size_t kLogits = static_cast<std::size_t>(transport::A2fPart::kRouterLogits);

}  // namespace

std::optional<Error> P2pConnector::check_send_attn(ConstTensorView hidden_states,
                                                   const TransferContext& context,
                                                   const SendAttnOptions& options,
                                                   StageState*& stage) {
  const auto invalid = [](std::string message) {
    return Error{ErrorCode::kInvalidArgument, std::move(message)};
  };
  const TransferMetadata& metadata = context.metadata;
  if (!metadata.is_valid()) {
    return invalid("the context's seq_lens are empty or not all positive");
  }
  if (!metadata.validate_tensor_shape(hidden_states.shape)) {
    return invalid("hidden_states shape " + to_string(hidden_states.shape) +
                   " does not match AFD metadata token count " +
                   std::to_string(metadata.total_tokens()));
  }
  if (!options.router_logits.empty() &&
      options.router_logits.num_rows() != hidden_states.num_rows()) {
    return invalid("router_logits and hidden_states must have equal token counts");
  }
  const TransferLimits& limits = layout_.limits();
  if (std::optional<Error> error =
          check_tensor(hidden_states, limits.hidden_size, limits.dtype, "hidden_states")) {
    return error;
  }
  if (!options.router_logits.empty()) {
    if (limits.num_experts == 0) {
      return invalid("router_logits were given, but limits.num_experts is 0");
    }
    if (std::optional<Error> error =
            check_tensor(options.router_logits, limits.num_experts, kFloat32, "router_logits")) {
      return error;
    }
  }
  if (!options.topk_ids.empty() || !options.topk_weights.empty()) {
    return invalid(name_ + " does not carry topk_ids and topk_weights: send router_logits");
  }
  if (metadata.layer_idx >= limits.num_layers) {
    return invalid("layer " + std::to_string(metadata.layer_idx) + " is not in [0, " +
                   std::to_string(limits.num_layers) + ")");
  }
  Result<StageState*> found = find_stage(metadata.stage_idx);
  if (!found) {
    return std::move(found).error();
  }
  stage = *found;
  if (stage->layout.num_rows != hidden_states.num_rows()) {
    return invalid("hidden_states has " + std::to_string(hidden_states.num_rows()) +
                   " rows, the control plane announced " + std::to_string(stage->layout.num_rows) +
                   " for stage " + std::to_string(metadata.stage_idx));
  }
  if (stage->open.load(std::memory_order_acquire)) {
    return Error{ErrorCode::kFailedPrecondition, "stage " + std::to_string(metadata.stage_idx) +
                                                     " still awaits the output of layer " +
                                                     std::to_string(stage->layer_idx) +
                                                     ": call recv_ffn_output first"};
  }
  if (options.source.produce != nullptr &&
      (num_peers() > 1 ||
       hidden_states.data != own_landing(Direction::kA2f, metadata.stage_idx, kHidden) +
                                 stage->layout.peers[0].row_offset * layout_.row_bytes())) {
    return invalid("a row source needs the view that attn_send_buffer returned");
  }
  if (peer_events_.load(std::memory_order_acquire) != 0) {
    return liveness_error(all_peers());
  }
  return std::nullopt;
}

Result<void> P2pConnector::send_attn_output(ConstTensorView hidden_states,
                                            const TransferContext& context,
                                            const SendAttnOptions& options) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kAttention, "send_attn_output")) {
    return fail(*std::move(error));
  }
  StageState* stage = nullptr;
  if (std::optional<Error> error = check_send_attn(hidden_states, context, options, stage)) {
    return fail(*std::move(error));
  }
  const std::uint32_t stage_idx = context.metadata.stage_idx;
  const bool router_logits = !options.router_logits.empty();
  const std::uint64_t row_bytes = layout_.row_bytes();
  const std::uint64_t logits_bytes = std::uint64_t{layout_.limits().num_experts} * sizeof(float);
  const std::byte* rows = hidden_states.bytes().data();

  stage->layer_idx = context.metadata.layer_idx;
  stage->parts = router_logits ? 3 : 1;
  stage->routing = {.router_logits_width = layout_.limits().num_experts,
                    .router_logits_dtype = kFloat32};
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    const PeerRows& share = stage->layout.peers[peer];
    std::array<transport::PutPart, transport::kPartsMax> parts{};
    parts[kHidden] = {.source = rows + share.first_row * row_bytes,
                      .offset_bytes = share.row_offset * row_bytes,
                      .size_bytes = share.num_rows * row_bytes};
    if (router_logits) {
      parts[kLogits] = {
          .source = options.router_logits.bytes().data() + share.first_row * logits_bytes,
          .offset_bytes = share.row_offset * logits_bytes,
          .size_bytes = share.num_rows * logits_bytes};
    }
    RowSourceBridge bridge{options.source, layout_.limits(), share.first_row};
    channel(peer).publish(lane(Direction::kA2f, stage_idx, peer),
                          make_header(stage_idx, *stage, peer), parts, bridge.byte_source());
  }
  // Pairs with the acquire in recv_ffn_output, which may run on another thread.
  stage->open.store(true, std::memory_order_release);
  return {};
}

Result<TensorView> P2pConnector::recv_ffn_output(TensorView ref_tensor, std::uint32_t ubatch_idx,
                                                 const RecvFfnOptions& options) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kAttention, "recv_ffn_output")) {
    return fail(*std::move(error));
  }
  Result<StageState*> found = find_stage(ubatch_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  StageState& stage = **found;
  // Pairs with the release in send_attn_output.
  if (!stage.open.load(std::memory_order_acquire)) {
    return fail(
        ErrorCode::kFailedPrecondition,
        "stage " + std::to_string(ubatch_idx) + " awaits no output: call send_attn_output first");
  }
  const std::uint32_t num_rows = stage.layout.num_rows;
  const std::uint32_t width = layout_.limits().hidden_size;
  const std::uint64_t row_bytes = layout_.row_bytes();
  const bool one_peer = num_peers() == 1;

  TensorView view{nullptr, {num_rows, width}, layout_.limits().dtype, {}};
  std::byte* landing = nullptr;
  if (one_peer) {
    landing =
        own_landing(Direction::kF2a, ubatch_idx, 0) + stage.layout.peers[0].row_offset * row_bytes;
  }
  if (!ref_tensor.empty()) {
    if (std::optional<Error> error =
            check_tensor(ref_tensor, width, layout_.limits().dtype, "ref_tensor")) {
      return fail(*std::move(error));
    }
    if (ref_tensor.num_rows() != num_rows) {
      return fail(ErrorCode::kInvalidArgument,
                  "ref_tensor has " + std::to_string(ref_tensor.num_rows()) + " rows, " +
                      std::to_string(num_rows) + " were sent on stage " +
                      std::to_string(ubatch_idx));
    }
    view = ref_tensor;
  } else if (one_peer) {
    view.data = landing;
  } else {
    view.data =
        assembly_.data() + std::size_t{ubatch_idx} * layout_.limits().max_num_tokens * row_bytes;
  }

  struct Handler {
    P2pConnector& self;
    const StageLayout& layout;
    const RowSink& sink;
    std::byte* target;
    std::uint32_t stage_idx;
    std::uint64_t row_bytes;

    void rows(std::size_t peer, std::uint32_t first, std::uint32_t count) {
      const PeerRows& share = layout.peers[peer];
      if (share.dummy) {
        return;
      }
      const std::byte* source = self.channel(peer).landing(Direction::kF2a, stage_idx, 0) +
                                (std::uint64_t{share.row_offset} + first) * row_bytes;
      std::byte* destination = target + (std::uint64_t{share.first_row} + first) * row_bytes;
      if (destination != source) {
        std::memcpy(destination, source, count * row_bytes);
      }
      if (sink.rows_arrived != nullptr) {
        sink.rows_arrived(sink.argument, {.first_row = share.first_row + first, .num_rows = count});
      }
    }
  } handler{*this,      stage.layout, options.sink, static_cast<std::byte*>(view.data),
            ubatch_idx, row_bytes};

  // Working behind the sender pays where there is work: a copy, or a sink that reads.
  const bool progressive = view.data != landing || options.sink.rows_arrived != nullptr;
  resume_rows(stage, {.rows = view.data, .sink = options.sink}, view, handler);
  stage.parts = 1;  // what comes back is the routed output alone
  Result<void> received =
      receive_rows(Direction::kF2a, ubatch_idx, stage, progressive, options.deadline, handler);
  if (!received) {
    return fail(std::move(received).error());
  }
  // Pairs with the acquire in send_attn_output: the stage can go round again.
  stage.open.store(false, std::memory_order_release);
  return view;
}

Result<TensorView> P2pConnector::attn_send_buffer(std::uint32_t ubatch_idx,
                                                  std::uint32_t num_tokens) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kAttention, "attn_send_buffer")) {
    return fail(*std::move(error));
  }
  Result<StageState*> found = find_stage(ubatch_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  const StageState& stage = **found;
  if (num_peers() > 1) {
    return fail(ErrorCode::kUnavailable,
                "with fewer attention than FFN ranks the rows of one send lie in several windows: "
                "send from your own buffer");
  }
  if (num_tokens != stage.layout.num_rows) {
    return fail(ErrorCode::kInvalidArgument, "num_tokens is " + std::to_string(num_tokens) +
                                                 ", the control plane announced " +
                                                 std::to_string(stage.layout.num_rows) +
                                                 " for stage " + std::to_string(ubatch_idx));
  }
  if (stage.open.load(std::memory_order_acquire)) {
    return fail(ErrorCode::kFailedPrecondition,
                "stage " + std::to_string(ubatch_idx) +
                    " still awaits an output, its send buffer is the peer's until then");
  }
  return TensorView{own_landing(Direction::kA2f, ubatch_idx, kHidden) +
                        stage.layout.peers[0].row_offset * layout_.row_bytes(),
                    {num_tokens, layout_.limits().hidden_size},
                    layout_.limits().dtype,
                    {}};
}

}  // namespace afd::p2p
