// The FFN side's two data calls.
#include <cstring>
#include <functional>
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
constexpr std::size_t kRouted = static_cast<std::size_t>(transport::F2aPart::kRouted);

std::string list(std::span<const std::uint32_t> lengths) {
  std::string text;
  for (std::uint32_t length : lengths) {
    text += (text.empty() ? "" : ", ") + std::to_string(length);
  }
  return "[" + text + "]";
}

}  // namespace

Result<A2FTransferPayload> P2pConnector::recv_attn_output(std::uint32_t ubatch_idx,
                                                          const RecvAttnOptions& options) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kFfn, "recv_attn_output")) {
    return fail(*std::move(error));
  }
  Result<StageState*> found = find_stage(ubatch_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  StageState& stage = **found;
  // Pairs with the release in send_ffn_output, which may run on another thread.
  if (stage.open.load(std::memory_order_acquire)) {
    return fail(ErrorCode::kFailedPrecondition,
                "stage " + std::to_string(ubatch_idx) + " still owes the output of layer " +
                    std::to_string(stage.layer_idx) + ": call send_ffn_output first");
  }
  const TransferLimits& limits = layout_.limits();
  if (options.routing_spec && (options.routing_spec->router_logits_width != limits.num_experts ||
                               options.routing_spec->router_logits_dtype != kFloat32)) {
    return fail(ErrorCode::kInvalidArgument,
                "routing_spec is [" + std::to_string(options.routing_spec->router_logits_width) +
                    ", " + to_string(options.routing_spec->router_logits_dtype) +
                    "], the limits agreed at init say [" + std::to_string(limits.num_experts) +
                    ", float32]");
  }

  const std::uint64_t num_rows = stage.layout.num_rows;
  const ConstTensorView hidden{own_landing(Direction::kA2f, ubatch_idx, kHidden),
                               {num_rows, limits.hidden_size},
                               limits.dtype,
                               {}};
  struct Handler {
    const StageLayout& layout;
    const RowSink& sink;

    void rows(std::size_t peer, std::uint32_t first, std::uint32_t count) {
      if (sink.rows_arrived != nullptr) {
        sink.rows_arrived(sink.argument,
                          {.first_row = layout.peers[peer].row_offset + first, .num_rows = count});
      }
    }
  } handler{stage.layout, options.sink};

  const std::uint8_t parts = options.routing_spec ? 3 : 1;
  if (!stage.incoming.started || stage.incoming.header_checked == 0) {
    stage.layer_known = false;
    stage.parts = parts;
    stage.routing = options.routing_spec.value_or(ExpertRoutingSpec{});
  } else if (stage.parts != parts) {
    return fail(another_view_of_router_logits(ubatch_idx, stage));
  }
  resume_rows(stage, {.rows = hidden.data, .sink = options.sink}, hidden, handler);
  Result<void> received =
      receive_rows(Direction::kA2f, ubatch_idx, stage, options.sink.rows_arrived != nullptr,
                   options.deadline, handler);
  if (!received) {
    return fail(std::move(received).error());
  }

  A2FTransferPayload payload;
  payload.hidden_states = hidden;
  if (options.routing_spec) {
    payload.router_logits = {own_landing(Direction::kA2f, ubatch_idx, kLogits),
                             {num_rows, limits.num_experts},
                             kFloat32,
                             {}};
  }
  payload.context.metadata = {
      .layer_idx = stage.layer_idx, .stage_idx = ubatch_idx, .seq_lens = stage.layout.seq_lens};
  // Pairs with the acquire in send_ffn_output.
  stage.open.store(true, std::memory_order_release);
  return payload;
}

/// A repeated receive expects router logits where the call before did not, or the other way round:
/// the headers that it found right are wrong for this one.
Error P2pConnector::another_view_of_router_logits(std::uint32_t stage_idx,
                                                  const StageState& stage) const {
  const bool sent = stage.parts == 3;
  return {ErrorCode::kProtocolMismatch,
          "transfer from " + name_peers(stage.incoming.header_checked) + " on stage " +
              std::to_string(stage_idx) + " of step " + std::to_string(step_) +
              ": router logits present is " + (sent ? "1, expected 0" : "0, expected 1")};
}

