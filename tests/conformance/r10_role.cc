// R10: an attention call on an FFN rank, or the other way round, is FailedPrecondition, and so is
// any call out of order: a data call before init or after close, a second send on a stage before
// its receive, a receive of what was not asked for. The message names what is missing: init, the
// role that may make the call, the first step, or the stage.
#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

/// What a refusal has to name, by the role that the call is of.
struct Names {
  std::string_view attention_call;
  std::string_view ffn_call;
};
constexpr Names kNamesInit{"init", "init"};
constexpr Names kNamesTheRole{"attention rank", "ffn rank"};
constexpr Names kNamesTheStep{"step", "step"};

// Every data call of both roles fails with FailedPrecondition.
void check_all_refused(Rank& rank, std::string_view when, bool attention_calls, bool ffn_calls,
                       Names names, Place place = {}) {
  ConnectorBase& connector = rank.connector();
  const TensorView tensor = rank.make_tensor({2, rank.limits().hidden_size}, rank.limits().dtype);
  const TransferContext context = context_of(0, 0, 2);
  const std::string suffix = " " + std::string(when);
  if (attention_calls) {
    rank.check_error(connector.send_attn_output(tensor, context, {.deadline = rank.soon()}),
                     ErrorCode::kFailedPrecondition, {names.attention_call},
                     "send_attn_output" + suffix, place);
    rank.check_error(connector.recv_ffn_output(tensor, 0, {.deadline = rank.soon()}),
                     ErrorCode::kFailedPrecondition, {names.attention_call},
                     "recv_ffn_output" + suffix, place);
    if (rank.capabilities().in_place_buffers) {
      rank.check_error(connector.attn_send_buffer(0, 2), ErrorCode::kFailedPrecondition,
                       {names.attention_call}, "attn_send_buffer" + suffix, place);
    }
  }
  if (ffn_calls) {
    rank.check_error(connector.recv_attn_output(0, {.deadline = rank.soon()}),
                     ErrorCode::kFailedPrecondition, {names.ffn_call}, "recv_attn_output" + suffix,
                     place);
    rank.check_error(
        connector.send_ffn_output({.routed_output = tensor}, context, {.deadline = rank.soon()}),
        ErrorCode::kFailedPrecondition, {names.ffn_call}, "send_ffn_output" + suffix, place);
    if (rank.capabilities().in_place_buffers) {
      rank.check_error(connector.ffn_output_buffer(context), ErrorCode::kFailedPrecondition,
                       {names.ffn_call}, "ffn_output_buffer" + suffix, place);
    }
  }
}

void check_control_refused(Rank& rank, std::string_view when, Place place = {}) {
  const ControlPayload payload = StepPlan{.counts = {{1}}}.payload();
  const std::string suffix = " " + std::string(when);
  if (rank.connector().control_plane() != nullptr) {
    rank.check_error(rank.control().update_state_from_dp_metadata(payload),
                     ErrorCode::kFailedPrecondition, {"init"}, "update_state" + suffix, place);
    rank.check_error(rank.control().send_dp_metadata_list(payload, rank.soon()),
                     ErrorCode::kFailedPrecondition, {"init"}, "send_dp_metadata_list" + suffix,
                     place);
    rank.check_error(rank.control().recv_dp_metadata_list(rank.soon()),
                     ErrorCode::kFailedPrecondition, {"init"}, "recv_dp_metadata_list" + suffix,
                     place);
  }
  if (RoleGroup* group = rank.connector().role_group()) {
    rank.check_error(group->all_gather("mine", rank.soon()), ErrorCode::kFailedPrecondition,
                     {"init"}, "all_gather" + suffix, place);
  }
}

// Goal: nothing works before init and after close, and says so.
// Method: every call of both roles, on both roles.
void nothing_works_before_init_and_after_close(CaseRun& run) {
  run.job({.counts = {1, 1}, .init = false}, [](Rank& rank) {
    rank.check(!rank.connector().is_initialized(), "is_initialized() before init");
    check_all_refused(rank, "before init", true, true, kNamesInit);
    check_control_refused(rank, "before init");
    rank.require(rank.connector().init_afd_connector(rank.soon()), "init");
    rank.barrier();
    rank.connector().close();
    check_all_refused(rank, "after close", true, true, kNamesInit);
    check_control_refused(rank, "after close");
  });
}

