// R6: on expiry DeadlineExceeded, naming who was awaited, for which layer and stage; the call had
// no effect and can be repeated.
#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

constexpr std::chrono::milliseconds kShort{30};

// Goal: an attention rank that waited in vain says for whom and for what, and can wait again.
// Method: poll and wait before the answer exists, for two stages; then the answer comes.
void a_wait_for_output_names_what_it_awaits(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      rank.barrier();
      for (std::uint32_t stage : {0u, 1u}) {
        ffn.receive(23, stage);
        ffn.send(23, stage);
      }
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    attention.send(23, 0);
    attention.send(23, 1);
    for (const Deadline deadline : {Deadline::now(), Deadline::after(kShort)}) {
      rank.check_error(attention.try_receive(1, {}, deadline), ErrorCode::kDeadlineExceeded,
                       {"ffn rank 0", "layer 23", "stage 1"}, "recv_ffn_output in vain");
      rank.check_error(attention.try_receive(0, {.into = RecvHow::Into::kOwnBuffer}, deadline),
                       ErrorCode::kDeadlineExceeded, {"ffn rank 0", "layer 23", "stage 0"},
                       "recv_ffn_output in vain");
    }
    rank.barrier();
    attention.receive(23, 0);
    attention.receive(23, 1);
  });
}

// Goal: an FFN rank names those that are missing, and only those; what has arrived is kept.
// Method: of three peers first none has sent, then the middle one.
void a_wait_for_input_names_who_is_missing(CaseRun& run) {
  run.job({.counts = {3, 1}}, [](Rank& rank) {
    const StepPlan plan{.counts = {{3, 1, 2}, {1, 2, 3}}};
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      rank.barrier();
      rank.check_error(
          ffn.try_receive(1, {}, Deadline::after(kShort)), ErrorCode::kDeadlineExceeded,
          {"attention rank 0", "attention rank 1", "attention rank 2", "layer", "stage 1"},
          "recv_attn_output before anybody sent");
      rank.barrier();  // rank 1 sends
      rank.barrier();
      for (const Deadline deadline : {Deadline::now(), Deadline::after(kShort)}) {
        const auto result = ffn.try_receive(1, {}, deadline);
        rank.check_error(result, ErrorCode::kDeadlineExceeded,
                         {"attention rank 0", "attention rank 2", "layer 9", "stage 1"},
                         "recv_attn_output with one of three");
        rank.check(result || result.error().message.find("attention rank 1") == std::string::npos,
                   "the message names attention rank 1, which had sent");
      }
      rank.barrier();
      ffn.receive(9, 1);
      ffn.send(9, 1);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    rank.barrier();
    rank.barrier();
    if (rank.role_rank() == 1) {
      attention.send(9, 1);
    }
    rank.barrier();
    rank.barrier();
    if (rank.role_rank() != 1) {
      attention.send(9, 1);
    }
    attention.receive(9, 1);
  });
}

// Goal: a poll takes what is there: a deadline that has passed means "try once", not "fail".
// Method: everything has been sent before each call that has no time.
void a_poll_takes_what_is_there(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 0);
      rank.barrier();
      rank.barrier();
      const auto output = rank.require(attention.try_receive(0, {}, Deadline::now()), "a poll");
      attention.check_output(output, 0, 0);
      return;
    }
    FfnDriver ffn(rank);
    rank.barrier();
    const auto payload =
        rank.require(rank.control().recv_dp_metadata_list(Deadline::now()), "a control poll");
    rank.require_that(payload.has_value(), "a control poll says that the job is done");
    rank.require(rank.control().update_state_from_dp_metadata(*payload), "update");
    ffn.adopt(plan);
    const auto received = rank.require(ffn.try_receive(0, {}, Deadline::now()), "a poll");
    ffn.check_payload(received, 0, 0, {});
    ffn.send(0, 0);
    rank.barrier();
  });
}

// Goal: waiting for a step in vain names the sender, and loses nothing.
// Method: poll and wait before the payload exists; then it comes.
void a_wait_for_control_names_the_sender(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      rank.barrier();
      attention.begin(plan);
      attention.send(0, 0);
      attention.receive(0, 0);
      return;
    }
    for (const Deadline deadline : {Deadline::now(), Deadline::after(kShort)}) {
      rank.check_error(rank.control().recv_dp_metadata_list(deadline), ErrorCode::kDeadlineExceeded,
                       {"attention rank 0"}, "recv_dp_metadata_list in vain");
    }
    rank.barrier();
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(0, 0);
    ffn.send(0, 0);
  });
}

