#include "conformance/driver.h"

#include <algorithm>
#include <utility>

namespace afd::conformance {
namespace {

/// What a RowSource needs to fill a run.
struct Production {
  const FfnDriver* ffn = nullptr;
  RowKey key;
  std::uint32_t next_row = 0;  ///< Runs ascend without gaps.
  bool gap = false;
};

void produce_attention(void* argument, TensorView rows, RowRange range) {
  auto& production = *static_cast<Production*>(argument);
  production.gap |= range.first_row != production.next_row || rows.num_rows() != range.num_rows;
  production.next_row = range.first_row + range.num_rows;
  fill_rows(rows, production.key, range.first_row);
}

void produce_ffn(void* argument, TensorView rows, RowRange range) {
  auto& production = *static_cast<Production*>(argument);
  production.gap |= range.first_row != production.next_row || rows.num_rows() != range.num_rows;
  production.next_row = range.first_row + range.num_rows;
  production.ffn->fill_output(rows, range.first_row, production.key.layer_idx,
                              production.key.stage_idx);
}

/// One for each stage.
std::vector<TensorView> make_tensors(Rank& rank, Shape shape, DType dtype) {
  std::vector<TensorView> tensors;
  for (std::uint32_t stage = 0; stage < rank.limits().num_stages; ++stage) {
    tensors.push_back(rank.make_tensor(shape, dtype));
  }
  return tensors;
}

}  // namespace

// --- StepPlan --------------------------------------------------------------------------------

ControlPayload StepPlan::payload() const {
  ControlPayload payload;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    if (!counts[stage].empty()) {
      payload.dp_metadata_list[static_cast<std::int64_t>(stage)] =
          *DpMetadata::create(counts[stage]);
    }
  }
  return payload;
}

std::uint32_t StepPlan::rows(std::uint32_t stage_idx, std::uint32_t attention_rank) const {
  return static_cast<std::uint32_t>(std::max(1, counts[stage_idx][attention_rank]));
}

StepPlan even_step(const Rank& rank, std::int32_t num_tokens, std::uint64_t step) {
  return {.step = step,
          .counts = std::vector<std::vector<std::int32_t>>(
              rank.limits().num_stages,
              std::vector<std::int32_t>(rank.counts().num_attention_ranks, num_tokens))};
}

void begin_step(Rank& rank, const StepPlan& plan) {
  ControlPlane* control = rank.connector().control_plane();
  if (control == nullptr) {
    return;
  }
  const ControlPayload payload = plan.payload();
  if (rank.is_attention()) {
    rank.require(control->update_state_from_dp_metadata(payload), "update_state_from_dp_metadata");
    rank.require(control->send_dp_metadata_list(payload, rank.soon()), "send_dp_metadata_list");
    return;
  }
  const std::optional<ControlPayload> received =
      rank.require(control->recv_dp_metadata_list(rank.soon()), "recv_dp_metadata_list");
  rank.require_that(received.has_value(), "recv_dp_metadata_list says that the job is done");
  rank.require_that(*received == payload, "the control payload arrived altered");
  rank.require(control->update_state_from_dp_metadata(*received), "update_state_from_dp_metadata");
}

TransferContext context_of(std::uint32_t layer_idx, std::uint32_t stage_idx,
                           std::uint32_t num_rows) {
  TransferContext context;
  context.metadata.layer_idx = layer_idx;
  context.metadata.stage_idx = stage_idx;
  context.metadata.seq_lens.push_back(num_rows);
  return context;
}

// --- SinkWatch -------------------------------------------------------------------------------

RowSink SinkWatch::sink() {
  return {this, &SinkWatch::begin, &SinkWatch::arrived};
}

void SinkWatch::reset() {
  std::fill(seen_.begin(), seen_.end(), std::uint8_t{0});
  announced_ = {};
  num_begins_ = num_runs_ = rows_seen_ = 0;
  out_of_range_ = before_begin_ = false;
}