// Goal: a call of the other role is refused, at any moment, and disturbs nothing.
// Method: before a step, between the calls of a transfer, and after it.
void calls_of_the_other_role_are_refused(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    const bool attention_calls = rank.is_ffn();
    const auto refused = [&](std::string_view when) {
      check_all_refused(rank, when, attention_calls, !attention_calls, kNamesTheRole);
    };
    refused("of the other role before a step");
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    if (rank.is_attention()) {
      attention.begin(plan);
      refused("of the other role");
      attention.send(0, 0);
      refused("of the other role after a send");
      attention.receive(0, 0);
    } else {
      ffn.begin(plan);
      refused("of the other role");
      ffn.receive(0, 0);
      refused("of the other role after a receive");
      ffn.send(0, 0);
    }
    refused("of the other role after a transfer");
  });
}

// Goal: the order of a stage is send, receive on the attention side.
// Method: receive first, send twice; each refusal leaves the transfer as it was.
void an_attention_stage_goes_send_receive(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      ffn.receive(3, 0);
      rank.barrier();
      ffn.send(3, 0);
      ffn.receive(4, 0);
      ffn.send(4, 0);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    rank.check_error(attention.try_receive(0, {}, rank.soon()), ErrorCode::kFailedPrecondition,
                     {"stage"}, "a receive before a send");
    attention.send(3, 0);
    const TensorView other = rank.make_tensor({2, rank.limits().hidden_size}, rank.limits().dtype);
    rank.check_error(
        rank.connector().send_attn_output(other, context_of(4, 0, 2), {.deadline = rank.soon()}),
        ErrorCode::kFailedPrecondition, {"stage"}, "a second send on a stage");
    rank.barrier();
    attention.receive(3, 0);
    rank.check_error(attention.try_receive(0, {}, rank.soon()), ErrorCode::kFailedPrecondition,
                     {"stage"}, "a second receive");
    attention.send(4, 0);
    attention.receive(4, 0);
  });
}

// Goal: the order of a stage is receive, send on the FFN side.
// Method: send first, receive twice, send twice; each refusal leaves the transfer as it was.
void an_ffn_stage_goes_receive_send(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      for (std::uint32_t layer : {3u, 4u}) {
        attention.send(layer, 0);
        attention.receive(layer, 0);
      }
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    const TensorView tensor = rank.make_tensor({2, rank.limits().hidden_size}, rank.limits().dtype);
    const auto send_unasked = [&] {
      return rank.connector().send_ffn_output({.routed_output = tensor}, context_of(3, 0, 2),
                                              {.deadline = rank.soon()});
    };
    rank.check_error(send_unasked(), ErrorCode::kFailedPrecondition, {"stage"},
                     "a send before a receive");
    ffn.receive(3, 0);
    rank.check_error(rank.connector().recv_attn_output(0, {.deadline = rank.soon()}),
                     ErrorCode::kFailedPrecondition, {"stage"}, "a second receive on a stage");
    ffn.send(3, 0);
    rank.check_error(send_unasked(), ErrorCode::kFailedPrecondition, {"stage"}, "a second send");
    ffn.receive(4, 0);
    ffn.send(4, 0);
  });
}

// Goal: a step is not replaced under a transfer.
// Method: both sides try in the middle of one; the transfer then goes on.
void a_step_is_not_replaced_under_a_transfer(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    const ControlPayload other = even_step(rank, 3).payload();
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 0);
      rank.check_error(rank.control().update_state_from_dp_metadata(other),
                       ErrorCode::kFailedPrecondition, {"stage"}, "a new step after a send");
      attention.receive(0, 0);
      attention.begin(even_step(rank, 4));
      attention.send(0, 0);
      attention.receive(0, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(0, 0);
    rank.check_error(rank.control().update_state_from_dp_metadata(other),
                     ErrorCode::kFailedPrecondition, {"stage"}, "a new step after a receive");
    ffn.send(0, 0);
    ffn.begin(even_step(rank, 4));
    ffn.receive(0, 0);
    ffn.send(0, 0);
  });
}

// Goal: no data call works before the first step is known.
// Method: right after init, on both sides.
void no_transfer_before_the_first_step(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    check_all_refused(rank, "before the first step", rank.is_attention(), rank.is_ffn(),
                      kNamesTheStep);
  });
}

}  // namespace

std::vector<Case> r10_role_cases() {
  return {
      {"R10NothingWorksBeforeInitAndAfterClose", nothing_works_before_init_and_after_close, {}},
      {"R10CallsOfTheOtherRoleAreRefused", calls_of_the_other_role_are_refused, {}},
      {"R10AnAttentionStageGoesSendReceive", an_attention_stage_goes_send_receive, {}},
      {"R10AnFfnStageGoesReceiveSend", an_ffn_stage_goes_receive_send, {}},
      {"R10AStepIsNotReplacedUnderATransfer", a_step_is_not_replaced_under_a_transfer, {}},
      {"R10NoTransferBeforeTheFirstStep", no_transfer_before_the_first_step, {}},
  };
}

}  // namespace afd::conformance
