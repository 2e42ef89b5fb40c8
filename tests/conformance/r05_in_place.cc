// R5: a view that a receive returned is valid, and does not change, until this rank's next send on
// that stage.
#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

// Goal: a view outlives everything that happens on other stages.
// Method: both sides hold a view of stage 0 while stage 1 goes through eight layers; then each byte
// is checked.
void views_outlive_other_stages(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan{.counts = {{3, 8}, {8, 2}}};
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 0);
      attention.receive(0, 0);
      for (std::uint32_t layer = 0; layer < 8; ++layer) {
        attention.send(layer, 1);
        attention.receive(layer, 1);
        attention.check_output(attention.last_output(0), 0, 0);
      }
      attention.send(1, 0);
      for (std::uint32_t layer = 8; layer < 16; ++layer) {
        attention.send(layer, 1);
        attention.receive(layer, 1);
      }
      attention.receive(1, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(0, 0);
    ffn.send(0, 0);
    for (std::uint32_t layer = 0; layer < 8; ++layer) {
      ffn.receive(layer, 1);
      ffn.send(layer, 1);
    }
    ffn.receive(1, 0);
    for (std::uint32_t layer = 8; layer < 16; ++layer) {
      ffn.receive(layer, 1);
      ffn.send(layer, 1);
      ffn.check_payload(ffn.last(0), 1, 0, {});
    }
    ffn.send(1, 0);
  });
}

// Goal: the last view of a step is valid until the next step's first send on the stage, whatever
// the control plane says meanwhile.
// Method: the next step has other counts and applies on both sides, and runs on stage 1 alone.
void views_outlive_the_next_steps_update(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan first{.step = 1, .counts = {{2, 7}, {1, 1}}};
    const StepPlan second{.step = 2, .counts = {{8, 1}, {8, 8}}};
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(first);
      attention.send(0, 0);
      attention.receive(0, 0);
      const ConstTensorView view = attention.last_output(0);
      const RowKey key = attention.key(RowKey::Part::kOutput, 0, 0);
      attention.begin(second);
      for (std::uint32_t layer = 0; layer < 4; ++layer) {
        attention.send(layer, 1);
        attention.receive(layer, 1);
      }
      const std::optional<std::string> wrong = wrong_rows(view, key);
      rank.check(!wrong, wrong.value_or(""));
      rank.barrier();
      attention.send(0, 0);
      attention.receive(0, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(first);
    ffn.receive(0, 0);
    ffn.send(0, 0);
    ffn.begin(second);
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      ffn.receive(layer, 1);
      ffn.send(layer, 1);
    }
    rank.barrier();
    ffn.receive(0, 0);
    ffn.send(0, 0);
  });
}

// Goal: a view outlives what the other peers of the FFN rank do.
// Method: rank 0 holds its view while rank 1 goes on to the next layer of the same stage, and to
// the next step with other counts.
void views_outlive_other_peers(CaseRun& run) {
  run.job({.counts = {2, 1}}, [](Rank& rank) {
    const StepPlan first{.step = 1, .counts = {{4, 2}}};
    const StepPlan second{.step = 2, .counts = {{1, 8}}};
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(first);
      for (std::uint32_t layer : {0u, 1u}) {
        ffn.receive(layer, 0);
        ffn.send(layer, 0);
      }
      ffn.begin(second);
      ffn.receive(0, 0);
      ffn.send(0, 0);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(first);
    attention.send(0, 0);
    attention.receive(0, 0);
    if (rank.role_rank() == 0) {
      rank.await(0);
      attention.check_output(attention.last_output(0), 0, 0);
      attention.send(1, 0);
    } else {
      attention.send(1, 0);
      rank.post(0);
    }
    attention.receive(1, 0);
    const ConstTensorView view = attention.last_output(0);
    const RowKey key = attention.key(RowKey::Part::kOutput, 1, 0);
    if (rank.role_rank() == 0) {
      rank.await(1);
      const std::optional<std::string> wrong = wrong_rows(view, key);
      rank.check(!wrong, wrong.value_or(""));
      attention.begin(second);
      attention.send(0, 0);
    } else {
      attention.begin(second);
      attention.send(0, 0);
      rank.post(1);
    }
    attention.receive(0, 0);
  });
}