void SinkWatch::begin(void* self, ConstTensorView rows) {
  auto& watch = *static_cast<SinkWatch*>(self);
  ++watch.num_begins_;
  watch.announced_ = rows;
}

void SinkWatch::arrived(void* self, RowRange range) {
  auto& watch = *static_cast<SinkWatch*>(self);
  watch.before_begin_ |= watch.num_begins_ == 0;
  for (std::uint32_t row = range.first_row; row < range.first_row + range.num_rows; ++row) {
    if (row >= watch.seen_.size()) {
      watch.out_of_range_ = true;
      continue;
    }
    watch.seen_[row] = static_cast<std::uint8_t>(std::min(watch.seen_[row] + 1, 200));
    ++watch.rows_seen_;
  }
  ++watch.num_runs_;
  if (watch.on_run != nullptr) {
    watch.on_run(watch.on_run_argument);
  }
}

std::optional<std::string> SinkWatch::verdict(ConstTensorView rows) const {
  if (num_begins_ != 1) {
    return "RowSink::begin was called " + std::to_string(num_begins_) + " times, expected once";
  }
  if (before_begin_) {
    return "rows were announced before RowSink::begin";
  }
  if (announced_.data != rows.data || announced_.shape != rows.shape) {
    return "RowSink::begin announced another tensor than the call returned";
  }
  if (out_of_range_) {
    return "RowSink was told of rows beyond the tensor";
  }
  for (std::uint64_t row = 0; row < rows.num_rows(); ++row) {
    if (seen_[row] != 1) {
      return "RowSink was told of row " + std::to_string(row) + " " + std::to_string(seen_[row]) +
             " times, expected once";
    }
  }
  return std::nullopt;
}

// --- AttentionDriver -------------------------------------------------------------------------

AttentionDriver::AttentionDriver(Rank& rank)
    : rank_(rank),
      hidden_(make_tensors(rank, {rank.limits().max_num_tokens, rank.limits().hidden_size},
                           rank.limits().dtype)),
      logits_(make_tensors(
          rank, {rank.limits().max_num_tokens, std::max(1u, rank.limits().num_experts)}, kFloat32)),
      output_(make_tensors(rank, {rank.limits().max_num_tokens, rank.limits().hidden_size},
                           rank.limits().dtype)),
      last_output_(rank.limits().num_stages),
      watch_(rank.limits().max_num_tokens) {}

void AttentionDriver::begin(const StepPlan& plan) {
  plan_ = plan;
  begin_step(rank_, plan_);
}

std::uint32_t AttentionDriver::rows(std::uint32_t stage_idx) const {
  return plan_.rows(stage_idx, rank_.role_rank());
}

RowKey AttentionDriver::key(RowKey::Part part, std::uint32_t layer_idx,
                            std::uint32_t stage_idx) const {
  return {part, plan_.step, layer_idx, stage_idx, rank_.role_rank()};
}

TensorView AttentionDriver::hidden(std::uint32_t stage_idx) {
  return slice(hidden_[stage_idx], 0, rows(stage_idx));
}

TensorView AttentionDriver::logits(std::uint32_t stage_idx) {
  return slice(logits_[stage_idx], 0, rows(stage_idx));
}

Result<void> AttentionDriver::try_send(std::uint32_t layer_idx, std::uint32_t stage_idx,
                                       SendHow how, Deadline deadline) {
  SendAttnOptions options{.deadline = deadline};
  Production production{.key = key(RowKey::Part::kHidden, layer_idx, stage_idx)};
  TensorView tensor = hidden(stage_idx);
  if (how.from == SendHow::From::kInPlace || how.from == SendHow::From::kFromSource) {
    Result<TensorView> buffer = rank_.connector().attn_send_buffer(stage_idx, rows(stage_idx));
    if (buffer) {
      tensor = *buffer;
      if (how.from == SendHow::From::kFromSource) {
        options.source = {&production, &produce_attention};
      }
    } else if (buffer.error().code != ErrorCode::kUnavailable) {
      return afd::fail(std::move(buffer).error());
    }
  }
  if (options.source.produce == nullptr) {
    fill_rows(tensor, production.key);
  }
  if (how.router_logits) {
    fill_rows(logits(stage_idx), key(RowKey::Part::kRouterLogits, layer_idx, stage_idx));
    options.router_logits = logits(stage_idx);
  }
  Result<void> sent = rank_.connector().send_attn_output(
      tensor, context_of(layer_idx, stage_idx, rows(stage_idx)), options);
  if (sent && options.source.produce != nullptr) {
    rank_.check(!production.gap && production.next_row == rows(stage_idx),
                "RowSource runs have gaps or do not end with the tensor");
  }
  return sent;
}

