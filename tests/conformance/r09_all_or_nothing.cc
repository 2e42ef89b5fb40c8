// R9: a call that fails validation has sent nothing, and the transfer that it should have been can
// still be made.
#include <string>
#include <vector>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

// Long enough for something that was wrongly sent to arrive.
constexpr std::chrono::milliseconds kArrival{20};

struct BadSend {
  std::string what;
  ConstTensorView hidden_states;
  TransferContext context;
  SendAttnOptions options;
};

TransferContext with_layer(TransferContext context, std::uint32_t layer_idx) {
  context.metadata.layer_idx = layer_idx;
  return context;
}

TransferContext with_stage(TransferContext context, std::uint32_t stage_idx) {
  context.metadata.stage_idx = stage_idx;
  return context;
}

// The memory behind bad tensors: larger than any of them.
struct Scrap {
  explicit Scrap(Rank& rank) : rows(rank.make_tensor({64, 64}, kFloat64)) {}
  ConstTensorView view(Shape shape, DType dtype) const { return {rows.data, shape, dtype, {}}; }
  TensorView rows;
};

std::vector<BadSend> bad_sends(const Rank& rank, ConstTensorView good, const Scrap& scrap) {
  const TransferLimits& limits = rank.limits();
  const std::uint64_t rows = good.shape[0];
  const std::uint64_t width = limits.hidden_size;
  const DType other = limits.dtype == kFloat32 ? kBFloat16 : kFloat32;
  const TransferContext context = context_of(4, 0, static_cast<std::uint32_t>(rows));
  const auto tensor = [&](Shape shape, DType dtype) { return scrap.view(shape, dtype); };
  ConstTensorView on_device = good;
  on_device.device = {DeviceType::kCuda, 0};
  TransferContext two_lengths = context;
  two_lengths.metadata.seq_lens = {};
  two_lengths.metadata.seq_lens.push_back(static_cast<std::uint32_t>(rows));
  two_lengths.metadata.seq_lens.push_back(0);
  TransferContext no_length = context;
  no_length.metadata.seq_lens = {};

  std::vector<BadSend> bad = {
      {"no tensor", {}, context, {}},
      {"one dimension", tensor({rows * width}, limits.dtype), context, {}},
      {"three dimensions", tensor({rows, 2, width / 2}, limits.dtype), context, {}},
      {"a wrong width", tensor({rows, width + 1}, limits.dtype), context, {}},
      {"a wrong dtype", tensor({rows, width}, other), context, {}},
      {"fewer rows than the metadata", tensor({rows - 1, width}, limits.dtype), context, {}},
      {"more rows than the metadata", tensor({rows + 1, width}, limits.dtype), context, {}},
      {"other rows than announced",
       tensor({rows - 1, width}, limits.dtype),
       context_of(4, 0, static_cast<std::uint32_t>(rows - 1)),
       {}},
      {"metadata without a length", good, no_length, {}},
      {"metadata with a length of 0", good, two_lengths, {}},
      {"a layer beyond the model", good, with_layer(context, limits.num_layers), {}},
      {"a stage beyond the limit", good, with_stage(context, limits.num_stages), {}},
      {"a huge stage", good, with_stage(context, UINT32_MAX), {}},
      {"a stage that is not of this step", good, with_stage(context, 1), {}},
      {"a row source without an in-place view",
       good,
       context,
       {.source = {nullptr, [](void*, TensorView, RowRange) {}}}},
      {"top-k ids without weights", good, context, {.topk_ids = tensor({rows, 2}, kInt32)}},
  };
  bool has_device = false;
  for (DeviceType device : rank.capabilities().devices) {
    has_device |= device == DeviceType::kCuda;
  }
  if (!has_device) {
    bad.push_back({"a tensor on another device", on_device, context, {}});
  }
  if (rank.capabilities().router_logits) {
    const std::uint64_t experts = limits.num_experts;
    bad.push_back({"router logits with other rows",
                   good,
                   context,
                   {.router_logits = tensor({rows - 1, experts}, kFloat32)}});
    bad.push_back({"router logits of another width",
                   good,
                   context,
                   {.router_logits = tensor({rows, experts + 1}, kFloat32)}});
    bad.push_back({"router logits of another dtype",
                   good,
                   context,
                   {.router_logits = tensor({rows, experts}, kInt32)}});
    bad.push_back({"router logits of one dimension",
                   good,
                   context,
                   {.router_logits = tensor({rows * experts}, kFloat32)}});
  } else {
    bad.push_back({"router logits that are not supported",
                   good,
                   context,
                   {.router_logits = tensor({rows, 4}, kFloat32)}});
  }
  if (!rank.capabilities().topk) {
    bad.push_back(
        {"top-k that is not supported",
         good,
         context,
         {.topk_ids = tensor({rows, 2}, kInt32), .topk_weights = tensor({rows, 2}, kFloat32)}});
  }
  return bad;
}

