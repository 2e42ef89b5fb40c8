// R2: per peer and stage in order; stages are independent of each other.
#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

// Goal: the layers of a stage arrive in the order in which they were sent.
// Method: 60 layers on two stages, each named by its content.
void layers_arrive_in_order(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    constexpr std::uint32_t kNumLayers = 60;
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      for (std::uint32_t layer = 0; layer < kNumLayers; ++layer) {
        attention.send(layer, 0);
        attention.send(layer, 1);
        attention.receive(layer, 0);
        attention.receive(layer, 1);
      }
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    for (std::uint32_t layer = 0; layer < kNumLayers; ++layer) {
      for (std::uint32_t stage : {0u, 1u}) {
        ffn.receive(layer, stage);
        ffn.send(layer, stage);
      }
    }
  });
}

// Goal: a stage may be received and answered before one that was sent earlier.
// Method: stage 0 is sent first; both sides serve stage 1 first.
void stages_may_overtake(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(7, 0);
      attention.send(7, 1);
      attention.receive(7, 1);
      attention.receive(7, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    ffn.receive(7, 1);
    ffn.receive(7, 0);
    ffn.send(7, 0);
    ffn.send(7, 1);
  });
}

// Goal: a stage that stands still does not hold another one up.
// Method: stage 0 stays sent and unreceived while stage 1 goes through ten layers.
void a_stage_may_run_ahead(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      attention.send(0, 0);
      for (std::uint32_t layer = 0; layer < 10; ++layer) {
        attention.send(layer, 1);
        attention.receive(layer, 1);
      }
      attention.receive(0, 0);
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    for (std::uint32_t layer = 0; layer < 10; ++layer) {
      ffn.receive(layer, 1);
      ffn.send(layer, 1);
    }
    ffn.receive(0, 0);
    ffn.send(0, 0);
  });
}

// Goal: fan-in is in peer order whatever arrives first.
// Method: three attention ranks send in every one of several orders, held by the board.
void fan_in_is_in_peer_order(CaseRun& run) {
  run.job({.counts = {3, 1}}, [](Rank& rank) {
    constexpr std::uint32_t kOrders[][3] = {{2, 1, 0}, {1, 2, 0}, {0, 2, 1}, {1, 0, 2}};
    const StepPlan plan{.counts = {{1, 4, 2}}};
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      for (std::uint32_t layer = 0; layer < 4; ++layer) {
        ffn.receive(layer, 0);
        ffn.send(layer, 0);
      }
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    std::uint64_t turn = 0;
    for (std::uint32_t layer = 0; layer < 4; ++layer) {
      for (std::uint32_t sender : kOrders[layer]) {
        if (sender == rank.role_rank()) {
          rank.await(0, turn);
          attention.send(layer, 0);
          rank.post(0, turn + 1);
        }
        ++turn;
      }
      attention.receive(layer, 0);
    }
  });
}

// Goal: control payloads arrive in order, several under way at once.
// Method: five different payloads are sent before the first is received.
void control_payloads_arrive_in_order(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const auto payload = [](std::int32_t number) {
      ControlPayload made = StepPlan{.counts = {{number}}}.payload();
      made.is_warmup = number % 2 == 0;
      made.is_profile = number == 3;
      return made;
    };
    for (std::int32_t number = 1; number <= 5; ++number) {
      if (rank.is_attention()) {
        rank.require(rank.control().send_dp_metadata_list(payload(number), rank.soon()), "send");
      }
    }
    rank.barrier();
    for (std::int32_t number = 1; number <= 5 && rank.is_ffn(); ++number) {
      const auto received =
          rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "receive");
      rank.check(received == payload(number),
                 "control payload " + std::to_string(number) + " is another one");
    }
  });
}

}  // namespace

std::vector<Case> r2_order_cases() {
  return {
      {"R2LayersOfAStageArriveInOrder", layers_arrive_in_order, {.num_stages = 2}},
      {"R2StagesMayOvertakeEachOther", stages_may_overtake, {.num_stages = 2}},
      {"R2AStageMayRunAheadOfAnother", a_stage_may_run_ahead, {.num_stages = 2}},
      {"R2FanInIsInPeerOrderWhateverArrivesFirst", fan_in_is_in_peer_order, {}},
      {"R2ControlPayloadsArriveInOrder", control_payloads_arrive_in_order, {}},
  };
}

}  // namespace afd::conformance