void AttentionDriver::send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how) {
  rank_.require(try_send(layer_idx, stage_idx, how, rank_.soon()), "send_attn_output");
}

Result<TensorView> AttentionDriver::try_receive(std::uint32_t stage_idx, RecvHow how,
                                                Deadline deadline) {
  TensorView target;
  if (how.into == RecvHow::Into::kOwnBuffer) {
    target = slice(output_[stage_idx], 0, rows(stage_idx));
  } else if (how.into == RecvHow::Into::kSentTensor) {
    target = hidden(stage_idx);
  }
  RecvFfnOptions options{.deadline = deadline};
  if (how.sink) {
    watch_.reset();
    options.sink = watch_.sink();
  }
  Result<TensorView> received = rank_.connector().recv_ffn_output(target, stage_idx, options);
  if (!received) {
    return received;
  }
  last_output_[stage_idx] = *received;
  if (!target.empty()) {
    rank_.check(received->data == target.data, "recv_ffn_output returned another tensor than ref");
  }
  if (how.sink) {
    if (const std::optional<std::string> wrong = watch_.verdict(*received)) {
      rank_.fail(*wrong);
    }
  }
  return received;
}

bool AttentionDriver::check_output(ConstTensorView output, std::uint32_t layer_idx,
                                   std::uint32_t stage_idx, Place place) {
  const Shape wanted{rows(stage_idx), rank_.limits().hidden_size};
  if (!rank_.check(output.shape == wanted && output.dtype == rank_.limits().dtype,
                   "the output is " + to_string(output.dtype) + to_string(output.shape) +
                       ", expected " + to_string(rank_.limits().dtype) + to_string(wanted),
                   place)) {
    return false;
  }
  const std::optional<std::string> wrong =
      wrong_rows(output, key(RowKey::Part::kOutput, layer_idx, stage_idx));
  return rank_.check(!wrong, wrong.value_or(""), place);
}

void AttentionDriver::receive(std::uint32_t layer_idx, std::uint32_t stage_idx, RecvHow how) {
  const TensorView output =
      rank_.require(try_receive(stage_idx, how, rank_.soon()), "recv_ffn_output");
  if (how.echoed) {
    const std::optional<std::string> wrong =
        wrong_rows(output, key(RowKey::Part::kHidden, layer_idx, stage_idx));
    rank_.require_that(!wrong, wrong.value_or(""));
    return;
  }
  rank_.require_that(check_output(output, layer_idx, stage_idx), "the FFN output is wrong");
}

// --- FfnDriver -------------------------------------------------------------------------------

FfnDriver::FfnDriver(Rank& rank)
    : rank_(rank),
      output_(make_tensors(
          rank,
          {rank.limits().max_num_tokens * rank.mapping().peers.size(), rank.limits().hidden_size},
          rank.limits().dtype)),
      last_(rank.limits().num_stages),
      watch_(
          static_cast<std::uint32_t>(rank.limits().max_num_tokens * rank.mapping().peers.size())) {
  if (rank.is_ffn() && rank.counts().num_attention_ranks < rank.counts().num_ffn_ranks) {
    const RankMapping attention =
        *build_rank_mapping(rank.counts().num_attention_ranks, rank.counts().num_ffn_ranks,
                            Role::kAttention, rank.mapping().peers.front());
    num_siblings_ = static_cast<std::uint32_t>(attention.peers.size());
    sibling_idx_ = static_cast<std::uint32_t>(
        std::find(attention.peers.begin(), attention.peers.end(), rank.role_rank()) -
        attention.peers.begin());
  }
}

