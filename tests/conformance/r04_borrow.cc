// R4: a tensor given to a send is borrowed until the matching receive on that stage returns, or
// close(): its owner leaves it alone, and so does the connector. After that it is the owner's
// again, and nothing that the connector still hands out depends on it.
#include <cstring>
#include <string>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

void scribble(TensorView tensor) {
  std::memset(tensor.data, 0xee, static_cast<std::size_t>(tensor.size_bytes()));
}

// Goal: a connector never writes into what it borrows.
// Method: both sides compare their sent tensors with a copy, at every point of the cycle up to the
// matching receive.
void sent_tensors_are_left_untouched(CaseRun& run) {
  const bool logits = run.connector().capabilities.router_logits;
  run.job({.counts = run.fan_in(), .compute_gate_on_attention = logits}, [logits](Rank& rank) {
    const StepPlan plan = even_step(rank, 5);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      for (std::uint32_t layer = 0; layer < 3; ++layer) {
        attention.send(layer, 0, {.router_logits = logits});
        const std::string sent = bytes_of(attention.hidden(0));
        const std::string sent_logits = bytes_of(attention.logits(0));
        attention.send(layer, 1, {.router_logits = logits});
        rank.barrier();  // the FFN rank has received and answered
        rank.check(bytes_of(attention.hidden(0)) == sent, "the sent hidden states changed");
        attention.receive(layer, 1);
        attention.receive(
            layer, 0, {.into = layer == 0 ? RecvHow::Into::kInPlace : RecvHow::Into::kOwnBuffer});
        rank.check(bytes_of(attention.hidden(0)) == sent,
                   "the sent hidden states changed in a receive into another tensor");
        rank.check(bytes_of(attention.logits(0)) == sent_logits, "the sent router logits changed");
      }
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    std::string answered;
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      ffn.receive(layer, 0, {.router_logits = logits});
      if (layer > 0) {
        rank.check(bytes_of(ffn.output(0)) == answered, "the sent output changed");
      }
      ffn.send(layer, 0);
      answered = bytes_of(ffn.output(0));
      ffn.receive(layer, 1, {.router_logits = logits});
      ffn.send(layer, 1);
      rank.barrier();
    }
  });
}

// Goal: when the matching receive has returned, the sent tensor is its owner's again.
// Method: it is overwritten at once; the output received in place still has its bytes, and so have
// the transfers of the other stage.
void the_owner_may_overwrite_after_the_receive(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 6);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 1);
      for (std::uint32_t layer = 0; layer < 4; ++layer) {
        attention.send(layer, 0);
        attention.receive(layer, 0);
        scribble(attention.hidden(0));
        attention.check_output(attention.last_output(0), layer, 0);
      }
      attention.receive(0, 1);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(0, 1);
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      ffn.receive(layer, 0);
      // The receive ended the borrow of the last output.
      scribble(ffn.output(0));
      ffn.check_payload(ffn.last(0), layer, 0, {});
      ffn.send(layer, 0);
    }
    ffn.check_payload(ffn.last(1), 0, 1, {});
    ffn.send(0, 1);
  });
}

// Goal: close() ends the borrow: nothing that a peer holds depends on the tensor any more.
// Method: the FFN rank holds a view; the attention rank closes and overwrites what it had sent; the
// view still has its bytes (R5).
void close_ends_the_borrow(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 6);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 0);
      rank.barrier();
      rank.connector().close();
      scribble(attention.hidden(0));
      rank.barrier();
      rank.barrier();  // the memory stays until the FFN rank has looked
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(0, 0);
    rank.barrier();
    rank.barrier();
    ffn.check_payload(ffn.last(0), 0, 0, {});
    rank.barrier();
  });
}

// Goal: the output may be received into the tensor that was sent, as the reference does.
// Method: ref_tensor is the borrowed tensor, for several layers and ratios.
void the_output_may_replace_what_was_sent(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan{.counts = {{2, 7}}};
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      for (std::uint32_t layer = 0; layer < 3; ++layer) {
        attention.send(layer, 0);
        attention.receive(layer, 0, {.into = RecvHow::Into::kSentTensor});
      }
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    for (std::uint32_t layer = 0; layer < 3; ++layer) {
      ffn.receive(layer, 0);
      ffn.send(layer, 0);
    }
  });
}

}  // namespace

std::vector<Case> r4_borrow_cases() {
  return {
      {"R4SentTensorsAreLeftUntouched", sent_tensors_are_left_untouched, {.num_stages = 2}},
      {"R4TheOwnerMayOverwriteAfterTheReceive",
       the_owner_may_overwrite_after_the_receive,
       {.num_stages = 2}},
      {"R4CloseEndsTheBorrow", close_ends_the_borrow, {}},
      {"R4TheOutputMayReplaceWhatWasSent", the_output_may_replace_what_was_sent, {}},
  };
}

}  // namespace afd::conformance
