#include "mailbox_connector.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace mailbox {
namespace {

using afd::Error;
using afd::ErrorCode;
using afd::fail;

constexpr std::uint32_t kStagesMax = 8;

Error closed() {
  return {ErrorCode::kFailedPrecondition,
          "mailbox connector is not initialized: call init_afd_connector first, or it was closed"};
}

Error invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

std::string stage_text(std::uint32_t stage_idx) {
  return "stage " + std::to_string(stage_idx);
}

std::string header_text(const Header& header) {
  return "step " + std::to_string(header.step) + ", layer " + std::to_string(header.layer_idx) +
         ", [" + std::to_string(header.num_rows) + ", " + std::to_string(header.row_elements) +
         "] " + to_string(header.dtype);
}

}  // namespace

afd::Capabilities mailbox_capabilities() {
  afd::Capabilities capabilities;
  capabilities.devices = {afd::DeviceType::kCpu};
  capabilities.dtypes = {afd::kFloat32, afd::kFloat16, afd::kBFloat16};
  capabilities.num_stages_max = kStagesMax;
  return capabilities;  // All else is false: no in-place buffers, no router logits, 1A1F, threads.
}

MailboxConnector::MailboxConnector(afd::ConnectorParams params)
    : params_(std::move(params)), role_(params_.config.role), stages_(params_.limits.num_stages) {}

MailboxConnector::Call::Call(MailboxConnector& self) : self_(self) {
  // Counted first: close() clears open_ and then waits for the count.
  self_.num_calls_.fetch_add(1);
  entered_ = self_.open_.load();
}

// ---- lifecycle

afd::Result<void> MailboxConnector::init_afd_connector(afd::Deadline deadline) {
  const std::scoped_lock lock(lifecycle_);
  if (open_.load()) {
    return {};
  }
  stopping_.store(false);
  const afd::TransferLimits& limits = params_.limits;
  Mailbox::MeetOptions options;
  options.address = params_.config.host + ":" + std::to_string(params_.config.port);
  options.role = role_;
  options.num_stages = limits.num_stages;
  options.stage_bytes =
      std::uint64_t{limits.max_num_tokens} * limits.hidden_size * limits.dtype.size_bytes();
  options.must_match = {{"hidden_size", std::to_string(limits.hidden_size)},
                        {"num_layers", std::to_string(limits.num_layers)},
                        {"num_experts", std::to_string(limits.num_experts)},
                        {"top_k", std::to_string(limits.top_k)},
                        {"max_num_tokens", std::to_string(limits.max_num_tokens)},
                        {"num_stages", std::to_string(limits.num_stages)},
                        {"dtype", to_string(limits.dtype)}};
  options.must_match.insert(options.must_match.end(), params_.must_match.begin(),
                            params_.must_match.end());
  options.on_waiting = params_.on_waiting;
  options.stop = &stopping_;
  afd::Result<std::shared_ptr<Mailbox>> met = Mailbox::meet(options, deadline);
  if (!met) {
    return fail(std::move(met).error().with_context("mailbox " + rank_name(role_)));
  }
  box_ = *std::move(met);
  step_ = 0;
  for (Stage& stage : stages_) {
    stage.active = false;
    stage.layer_idx.reset();
    stage.received = 0;
    stage.open.store(false);
  }
  open_.store(true);
  return {};
}

void MailboxConnector::close() noexcept {
  stopping_.store(true);
  Mailbox::wake_meetings();  // An init that is under way ends, and gives the lock up.
  const std::scoped_lock lock(lifecycle_);
  if (!open_.exchange(false)) {
    return;
  }
  box_->leave(role_);
  while (num_calls_.load() != 0) {
    box_->wake();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  box_.reset();
}

// ---- control plane

afd::Result<void> MailboxConnector::update_state_from_dp_metadata(
    const afd::ControlPayload& payload) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  for (std::uint32_t stage_idx = 0; stage_idx < stages_.size(); ++stage_idx) {
    if (stages_[stage_idx].open.load()) {
      return fail(ErrorCode::kFailedPrecondition,
                  stage_text(stage_idx) + " is still open: finish its transfers first");
    }
  }
  // Check everything before anything changes.
  std::vector<std::uint32_t> rows(stages_.size(), 0);
  for (const auto& [stage_idx, counts] : payload.dp_metadata_list) {
    if (stage_idx < 0 || stage_idx >= static_cast<std::int64_t>(stages_.size())) {
      return fail(invalid("stage " + std::to_string(stage_idx) + " is not in [0, " +
                          std::to_string(stages_.size()) + ")"));
    }
    const std::uint32_t num_rows =
        afd::num_tokens_for_attention_rank(counts.num_tokens_across_dp, 0, 1);
    if (num_rows > params_.limits.max_num_tokens) {
      return fail(invalid(std::to_string(num_rows) + " rows of stage " + std::to_string(stage_idx) +
                          " exceed max_num_tokens, " +
                          std::to_string(params_.limits.max_num_tokens)));
    }
    rows[static_cast<std::size_t>(stage_idx)] = num_rows;
  }
  for (std::size_t stage_idx = 0; stage_idx < stages_.size(); ++stage_idx) {
    stages_[stage_idx].active = rows[stage_idx] != 0;
    stages_[stage_idx].num_rows = rows[stage_idx];
    stages_[stage_idx].layer_idx.reset();
  }
  ++step_;
  return {};
}