// Goal: an init that waits in vain names the missing ranks, and can be repeated.
// Method: attention rank 1 comes late; the others give up once, then all meet.
void a_wait_in_init_names_who_is_missing(CaseRun& run) {
  run.job({.counts = {2, 1}, .init = false}, [](Rank& rank) {
    const bool late = rank.is_attention() && rank.role_rank() == 1;
    if (!late) {
      // Those that came need not give up in the same moment: the listener's end is what the others
      // see of it. Only rank 0 of the world, which listens, can name everybody.
      const Result<void> met =
          rank.connector().init_afd_connector(Deadline::after(std::chrono::milliseconds(300)));
      if (rank.is_ffn()) {
        rank.check_error(met, ErrorCode::kDeadlineExceeded, {"attention rank 1"},
                         "init without attention rank 1");
      } else {
        rank.check(!met, "init without attention rank 1 succeeded");
      }
      rank.check(!rank.connector().is_initialized(), "is_initialized() after an init in vain");
    }
    rank.barrier();
    rank.require(rank.connector().init_afd_connector(rank.soon()), "init with everybody");
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 0);
      attention.receive(0, 0);
    } else {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      ffn.receive(0, 0);
      ffn.send(0, 0);
    }
  });
}

// Goal: a gather that waits in vain names who is missing.
// Method: attention rank 2 of three comes late.
void a_wait_in_a_gather_names_who_is_missing(CaseRun& run) {
  run.job({.counts = {3, 1}}, [](Rank& rank) {
    RoleGroup* group = rank.connector().role_group();
    if (rank.is_ffn() || group == nullptr) {
      rank.barrier();
      return;
    }
    if (rank.role_rank() == 0) {
      // Who is missing is known to the rank that collects: on a busy machine its answer may be late
      // for one deadline, not for all.
      Result<std::vector<std::string>> gathered;
      for (int tries = 0; tries < 20; ++tries) {
        gathered = group->all_gather("zero", Deadline::after(4 * kShort));
        if (gathered || gathered.error().message.find("attention rank") != std::string::npos) {
          break;
        }
      }
      rank.check_error(gathered, ErrorCode::kDeadlineExceeded,
                       {"attention rank 1", "attention rank 2"}, "all_gather in vain");
    }
    rank.barrier();
  });
}

// Sends 64 rows of layer 0, stage 0 and receives the answer. Posts word 0 when all but the last run
// have been produced, and goes on when word 1 is posted.
void send_slowly(Rank& rank, const StepPlan& plan) {
  AttentionDriver attention(rank);
  attention.begin(plan);
  const TensorView buffer =
      rank.require(rank.connector().attn_send_buffer(0, 64), "attn_send_buffer");
  struct Slow {
    Rank* rank;
    RowKey key;
  } slow{&rank, attention.key(RowKey::Part::kHidden, 0, 0)};
  const auto produce = [](void* argument, TensorView rows, RowRange range) {
    auto& self = *static_cast<Slow*>(argument);
    if (range.first_row + range.num_rows == 64) {
      self.rank->post(0);
      self.rank->board().await(1, 1, Board::Clock::now() + self.rank->patience());
    }
    fill_rows(rows, self.key, range.first_row);
  };
  rank.require(
      rank.connector().send_attn_output(buffer, context_of(0, 0, 64),
                                        {.source = {&slow, produce}, .deadline = rank.soon()}),
      "send_attn_output with a slow producer");
  attention.receive(0, 0);
}

// Goal: with a row sink, a repeated call goes on where it stopped: each row is told of once.
// Method: the sender's producer stops in the middle of a large tensor until the receiver has run
// out of time once.
void an_interrupted_receive_goes_on(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.hidden_size = 4096;
  spec.limits.max_num_tokens = 64;  // 1 MiB: far beyond one piece of a pipelined transfer
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 64);
    if (rank.is_attention()) {
      send_slowly(rank, plan);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.await(0);  // all rows but the last run are there
    SinkWatch watch(64);
    RecvAttnOptions options{.sink = watch.sink(), .deadline = Deadline::after(kShort)};
    rank.check_error(rank.connector().recv_attn_output(0, options), ErrorCode::kDeadlineExceeded,
                     {"attention rank 0", "layer 0", "stage 0"}, "a receive of a part");
    rank.check(watch.rows_seen() > 0, "no row was told of before the deadline");
    rank.post(1);
    options.deadline = rank.soon();
    const A2FTransferPayload payload =
        rank.require(rank.connector().recv_attn_output(0, options), "the repeated receive");
    const std::optional<std::string> wrong = watch.verdict(payload.hidden_states);
    rank.check(!wrong, wrong.value_or(""));
    ffn.check_payload(payload, 0, 0, {});
    ffn.take(payload);
    ffn.send(0, 0);
  });
}