// Goal: no bad argument of send_attn_output lets anything leave.
// Method: each one fails; the FFN rank sees nothing on any stage; then the right call arrives
// whole, with router logits where the connector can carry them.
void a_bad_attention_send_sends_nothing(CaseRun& run) {
  const bool logits = run.connector().capabilities.router_logits;
  run.job({.counts = {1, 1}, .compute_gate_on_attention = logits}, [logits](Rank& rank) {
    StepPlan plan{.counts = {{5}, {}}};
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      const Scrap scrap(rank);
      for (BadSend& bad : bad_sends(rank, attention.hidden(0), scrap)) {
        bad.options.deadline = rank.soon();
        rank.check_error(
            rank.connector().send_attn_output(bad.hidden_states, bad.context, bad.options),
            ErrorCode::kInvalidArgument, {}, "send_attn_output with " + bad.what);
        rank.post(0, rank.board().read(0) + 1);
        rank.barrier();  // the FFN rank looks
        rank.barrier();
      }
      rank.post(1);  // no more
      rank.barrier();
      attention.send(4, 0, {.router_logits = logits});
      attention.receive(4, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    for (;;) {
      rank.barrier();
      if (rank.board().read(1) != 0) {
        break;
      }
      const auto result = ffn.try_receive(0, {.router_logits = logits}, Deadline::after(kArrival));
      rank.require_that(
          !result && result.error().code == ErrorCode::kDeadlineExceeded,
          "after bad send number " + std::to_string(rank.board().read(0)) +
              " something arrived: " + (result ? "a transfer" : Rank::describe(result.error())));
      rank.barrier();
    }
    ffn.receive(4, 0, {.router_logits = logits});
    ffn.send(4, 0);
  });
}

// Goal: no bad argument of send_ffn_output lets anything leave, to none of the peers.
// Method: each one fails; both attention ranks see nothing; then the right call arrives.
void a_bad_ffn_send_sends_nothing(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan{.counts = {{3, 5}, {}}};
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(4, 0);
      rank.barrier();
      rank.check_error(attention.try_receive(0, {}, Deadline::after(kArrival)),
                       ErrorCode::kDeadlineExceeded, {}, "a receive after bad answers only");
      rank.barrier();
      attention.receive(4, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(4, 0);
    const TransferLimits& limits = rank.limits();
    const std::uint64_t width = limits.hidden_size;
    const DType other = limits.dtype == kFloat32 ? kBFloat16 : kFloat32;
    const ConstTensorView good = ffn.output(0);
    const std::uint64_t rows = good.num_rows();
    const TransferContext context = ffn.last(0).context;
    const Scrap scrap(rank);
    struct Bad {
      const char* what;
      F2ATransferPayload output;
      TransferContext context;
      ErrorCode code = ErrorCode::kInvalidArgument;
    };
    const auto with_lengths = [&context](std::initializer_list<std::uint32_t> lengths) {
      TransferContext changed = context;
      changed.metadata.seq_lens = {};
      for (std::uint32_t length : lengths) {
        changed.metadata.seq_lens.push_back(length);
      }
      return changed;
    };
    // Swapped, or merged, where there are two peers.
    const bool two = rank.mapping().peers.size() == 2;
    const TransferContext swapped = two ? with_lengths({5, 3}) : with_lengths({1, 2});
    const TransferContext merged = two ? with_lengths({8}) : with_lengths({2, 1});
    ConstTensorView on_device = good;
    on_device.device = {DeviceType::kCuda, 0};
    const std::vector<Bad> all = {
        {"no tensor", {}, context},
        {"one dimension", {.routed_output = scrap.view({rows * width}, limits.dtype)}, context},
        {"a wrong width", {.routed_output = scrap.view({rows, width + 1}, limits.dtype)}, context},
        {"a wrong dtype", {.routed_output = scrap.view({rows, width}, other)}, context},
        {"fewer rows", {.routed_output = scrap.view({rows - 1, width}, limits.dtype)}, context},
        {"more rows", {.routed_output = scrap.view({rows + 1, width}, limits.dtype)}, context},
        {"another layer", {.routed_output = good}, with_layer(context, 5)},
        {"another stage", {.routed_output = good}, with_stage(context, 1)},
        {"a stage beyond the limit", {.routed_output = good}, with_stage(context, 77)},
        // Rows could go to the wrong rank: the reference splits evenly where the lengths do not
        // fit.
        {"other shares", {.routed_output = good}, swapped, ErrorCode::kProtocolMismatch},
        {"other shares than those", {.routed_output = good}, merged, ErrorCode::kProtocolMismatch},
        {"another device", {.routed_output = on_device}, context},
    };
    for (const Bad& bad : all) {
      const Result<void> sent =
          rank.connector().send_ffn_output(bad.output, bad.context, {.deadline = rank.soon()});
      // A stage where nothing was received may as well be called the wrong moment.
      if (!sent && sent.error().code == ErrorCode::kFailedPrecondition &&
          bad.context.metadata.stage_idx == 1) {
        continue;
      }
      rank.check_error(sent, bad.code, {}, std::string("send_ffn_output with ") + bad.what);
    }
    rank.barrier();
    rank.barrier();
    ffn.send(4, 0);
  });
}