afd::Result<void> MailboxConnector::send_dp_metadata_list(const afd::ControlPayload& payload,
                                                          afd::Deadline deadline) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  if (role_ != afd::Role::kAttention) {
    return {};  // Not a designated sender.
  }
  while (true) {
    if (std::optional<Error> left = peer_left()) {
      return fail(*std::move(left));
    }
    if (box_->try_push_control(payload)) {
      return {};
    }
    if (!open_.load()) {
      return fail(closed());
    }
    if (deadline.expired()) {
      return fail(ErrorCode::kDeadlineExceeded,
                  "ffn rank 0 has not taken its last control payloads");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));  // Whole steps behind: rare.
  }
}

afd::Result<std::optional<afd::ControlPayload>> MailboxConnector::recv_dp_metadata_list(
    afd::Deadline deadline) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  if (std::optional<Error> error = check_role(afd::Role::kFfn, "recv_dp_metadata_list")) {
    return fail(*std::move(error));
  }
  box_->wait(
      [&] { return box_->has_control() || box_->has_left(afd::Role::kAttention) || !open_.load(); },
      deadline);
  if (!open_.load()) {
    return fail(closed());
  }
  if (box_->has_control()) {
    return std::optional<afd::ControlPayload>(box_->pop_control());
  }
  if (box_->has_left(afd::Role::kAttention)) {
    return std::optional<afd::ControlPayload>();  // In order: the job is done.
  }
  return fail(
      ErrorCode::kDeadlineExceeded,
      "awaited attention rank 0 for the control payload of step " + std::to_string(step_ + 1));
}

// ---- attention side

afd::Result<void> MailboxConnector::send_attn_output(afd::ConstTensorView hidden_states,
                                                     const afd::TransferContext& context,
                                                     const afd::SendAttnOptions& options) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  if (std::optional<Error> error = check_role(afd::Role::kAttention, "send_attn_output")) {
    return fail(*std::move(error));
  }
  // All checks before the first byte (R9).
  const afd::TransferMetadata& metadata = context.metadata;
  if (!metadata.is_valid() || !metadata.validate_tensor_shape(hidden_states.shape)) {
    return fail(invalid("hidden_states shape " + to_string(hidden_states.shape) +
                        " does not match AFD metadata token count " +
                        std::to_string(metadata.total_tokens())));
  }
  if (!options.router_logits.empty() || !options.topk_ids.empty() ||
      !options.topk_weights.empty()) {
    return fail(invalid("the mailbox carries hidden states only"));
  }
  if (options.source.produce != nullptr) {
    return fail(invalid("a row source needs the view that attn_send_buffer returned"));
  }
  if (metadata.layer_idx >= params_.limits.num_layers) {
    return fail(invalid("layer " + std::to_string(metadata.layer_idx) + " is not in [0, " +
                        std::to_string(params_.limits.num_layers) + ")"));
  }
  afd::Result<Stage*> found = find_stage(metadata.stage_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  Stage& stage = **found;
  if (std::optional<Error> error = check_rows(hidden_states, stage, "hidden_states")) {
    return fail(*std::move(error));
  }
  if (stage.open.load()) {
    return fail(ErrorCode::kFailedPrecondition,
                stage_text(metadata.stage_idx) + " still awaits its last output: receive it first");
  }
  if (std::optional<Error> left = peer_left()) {
    return fail(*std::move(left));
  }
  stage.layer_idx = metadata.layer_idx;
  put(Direction::kToFfn, metadata.stage_idx, stage, hidden_states);
  stage.open.store(true);
  return {};
}