// Goal: whether a sink is another one is told by its members alone: with equal ones the repeated
// call goes on, with one that differs all rows are told of again.
// Method: the same argument throughout; first a copy of the sink, then one of another function.
void sinks_are_compared_by_their_members(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.hidden_size = 4096;
  spec.limits.max_num_tokens = 64;
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 64);
    if (rank.is_attention()) {
      send_slowly(rank, plan);
      return;
    }
    struct Told {
      std::uint32_t begins = 0;
      std::uint32_t rows = 0;
      std::uint32_t rows_of_another = 0;
    } told;
    const RowSink sink{
        &told, [](void* argument, ConstTensorView) { ++static_cast<Told*>(argument)->begins; },
        [](void* argument, RowRange range) {
          static_cast<Told*>(argument)->rows += range.num_rows;
        }};
    RowSink another = sink;
    another.rows_arrived = [](void* argument, RowRange range) {
      static_cast<Told*>(argument)->rows_of_another += range.num_rows;
    };
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.await(0);  // all rows but the last run are there
    const auto receive_in_vain = [&rank](const RowSink& into) {
      rank.check_error(
          rank.connector().recv_attn_output(0, {.sink = into, .deadline = Deadline::after(kShort)}),
          ErrorCode::kDeadlineExceeded, {"attention rank 0"}, "a receive of a part");
    };
    receive_in_vain(sink);
    const std::uint32_t rows = told.rows;
    rank.check(rows > 0, "no row was told of before the deadline");
    receive_in_vain(RowSink(sink));
    rank.check_equal(told.rows, rows, "the rows that an equal sink was told of");
    rank.check_equal(told.begins, 1u, "RowSink::begin of equal sinks");
    receive_in_vain(another);
    rank.check_equal(told.rows_of_another, rows, "the rows that another sink was told of");
    rank.check_equal(told.begins, 2u, "RowSink::begin of two sinks");
    rank.post(1);
    const A2FTransferPayload payload = rank.require(
        rank.connector().recv_attn_output(0, {.sink = another, .deadline = rank.soon()}),
        "the repeated receive");
    rank.check_equal(told.rows_of_another, 64u, "the rows that the last sink was told of");
    ffn.check_payload(payload, 0, 0, {});
    ffn.take(payload);
    ffn.send(0, 0);
  });
}

// Goal: a call that ran out of time had no effect: neither its options nor its target bind the
// next. Method: the first try has no routing spec, no sink and another target; the repeated one is
// whole.
void a_repeated_call_may_differ(CaseRun& run) {
  const bool logits = run.connector().capabilities.router_logits;
  run.job({.counts = run.fan_in(), .compute_gate_on_attention = logits}, [logits](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      rank.barrier();
      attention.send(0, 0, {.router_logits = logits});
      rank.check_error(attention.try_receive(0, {}, Deadline::after(kShort)),
                       ErrorCode::kDeadlineExceeded, {}, "recv_ffn_output in vain");
      rank.barrier();
      attention.receive(0, 0, {.into = RecvHow::Into::kOwnBuffer, .sink = true});
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.check_error(ffn.try_receive(0, {}, Deadline::after(kShort)), ErrorCode::kDeadlineExceeded,
                     {}, "recv_attn_output in vain");
    rank.barrier();
    ffn.receive(0, 0, {.sink = true, .router_logits = logits});
    rank.barrier();
    ffn.send(0, 0);
  });
}

// Goal: a receive that ran out of time before anything came leaves no transfer open.
// Method: the FFN rank looks for more of a step that is over, and goes on to the next one.
void a_receive_in_vain_leaves_nothing_open(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    for (std::uint64_t step = 1; step <= 2; ++step) {
      const StepPlan plan = even_step(rank, static_cast<std::int32_t>(step) + 2, step);
      rank.is_attention() ? attention.begin(plan) : ffn.begin(plan);
      if (rank.is_attention()) {
        attention.send(0, 0);
        attention.receive(0, 0);
        rank.barrier();
      } else {
        ffn.receive(0, 0);
        ffn.send(0, 0);
        rank.check_error(ffn.try_receive(0, {}, Deadline::after(kShort)),
                         ErrorCode::kDeadlineExceeded, {"attention rank 0"},
                         "a receive after the last layer");
        rank.barrier();
      }
    }
  });
}