// Goal: a view may be given to the send that ends it: an FFN rank may send back what it received.
// Method: echoes of growing and shrinking shares over many steps, so that a peer that is answered
// early writes its next rows where another peer's old rows stood.
void a_received_view_may_be_sent_back(CaseRun& run) {
  JobSpec spec{.counts = {3, 1}};
  spec.limits.hidden_size = 1024;
  spec.limits.max_num_tokens = 64;
  run.job(spec, [](Rank& rank) {
    constexpr std::int32_t kShares[][3] = {{64, 1, 1}, {1, 64, 1}, {1, 1, 64}, {20, 40, 60}};
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    for (std::uint64_t step = 0; step < 40; ++step) {
      const auto& shares = kShares[step % 4];
      const StepPlan plan{.step = step, .counts = {{shares[0], shares[1], shares[2]}}};
      if (rank.is_attention()) {
        attention.begin(plan);
        attention.send(0, 0);
        attention.receive(0, 0, {.into = RecvHow::Into::kOwnBuffer, .echoed = true});
      } else {
        ffn.begin(plan);
        ffn.receive(0, 0);
        ffn.send(0, 0, {.from = SendHow::From::kReceivedView});
      }
    }
  });
}

// Goal: the in-place buffers are the landing memory: written there and sent, the bytes arrive; and
// writing there harms no view that is still valid.
// Method: both sides write in place, beforehand and run by run; the views of the other stage are
// checked after each write.
void in_place_buffers_carry_the_rows(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan{.counts = {{3, 8}, {8, 2}}};
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    for (std::uint32_t layer = 0; layer < 8; ++layer) {
      const SendHow how{.from =
                            layer % 2 == 0 ? SendHow::From::kInPlace : SendHow::From::kFromSource};
      if (rank.is_attention()) {
        if (layer == 0) {
          attention.begin(plan);
          const Result<TensorView> buffer = rank.connector().attn_send_buffer(0, attention.rows(0));
          rank.check_ok(buffer, "attn_send_buffer where A >= F");
        }
        attention.send(layer, 0, how);
        if (layer > 0) {
          attention.check_output(attention.last_output(1), layer - 1, 1);
        }
        attention.send(layer, 1, how);
        attention.receive(layer, 0);
        attention.receive(layer, 1);
        attention.check_output(attention.last_output(0), layer, 0);
      } else {
        if (layer == 0) {
          ffn.begin(plan);
        }
        ffn.receive(layer, 0);
        ffn.receive(layer, 1);
        rank.check_ok(rank.connector().ffn_output_buffer(ffn.last(0).context),
                      "ffn_output_buffer where A >= F");
        ffn.send(layer, 0, how);
        ffn.check_payload(ffn.last(1), layer, 1, {});
        ffn.send(layer, 1, how);
      }
    }
  });
}

}  // namespace

std::vector<Case> r5_in_place_cases() {
  return {
      {"R5ViewsOutliveOtherStages", views_outlive_other_stages, {.num_stages = 2}},
      {"R5ViewsOutliveTheNextStepsUpdate", views_outlive_the_next_steps_update, {.num_stages = 2}},
      {"R5ViewsOutliveOtherPeers", views_outlive_other_peers, {}},
      {"R5AReceivedViewMayBeSentBack", a_received_view_may_be_sent_back, {}},
      {"R5InPlaceBuffersCarryTheRows",
       in_place_buffers_carry_the_rows,
       {.in_place_buffers = true, .num_stages = 2}},
  };
}

}  // namespace afd::conformance
