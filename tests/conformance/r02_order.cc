// R2: per peer and stage in order; stages are independent of each other.
#include <array>
#include <atomic>
#include <thread>

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

// Goal: one thread of a rank sends while another receives.
// Method: on both sides one thread walks the sends and one the receives of three stages; all that
// they share is the connector and a count per stage of what the other has done.
void one_thread_sends_while_another_receives(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.num_stages = 3;
  spec.limits.num_layers = 200;
  run.job(spec, [](Rank& rank) {
    constexpr std::uint32_t kNumStages = 3;
    constexpr std::uint32_t kNumLayers = 100;
    const StepPlan plan = even_step(rank, 4);
    AttentionDriver attention(rank);
    FfnDriver ffn(rank);
    rank.is_attention() ? attention.begin(plan) : ffn.begin(plan);
    // Layers of a stage whose first call (attention: send, FFN: receive), and whose second, is
    // done.
    std::array<std::atomic<std::uint32_t>, kNumStages> num_first{};
    std::array<std::atomic<std::uint32_t>, kNumStages> num_second{};
    std::atomic<bool> broken{false};
    const auto wait_for = [&](std::atomic<std::uint32_t>& count, std::uint32_t value) {
      while (count.load(std::memory_order_acquire) < value && !broken.load()) {
        std::this_thread::yield();
      }
      return !broken.load();
    };
    const auto walk = [&](bool sends) {
      // The receives go through the stages the other way round.
      for (std::uint32_t layer = 0; layer < kNumLayers; ++layer) {
        for (std::uint32_t i = 0; i < kNumStages; ++i) {
          const std::uint32_t stage = sends ? i : (i + layer) % kNumStages;
          const bool is_first = sends == rank.is_attention();
          if (!(is_first ? wait_for(num_second[stage], layer)
                         : wait_for(num_first[stage], layer + 1))) {
            return;
          }
          if (rank.is_attention()) {
            sends ? attention.send(layer, stage) : attention.receive(layer, stage);
          } else {
            sends ? ffn.send(layer, stage) : ffn.receive(layer, stage);
          }
          (is_first ? num_first : num_second)[stage].fetch_add(1, std::memory_order_release);
        }
      }
    };
    const auto guarded = [&](bool sends) {
      try {
        walk(sends);
      } catch (const RankStopped&) {
        broken.store(true);
      }
    };
    std::thread sender([&] { guarded(true); });
    guarded(false);
    sender.join();
    if (broken.load()) {
      rank.stop();
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
      {"R2OneThreadSendsWhileAnotherReceives",
       one_thread_sends_while_another_receives,
       {.num_stages = 3}},
  };
}

}  // namespace afd::conformance
