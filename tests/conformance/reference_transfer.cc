// The data calls: checks, then a copy into the peers' mailboxes or out of them.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <shared_mutex>
#include <utility>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "conformance/reference_rank.h"

namespace afd::conformance::reference {

// --- Checks ----------------------------------------------------------------------------------

std::optional<Error> ReferenceConnector::check_call(const Call& call, Role wanted,
                                                    const char* name) const {
  if (call.hub() == nullptr) {
    return Error{ErrorCode::kFailedPrecondition, "not initialised"};
  }
  if (mapping_.role != wanted) {
    const ErrorCode code = fault_ == Fault::kR10IgnoresRoles ? ErrorCode::kInvalidArgument
                                                             : ErrorCode::kFailedPrecondition;
    return Error{code, std::string(name) + " is a call of " + std::string(to_string(wanted)) +
                           " ranks, this is none"};
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

std::optional<Error> ReferenceConnector::check_header(const Mailbox& mail, Stage& stage,
                                                      std::size_t peer, std::uint32_t stage_idx,
                                                      bool& layer_known,
                                                      bool expects_logits) const {
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
  compare("router logits", found.router_logits ? 1 : 0, expects_logits ? 1 : 0);
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
  bool expects_logits = spec.has_value();
  if (fault_ == Fault::kR1KeepsTheFirstCallsView && stage.expects_logits) {
    expects_logits = *stage.expects_logits;
  }
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    order[peer] = peer;
    const std::span needed(&peer_world_ranks_[peer], 1);
    if (wait(
            hub, [&] { return arrived(peer); }, needed, deadline)) {
      if (std::optional<Error> error = check_header(box(hub, to_ffn, peer, stage_idx), stage, peer,
                                                    stage_idx, layer_known, expects_logits)) {
        return afd::fail(*std::move(error));
      }
      stage.expects_logits = expects_logits;
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
  stage.expects_logits.reset();
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
    case Fault::kR11LocksShared: {
      static std::shared_mutex mutex;
      std::shared_lock lock(mutex);
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
  if (!capabilities_.in_place_buffers) {
    return afd::fail(ErrorCode::kUnavailable, "the connector has no buffer to send from");
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
  if (!capabilities_.in_place_buffers) {
    return afd::fail(ErrorCode::kUnavailable, "the connector has no buffer for an output");
  }
  TensorView view = (*found)->in_place.view();
  view.shape = {(*found)->num_rows, limits_.hidden_size};
  return view;
}

}  // namespace afd::conformance::reference