afd::Result<afd::TensorView> MailboxConnector::recv_ffn_output(afd::TensorView ref_tensor,
                                                               std::uint32_t ubatch_idx,
                                                               const afd::RecvFfnOptions& options) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  if (std::optional<Error> error = check_role(afd::Role::kAttention, "recv_ffn_output")) {
    return fail(*std::move(error));
  }
  afd::Result<Stage*> found = find_stage(ubatch_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  Stage& stage = **found;
  if (!stage.open.load()) {
    return fail(ErrorCode::kFailedPrecondition, "nothing was sent on " + stage_text(ubatch_idx));
  }
  if (!ref_tensor.empty()) {
    if (std::optional<Error> error = check_rows(ref_tensor, stage, "ref_tensor")) {
      return fail(*std::move(error));
    }
  }
  afd::Result<Header> header =
      await_transfer(Direction::kToAttention, ubatch_idx, stage, options.deadline);
  if (!header) {
    return fail(std::move(header).error());
  }
  afd::TensorView output = landing(Direction::kToAttention, ubatch_idx, stage);
  if (!ref_tensor.empty()) {
    std::memcpy(ref_tensor.data, output.data, output.size_bytes());
    output = ref_tensor;
  }
  if (options.sink.begin != nullptr) {
    options.sink.begin(options.sink.argument, output);
  }
  if (options.sink.rows_arrived != nullptr) {
    options.sink.rows_arrived(options.sink.argument, {.first_row = 0, .num_rows = stage.num_rows});
  }
  stage.open.store(false);
  return output;
}

// ---- FFN side

afd::Result<afd::A2FTransferPayload> MailboxConnector::recv_attn_output(
    std::uint32_t ubatch_idx, const afd::RecvAttnOptions& options) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  if (std::optional<Error> error = check_role(afd::Role::kFfn, "recv_attn_output")) {
    return fail(*std::move(error));
  }
  if (options.routing_spec) {
    return fail(invalid("the mailbox carries hidden states only"));
  }
  afd::Result<Stage*> found = find_stage(ubatch_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  Stage& stage = **found;
  if (stage.open.load()) {
    return fail(ErrorCode::kFailedPrecondition,
                stage_text(ubatch_idx) + " still owes an output: send it first");
  }
  afd::Result<Header> header =
      await_transfer(Direction::kToFfn, ubatch_idx, stage, options.deadline);
  if (!header) {
    return fail(std::move(header).error());
  }
  stage.layer_idx = header->layer_idx;

  afd::A2FTransferPayload payload;
  payload.hidden_states = landing(Direction::kToFfn, ubatch_idx, stage);
  payload.context.metadata.layer_idx = header->layer_idx;
  payload.context.metadata.stage_idx = ubatch_idx;
  payload.context.metadata.seq_lens.push_back(stage.num_rows);
  if (options.sink.begin != nullptr) {
    options.sink.begin(options.sink.argument, payload.hidden_states);
  }
  if (options.sink.rows_arrived != nullptr) {
    options.sink.rows_arrived(options.sink.argument, {.first_row = 0, .num_rows = stage.num_rows});
  }
  stage.open.store(true);
  return payload;
}

afd::Result<void> MailboxConnector::send_ffn_output(const afd::F2ATransferPayload& output,
                                                    const afd::TransferContext& context,
                                                    const afd::SendFfnOptions& options) {
  const Call call(*this);
  if (!call.entered()) {
    return fail(closed());
  }
  if (std::optional<Error> error = check_role(afd::Role::kFfn, "send_ffn_output")) {
    return fail(*std::move(error));
  }
  const afd::TransferMetadata& metadata = context.metadata;
  if (!metadata.is_valid() || !metadata.validate_tensor_shape(output.routed_output.shape)) {
    return fail(invalid("routed_output shape " + to_string(output.routed_output.shape) +
                        " does not match AFD metadata token count " +
                        std::to_string(metadata.total_tokens())));
  }
  if (!output.shared_output.empty()) {
    return fail(invalid("the mailbox carries routed_output only: add the shared output to it"));
  }
  if (options.source.produce != nullptr) {
    return fail(invalid("a row source needs the view that ffn_output_buffer returned"));
  }
  afd::Result<Stage*> found = find_stage(metadata.stage_idx);
  if (!found) {
    return fail(std::move(found).error());
  }
  Stage& stage = **found;
  if (std::optional<Error> error = check_rows(output.routed_output, stage, "routed_output")) {
    return fail(*std::move(error));
  }
  if (!stage.open.load()) {
    return fail(ErrorCode::kFailedPrecondition,
                "nothing was received on " + stage_text(metadata.stage_idx));
  }
  if (metadata.layer_idx != stage.layer_idx) {
    return fail(invalid("the context is of layer " + std::to_string(metadata.layer_idx) +
                        ", received was layer " + std::to_string(*stage.layer_idx)));
  }
  if (metadata.seq_lens.size() != 1) {  // Rows could go to the wrong rank.
    return fail(ErrorCode::kProtocolMismatch, "the context has the rows of " +
                                                  std::to_string(metadata.seq_lens.size()) +
                                                  " attention ranks, received was one's");
  }
  if (std::optional<Error> left = peer_left()) {
    return fail(*std::move(left));
  }
  put(Direction::kToAttention, metadata.stage_idx, stage, output.routed_output);
  stage.open.store(false);
  return {};
}