void FfnDriver::begin(const StepPlan& plan) {
  plan_ = plan;
  begin_step(rank_, plan_);
}

FfnDriver::Share FfnDriver::share(std::uint32_t stage_idx, std::size_t peer) const {
  const std::uint32_t rows = plan_.rows(stage_idx, rank_.mapping().peers[peer]);
  Share share;
  for (std::uint32_t sibling = 0; sibling < sibling_idx_; ++sibling) {
    share.first_row += rows_for_peer(rows, sibling, num_siblings_);
  }
  share.num_rows = rows_for_peer(rows, sibling_idx_, num_siblings_);
  share.dummy = share.num_rows == 0;
  share.num_rows = std::max(share.num_rows, 1u);
  return share;
}

std::uint32_t FfnDriver::peer_rows(std::uint32_t stage_idx, std::size_t peer) const {
  return share(stage_idx, peer).num_rows;
}

std::uint32_t FfnDriver::total_rows(std::uint32_t stage_idx) const {
  std::uint32_t sum = 0;
  for (std::size_t peer = 0; peer < rank_.mapping().peers.size(); ++peer) {
    sum += peer_rows(stage_idx, peer);
  }
  return sum;
}

TensorView FfnDriver::output(std::uint32_t stage_idx) {
  return slice(output_[stage_idx], 0, total_rows(stage_idx));
}

void FfnDriver::fill_output(TensorView rows, std::uint32_t first_row, std::uint32_t layer_idx,
                            std::uint32_t stage_idx) const {
  std::uint32_t peer_first = 0;
  const std::uint32_t end_row = first_row + static_cast<std::uint32_t>(rows.num_rows());
  for (std::size_t peer = 0; peer < rank_.mapping().peers.size(); ++peer) {
    const Share part = share(stage_idx, peer);
    const std::uint32_t begin = std::max(first_row, peer_first);
    const std::uint32_t end = std::min(end_row, peer_first + part.num_rows);
    if (begin < end) {
      fill_rows(
          slice(rows, begin - first_row, end - begin),
          {RowKey::Part::kOutput, plan_.step, layer_idx, stage_idx, rank_.mapping().peers[peer]},
          part.first_row + begin - peer_first);
    }
    peer_first += part.num_rows;
  }
}

Result<A2FTransferPayload> FfnDriver::try_receive(std::uint32_t stage_idx, RecvHow how,
                                                  Deadline deadline) {
  RecvAttnOptions options{.deadline = deadline};
  if (how.router_logits) {
    options.routing_spec = ExpertRoutingSpec{rank_.limits().num_experts, kFloat32};
  }
  if (how.sink) {
    watch_.reset();
    options.sink = watch_.sink();
  }
  Result<A2FTransferPayload> received = rank_.connector().recv_attn_output(stage_idx, options);
  if (!received) {
    return received;
  }
  last_[stage_idx] = *received;
  if (how.sink) {
    if (const std::optional<std::string> wrong = watch_.verdict(received->hidden_states)) {
      rank_.fail(*wrong);
    }
  }
  return received;
}