// Goal: a receive with bad arguments takes nothing.
// Method: after every bad one the right one finds everything.
void a_bad_receive_takes_nothing(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan{.counts = {{3, 5}, {}}};
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(4, 0);
      rank.barrier();
      rank.barrier();  // the answer is there
      const Scrap scrap(rank);
      const std::uint64_t rows = attention.rows(0);
      const std::uint64_t width = rank.limits().hidden_size;
      const auto into = [&](Shape shape, DType dtype) {
        TensorView target = attention.hidden(0);  // any memory: it must not be written
        target.shape = shape;
        target.dtype = dtype;
        return target;
      };
      const DType dtype = rank.limits().dtype;
      const DType other = dtype == kFloat32 ? kBFloat16 : kFloat32;
      const std::string before = bytes_of(attention.hidden(0));
      for (const TensorView& target :
           {into({rows - 1, width}, dtype), into({rows + 1, width}, dtype),
            into({rows, width - 1}, dtype), into({rows * width}, dtype),
            into({rows, width}, other)}) {
        rank.check_error(
            rank.connector().recv_ffn_output(target, 0, {.deadline = rank.soon()}),
            ErrorCode::kInvalidArgument, {},
            "recv_ffn_output into " + to_string(target.dtype) + to_string(target.shape));
      }
      rank.check(bytes_of(attention.hidden(0)) == before, "a refused receive wrote to its target");
      for (std::uint32_t stage : {1u, 2u, UINT32_MAX}) {
        rank.check_error(rank.connector().recv_ffn_output({}, stage, {.deadline = rank.soon()}),
                         ErrorCode::kInvalidArgument, {std::to_string(stage)},
                         "recv_ffn_output on stage " + std::to_string(stage));
      }
      attention.receive(4, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.barrier();
    for (std::uint32_t stage : {1u, 2u, UINT32_MAX}) {
      rank.check_error(rank.connector().recv_attn_output(stage, {.deadline = rank.soon()}),
                       ErrorCode::kInvalidArgument, {std::to_string(stage), "0"},
                       "recv_attn_output on stage " + std::to_string(stage));
    }
    ffn.receive(4, 0);
    ffn.send(4, 0);
    rank.barrier();
  });
}

// Goal: a step that cannot be applied changes nothing, on either side.
// Method: bad payloads are refused; the step that was in force goes on.
void a_bad_step_changes_nothing(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan{.counts = {{3, 5}, {1, 1}}};
    const auto try_bad_steps = [&rank] {
      StepPlan too_many{.counts = {{1, 1}, {9, 9}}};
      StepPlan stage_beyond{.counts = {{1, 1}, {1, 1}, {1, 1}}};
      ControlPayload negative = StepPlan{.counts = {{1, 1}}}.payload();
      negative.dp_metadata_list[-1] = *DpMetadata::create({1, 1});
      ControlPayload huge = StepPlan{.counts = {{1, 1}}}.payload();
      huge.dp_metadata_list[std::int64_t{1} << 32] = *DpMetadata::create({1, 1});
      for (const ControlPayload& payload :
           {too_many.payload(), stage_beyond.payload(), negative, huge}) {
        rank.check_error(rank.control().update_state_from_dp_metadata(payload),
                         ErrorCode::kInvalidArgument, {}, "update_state_from_dp_metadata");
      }
    };
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      try_bad_steps();
      attention.send(4, 0);
      attention.receive(4, 0);
    } else {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      try_bad_steps();
      ffn.receive(4, 0);
      ffn.send(4, 0);
    }
  });
}

}  // namespace

std::vector<Case> r9_all_or_nothing_cases() {
  return {
      {"R9ABadAttentionSendSendsNothing", a_bad_attention_send_sends_nothing, {.num_stages = 2}},
      {"R9ABadFfnSendSendsNothing", a_bad_ffn_send_sends_nothing, {.num_stages = 2}},
      {"R9ABadReceiveTakesNothing", a_bad_receive_takes_nothing, {.num_stages = 2}},
      {"R9ABadStepChangesNothing", a_bad_step_changes_nothing, {.num_stages = 2}},
  };
}

}  // namespace afd::conformance