std::optional<Error> P2pConnector::check_send_ffn(const F2ATransferPayload& output,
                                                  const TransferContext& context,
                                                  const SendFfnOptions& options,
                                                  StageState*& stage) {
  const auto invalid = [](std::string message) {
    return Error{ErrorCode::kInvalidArgument, std::move(message)};
  };
  const TransferMetadata& metadata = context.metadata;
  const TransferLimits& limits = layout_.limits();
  if (!metadata.is_valid()) {
    return invalid("the context's seq_lens are empty or not all positive");
  }
  if (!metadata.validate_tensor_shape(output.routed_output.shape)) {
    return invalid("ffn_output shape " + to_string(output.routed_output.shape) +
                   " does not match metadata, which has " +
                   std::to_string(metadata.total_tokens()) + " tokens");
  }
  if (std::optional<Error> error =
          check_tensor(output.routed_output, limits.hidden_size, limits.dtype, "ffn_output")) {
    return error;
  }
  if (!output.shared_output.empty()) {
    return invalid(name_ + " returns one tensor: add shared_output to routed_output first");
  }
  Result<StageState*> found = find_stage(metadata.stage_idx);
  if (!found) {
    return std::move(found).error();
  }
  stage = *found;
  // Pairs with the release in recv_attn_output.
  if (!stage->open.load(std::memory_order_acquire)) {
    return Error{ErrorCode::kFailedPrecondition,
                 "stage " + std::to_string(metadata.stage_idx) +
                     " owes no output: call recv_attn_output first"};
  }
  if (metadata.layer_idx != stage->layer_idx) {
    return invalid("the context's layer is " + std::to_string(metadata.layer_idx) + ", layer " +
                   std::to_string(stage->layer_idx) + " was received on stage " +
                   std::to_string(metadata.stage_idx));
  }
  // Rows could go to the wrong rank: never guessed by an even split.
  if (!(metadata.seq_lens == stage->layout.seq_lens)) {
    return Error{ErrorCode::kProtocolMismatch,
                 "cannot split FFN output across Attention peers: seq_lens are " +
                     list(metadata.seq_lens) + ", received were " + list(stage->layout.seq_lens)};
  }
  if (options.source.produce != nullptr &&
      output.routed_output.data != own_landing(Direction::kF2a, metadata.stage_idx, kRouted)) {
    return invalid("a row source needs the view that ffn_output_buffer returned");
  }
  if (peer_events_.load(std::memory_order_acquire) != 0) {
    return liveness_error(all_peers());
  }
  return std::nullopt;
}

bool P2pConnector::stands_in_landing(const std::byte* rows, std::uint32_t stage_idx) const {
  const std::byte* begin = own_landing(Direction::kA2f, stage_idx, kHidden);
  const std::byte* end = begin + stages_[stage_idx].layout.num_rows * layout_.row_bytes();
  return !std::less<>()(rows, begin) && std::less<>()(rows, end);
}

Result<void> P2pConnector::send_ffn_output(const F2ATransferPayload& output,
                                           const TransferContext& context,
                                           const SendFfnOptions& options) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kFfn, "send_ffn_output")) {
    return fail(*std::move(error));
  }
  StageState* stage = nullptr;
  if (std::optional<Error> error = check_send_ffn(output, context, options, stage)) {
    return fail(*std::move(error));
  }
  const std::uint32_t stage_idx = context.metadata.stage_idx;
  const std::uint64_t row_bytes = layout_.row_bytes();
  const std::byte* rows = output.routed_output.bytes().data();
  if (num_peers() > 1 && stands_in_landing(rows, stage_idx)) {
    // An echo of what was received. A peer that is answered early may begin a step with other row
    // offsets and write over the rows of one that is not answered yet: so all rows move first.
    std::byte* landing = own_landing(Direction::kF2a, stage_idx, kRouted);
    std::memcpy(landing, rows, output.routed_output.size_bytes());
    rows = landing;
  }
  stage->parts = 1;
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    const PeerRows& share = stage->layout.peers[peer];
    std::array<transport::PutPart, transport::kPartsMax> parts{};
    parts[kRouted] = {.source = rows + share.first_row * row_bytes,
                      .offset_bytes = share.row_offset * row_bytes,
                      .size_bytes = share.num_rows * row_bytes};
    RowSourceBridge bridge{options.source, layout_.limits(), share.first_row};
    channel(peer).publish(lane(Direction::kF2a, stage_idx, peer),
                          make_header(stage_idx, *stage, peer), parts, bridge.byte_source());
  }
  stage->layer_known = false;
  // Pairs with the acquire in recv_attn_output: the stage can go round again.
  stage->open.store(false, std::memory_order_release);
  return {};
}

Result<TensorView> P2pConnector::ffn_output_buffer(const TransferContext& context) {
  const base::GateScope scope(gate_);
  if (!scope.entered()) {
    return fail(not_ready());
  }
  if (std::optional<Error> error = check_role(Role::kFfn, "ffn_output_buffer")) {
    return fail(*std::move(error));
  }
  Result<StageState*> found = find_stage(context.metadata.stage_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  const StageState& stage = **found;
  if (!stage.open.load(std::memory_order_acquire)) {
    return fail(ErrorCode::kFailedPrecondition,
                "stage " + std::to_string(context.metadata.stage_idx) +
                    " owes no output: its buffer is the peers' until recv_attn_output returns");
  }
  if (context.metadata.total_tokens() != stage.layout.num_rows) {
    return fail(ErrorCode::kInvalidArgument,
                "the context has " + std::to_string(context.metadata.total_tokens()) +
                    " tokens, received were " + std::to_string(stage.layout.num_rows));
  }
  return TensorView{own_landing(Direction::kF2a, context.metadata.stage_idx, kRouted),
                    {stage.layout.num_rows, layout_.limits().hidden_size},
                    layout_.limits().dtype,
                    {}};
}

}  // namespace afd::p2p