// Goal: a control sender that is whole steps ahead runs out of time instead of losing payloads.
// Method: it sends without anybody taking, until it may not; then the FFN rank takes all of them,
// in order, and there is room again.
void a_full_control_queue_is_a_deadline(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    constexpr std::uint64_t kMany = 10'000;
    const auto payload = [](std::uint64_t number) {
      return StepPlan{.counts = {{static_cast<std::int32_t>(number % 7 + 1)}}}.payload();
    };
    if (rank.is_attention()) {
      std::uint64_t num_sent = 0;
      Result<void> sent;
      while (num_sent < kMany) {
        sent = rank.control().send_dp_metadata_list(payload(num_sent), Deadline::after(kShort));
        if (!sent) {
          break;
        }
        ++num_sent;
      }
      rank.check_error(sent, ErrorCode::kDeadlineExceeded, {"ffn rank 0"},
                       "a send that nobody takes for 10000 steps");
      rank.post(0, num_sent);
      rank.barrier();
      rank.barrier();
      rank.require(rank.control().send_dp_metadata_list(payload(num_sent), rank.soon()),
                   "a send after the queue was emptied");
      return;
    }
    rank.barrier();
    const std::uint64_t num_sent = rank.board().read(0);
    for (std::uint64_t number = 0; number < num_sent; ++number) {
      const auto received =
          rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "receive");
      rank.require_that(received == payload(number), "a control payload is missing or altered");
    }
    rank.barrier();
    const auto received =
        rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "receive");
    rank.check(received == payload(num_sent), "the payload after the full queue is another one");
  });
}

// Goal: an attention rank that ran out of time in the middle may repeat the call with another
// target. Method: the FFN rank's producer stops in the middle of a large output until the attention
// rank has run out of time in one tensor; it then receives into another, and in place.
void an_interrupted_receive_may_change_its_target(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.hidden_size = 4096;
  spec.limits.max_num_tokens = 64;
  for (const bool then_in_place : {false, true}) {
    run.job(spec, [then_in_place](Rank& rank) {
      const StepPlan plan = even_step(rank, 64);
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        attention.send(0, 0);
        rank.await(0);  // all rows but the last run are there
        rank.check_error(
            attention.try_receive(0, {.into = RecvHow::Into::kSentTensor}, Deadline::after(kShort)),
            ErrorCode::kDeadlineExceeded, {"ffn rank 0", "layer 0", "stage 0"},
            "a receive of a part");
        rank.post(1);
        attention.receive(
            0, 0, {.into = then_in_place ? RecvHow::Into::kInPlace : RecvHow::Into::kOwnBuffer});
        return;
      }
      FfnDriver ffn(rank);
      ffn.begin(plan);
      ffn.receive(0, 0);
      const TensorView buffer = rank.require(
          rank.connector().ffn_output_buffer(ffn.last(0).context), "ffn_output_buffer");
      struct Slow {
        Rank* rank;
        FfnDriver* ffn;
      } slow{&rank, &ffn};
      const auto produce = [](void* argument, TensorView rows, RowRange range) {
        auto& self = *static_cast<Slow*>(argument);
        if (range.first_row + range.num_rows == 64) {
          self.rank->post(0);
          self.rank->board().await(1, 1, Board::Clock::now() + self.rank->patience());
        }
        self.ffn->fill_output(rows, range.first_row, 0, 0);
      };
      rank.require(
          rank.connector().send_ffn_output({.routed_output = buffer}, ffn.last(0).context,
                                           {.source = {&slow, produce}, .deadline = rank.soon()}),
          "send_ffn_output with a slow producer");
    });
  }
}

}  // namespace

std::vector<Case> r6_deadline_cases() {
  return {
      {"R6AWaitForOutputNamesWhatItAwaits",
       a_wait_for_output_names_what_it_awaits,
       {.num_stages = 2}},
      {"R6AWaitForInputNamesWhoIsMissing",
       a_wait_for_input_names_who_is_missing,
       {.num_stages = 2}},
      {"R6APollTakesWhatIsThere", a_poll_takes_what_is_there, {}},
      {"R6AWaitForControlNamesTheSender", a_wait_for_control_names_the_sender, {}},
      {"R6AWaitInInitNamesWhoIsMissing", a_wait_in_init_names_who_is_missing, {}},
      {"R6AWaitInAGatherNamesWhoIsMissing", a_wait_in_a_gather_names_who_is_missing, {}},
      {"R6ARepeatedCallMayDiffer", a_repeated_call_may_differ, {}},
      {"R6AReceiveInVainLeavesNothingOpen", a_receive_in_vain_leaves_nothing_open, {}},
      {"R6AFullControlQueueIsADeadline", a_full_control_queue_is_a_deadline, {}},
      {"R6SinksAreComparedByTheirMembers",
       sinks_are_compared_by_their_members,
       {.in_place_buffers = true, .progressive_rows = true}},
      {"R6AnInterruptedReceiveMayChangeItsTarget",
       an_interrupted_receive_may_change_its_target,
       {.in_place_buffers = true, .progressive_rows = true}},
      {"R6AnInterruptedReceiveGoesOn",
       an_interrupted_receive_goes_on,
       {.in_place_buffers = true, .progressive_rows = true}},
  };
}

}  // namespace afd::conformance