// ---- shared

std::optional<Error> MailboxConnector::check_role(afd::Role wanted, std::string_view call) const {
  if (role_ == wanted) {
    return std::nullopt;
  }
  return Error{ErrorCode::kFailedPrecondition, std::string(call) + " is a call of " +
                                                   std::string(to_string(wanted)) +
                                                   " ranks, this is " + rank_name(role_)};
}

std::optional<Error> MailboxConnector::check_rows(afd::ConstTensorView tensor, const Stage& stage,
                                                  std::string_view what) const {
  const afd::Shape wanted{stage.num_rows, params_.limits.hidden_size};
  if (tensor.data == nullptr) {
    return invalid(std::string(what) + " is empty");
  }
  if (tensor.device.type != afd::DeviceType::kCpu) {
    return invalid(std::string(what) + " must be on the cpu, is on " + to_string(tensor.device));
  }
  if (tensor.shape != wanted) {
    return invalid(std::string(what) + " has shape " + to_string(tensor.shape) + ", expected " +
                   to_string(wanted));
  }
  if (tensor.dtype != params_.limits.dtype) {
    return invalid(std::string(what) + " has dtype " + to_string(tensor.dtype) + ", expected " +
                   to_string(params_.limits.dtype));
  }
  return std::nullopt;
}

std::optional<Error> MailboxConnector::peer_left() const {
  if (!box_->has_left(other(role_))) {
    return std::nullopt;
  }
  return Error{ErrorCode::kPeerLost, rank_name(other(role_)) + " has left the job"};
}

afd::Result<MailboxConnector::Stage*> MailboxConnector::find_stage(std::uint32_t stage_idx) {
  if (stage_idx < stages_.size() && stages_[stage_idx].active) {
    return &stages_[stage_idx];
  }
  if (step_ == 0) {
    return fail(ErrorCode::kFailedPrecondition,
                "no step has begun: call control_plane()->update_state_from_dp_metadata first");
  }
  std::string known;
  for (std::uint32_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].active) {
      known += (known.empty() ? "" : ", ") + std::to_string(i);
    }
  }
  return fail(
      invalid(stage_text(stage_idx) + " is not part of this step; its stages are: " + known));
}

afd::Result<Header> MailboxConnector::await_transfer(Direction direction, std::uint32_t stage_idx,
                                                     Stage& stage, afd::Deadline deadline) {
  Slot& slot = box_->slot(direction, stage_idx);
  const auto arrived = [&] { return slot.published.load() != stage.received; };
  box_->wait([&] { return arrived() || box_->has_left(other(role_)) || !open_.load(); }, deadline);
  if (!open_.load()) {
    return fail(closed());
  }
  if (!arrived()) {  // What a peer published before it left still counts.
    if (std::optional<Error> left = peer_left()) {
      return fail(*std::move(left));
    }
    std::string layer = stage.layer_idx ? "layer " + std::to_string(*stage.layer_idx)
                                        : "its first layer of step " + std::to_string(step_);
    if (role_ == afd::Role::kFfn && stage.layer_idx) {
      layer = "the layer after " + std::to_string(*stage.layer_idx);
    }
    return fail(ErrorCode::kDeadlineExceeded, "awaited " + rank_name(other(role_)) + " for " +
                                                  layer + " of " + stage_text(stage_idx));
  }
  const Header header = slot.header;
  Header wanted{step_, stage.layer_idx.value_or(0), stage.num_rows, params_.limits.hidden_size,
                params_.limits.dtype};
  if (role_ == afd::Role::kFfn) {
    wanted.layer_idx = header.layer_idx;  // The peer says which.
  }
  if (header != wanted) {
    return fail(ErrorCode::kProtocolMismatch, stage_text(stage_idx) + ": " +
                                                  rank_name(other(role_)) + " sent " +
                                                  header_text(header) + "; " + rank_name(role_) +
                                                  " expected " + header_text(wanted));
  }
  ++stage.received;
  return header;
}

void MailboxConnector::put(Direction direction, std::uint32_t stage_idx, const Stage& stage,
                           afd::ConstTensorView rows) {
  Slot& slot = box_->slot(direction, stage_idx);
  std::memcpy(slot.rows.data(), rows.data, rows.size_bytes());
  slot.header = {step_, *stage.layer_idx, stage.num_rows, params_.limits.hidden_size,
                 params_.limits.dtype};
  box_->publish(slot);
}

afd::TensorView MailboxConnector::landing(Direction direction, std::uint32_t stage_idx,
                                          const Stage& stage) {
  return {box_->slot(direction, stage_idx).rows.data(),
          {stage.num_rows, params_.limits.hidden_size},
          params_.limits.dtype,
          {}};
}

}  // namespace mailbox