bool FfnDriver::check_payload(const A2FTransferPayload& payload, std::uint32_t layer_idx,
                              std::uint32_t stage_idx, RecvHow how, Place place) {
  const TransferMetadata& metadata = payload.context.metadata;
  bool right = rank_.check_equal(metadata.layer_idx, layer_idx, "the received layer", place);
  right &= rank_.check_equal(metadata.stage_idx, stage_idx, "the received stage", place);
  right &= rank_.check_equal(metadata.seq_lens.size(), rank_.mapping().peers.size(),
                             "the number of seq_lens", place);
  const Shape wanted{total_rows(stage_idx), rank_.limits().hidden_size};
  right &= rank_.check(
      payload.hidden_states.shape == wanted && payload.hidden_states.dtype == rank_.limits().dtype,
      "the hidden states are " + to_string(payload.hidden_states.dtype) +
          to_string(payload.hidden_states.shape) + ", expected " + to_string(rank_.limits().dtype) +
          to_string(wanted),
      place);
  right &= rank_.check(
      payload.router_logits.empty() != how.router_logits,
      how.router_logits ? "the router logits are missing" : "router logits that nobody sent",
      place);
  if (!right) {
    return false;
  }
  if (how.router_logits) {
    const Shape shape{total_rows(stage_idx), rank_.limits().num_experts};
    if (!rank_.check(
            payload.router_logits.shape == shape && payload.router_logits.dtype == kFloat32,
            "the router logits are " + to_string(payload.router_logits.dtype) +
                to_string(payload.router_logits.shape) + ", expected float32" + to_string(shape),
            place)) {
      return false;
    }
  }
  std::uint32_t row = 0;
  for (std::size_t peer = 0; peer < rank_.mapping().peers.size(); ++peer) {
    const Share part = share(stage_idx, peer);
    right &= rank_.check_equal(metadata.seq_lens[peer], part.num_rows, "a seq_len", place);
    RowKey key{RowKey::Part::kHidden, plan_.step, layer_idx, stage_idx,
               rank_.mapping().peers[peer]};
    if (!part.dummy && right) {
      std::optional<std::string> wrong =
          wrong_rows(slice(payload.hidden_states, row, part.num_rows), key, part.first_row);
      if (!wrong && how.router_logits) {
        key.part = RowKey::Part::kRouterLogits;
        wrong = wrong_rows(slice(payload.router_logits, row, part.num_rows), key, part.first_row);
      }
      right &= rank_.check(!wrong, wrong.value_or(""), place);
    }
    row += part.num_rows;
  }
  return right;
}

void FfnDriver::receive(std::uint32_t layer_idx, std::uint32_t stage_idx, RecvHow how) {
  const A2FTransferPayload payload =
      rank_.require(try_receive(stage_idx, how, rank_.soon()), "recv_attn_output");
  rank_.require_that(check_payload(payload, layer_idx, stage_idx, how),
                     "the received transfer is wrong");
}

Result<void> FfnDriver::try_send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how,
                                 Deadline deadline) {
  const TransferContext& context = last_[stage_idx].context;
  SendFfnOptions options{.deadline = deadline};
  Production production{.ffn = this, .key = {.layer_idx = layer_idx, .stage_idx = stage_idx}};
  ConstTensorView routed;
  if (how.from == SendHow::From::kReceivedView) {
    routed = last_[stage_idx].hidden_states;
  } else {
    TensorView tensor = output(stage_idx);
    if (how.from != SendHow::From::kOwnBuffer) {
      Result<TensorView> buffer = rank_.connector().ffn_output_buffer(context);
      if (buffer) {
        tensor = *buffer;
        if (how.from == SendHow::From::kFromSource) {
          options.source = {&production, &produce_ffn};
        }
      } else if (buffer.error().code != ErrorCode::kUnavailable) {
        return afd::fail(std::move(buffer).error());
      }
    }
    if (options.source.produce == nullptr) {
      fill_output(tensor, 0, layer_idx, stage_idx);
    }
    routed = tensor;
  }
  Result<void> sent =
      rank_.connector().send_ffn_output({.routed_output = routed}, context, options);
  if (sent && options.source.produce != nullptr) {
    rank_.check(!production.gap && production.next_row == total_rows(stage_idx),
                "RowSource runs have gaps or do not end with the tensor");
  }
  return sent;
}

void FfnDriver::send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how) {
  rank_.require(try_send(layer_idx, stage_idx, how, rank_.soon()), "send_ffn_output");
}

}  // namespace afd::conformance
