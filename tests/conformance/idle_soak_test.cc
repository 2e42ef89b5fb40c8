// A job that has nothing to do for long, and then has: over hosts, so that the session's signs of
// life and what is between the hosts have their say too.
//
// Idles for 8 s, in which a host may be silent for 3. AFD_SOAK_SECONDS says otherwise, for
// scripts/soak: twenty minutes, with the default heartbeat.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "conformance/builtin_under_test.h"
#include "conformance/driver.h"
#include "conformance/harness.h"
#include "conformance/hosts_under_test.h"
#include "conformance/process_state.h"

namespace afd::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Soak {
  seconds idle{8};
  SessionConfig session{.heartbeat_interval = seconds(1), .heartbeat_limit = seconds(3)};
};

Soak soak_asked_for() {
  Soak soak;
  if (const char* asked = std::getenv("AFD_SOAK_SECONDS")) {
    soak.idle = seconds(std::strtol(asked, nullptr, 10));
    soak.session = {};
  }
  return soak;
}

/// What a rank's process may cost while it idles: a spin at the start, and then to look around
/// every now and then. The kernels answer each other's probes without the processes.
std::chrono::microseconds cost_max(seconds idle) {
  constexpr std::chrono::microseconds kEachSecond{20};
  return milliseconds(is_instrumented() ? 200 : 10) + idle.count() * kEachSecond;
}

void transfer_one_layer(Rank& rank, const StepPlan& plan) {
  AttentionDriver attention(rank);
  FfnDriver ffn(rank);
  if (rank.is_attention()) {
    attention.begin(plan);
    attention.send(0, 0);
    attention.receive(0, 0);
  } else {
    ffn.begin(plan);
    ffn.receive(0, 0);
    ffn.send(0, 0);
  }
}

/// Judges what `wait` cost this process, and whether it holds as many descriptors as before.
template <typename Wait>
void idle(Rank& rank, seconds time, const Wait& wait) {
  const std::set<std::string> descriptors = open_descriptors();
  const auto cpu_before = process_cpu_time();
  const auto start = Board::Clock::now();
  wait();
  const auto waited = Board::Clock::now() - start;
  const auto cost =
      std::chrono::duration_cast<std::chrono::microseconds>(process_cpu_time() - cpu_before);
  std::printf("%s idled for %lld s: %lld us of processor time\n", rank.name().c_str(),
              static_cast<long long>(std::chrono::duration_cast<seconds>(waited).count()),
              static_cast<long long>(cost.count()));
  rank.check(waited >= time - milliseconds(500), "did not idle");
  rank.check(cost < cost_max(time),
             "idling cost " + std::to_string(cost.count()) + " us of processor time");
  rank.check(added(descriptors, open_descriptors()).empty(),
             "idling left descriptors: " + added(descriptors, open_descriptors()));
}

/// What the FFN rank waits for while attention rank 0 idles; attention rank 1 has sent its rows and
/// waits for the output.
enum class Awaits : std::uint8_t { kStep, kRows };

void serve_after_idling(Rank& rank, Awaits awaits, seconds time) {
  transfer_one_layer(rank, even_step(rank, 3, 1));
  rank.barrier();
  const StepPlan plan = even_step(rank, 3, 2);
  if (rank.is_ffn()) {
    FfnDriver ffn(rank);
    if (awaits == Awaits::kStep) {
      idle(rank, time, [&] { ffn.begin(plan); });
      ffn.receive(0, 0);
    } else {
      ffn.begin(plan);
      rank.barrier();
      idle(rank, time, [&] { ffn.receive(0, 0); });
    }
    ffn.send(0, 0);
    return;
  }
  AttentionDriver attention(rank);
  const auto begin = [&] {
    attention.begin(plan);
    if (awaits == Awaits::kRows) {
      rank.barrier();
    }
  };
  if (rank.role_rank() == 1) {
    begin();
    attention.send(0, 0);
    idle(rank, time, [&] { attention.receive(0, 0); });
    return;
  }
  if (awaits == Awaits::kRows) {
    begin();
  }
  idle(rank, time, [&] { std::this_thread::sleep_for(time); });
  if (awaits == Awaits::kStep) {
    begin();
  }
  attention.send(0, 0);
  attention.receive(0, 0);
}

class IdleSoakTest : public ::testing::TestWithParam<Awaits> {
 protected:
  void SetUp() override {
    if (!SuiteHosts::get().why_not().empty()) {
      GTEST_SKIP() << SuiteHosts::get().why_not();
    }
  }

  /// The host of each world rank: the FFN rank's first.
  static void run(const std::string& connector_name, const std::vector<std::uint32_t>& layout) {
    const Soak soak = soak_asked_for();
    ConnectorUnderTest connector =
        SuiteHosts::place(builtin_under_test(connector_name), layout, soak.session);
    connector.patience += soak.idle;
    CaseRun run(connector, Mode::kForked);
    run.job({.counts = {2, 1}},
            [&](Rank& rank) { serve_after_idling(rank, GetParam(), soak.idle); });
    for (const std::string& failure : run.take().failures) {
      ADD_FAILURE() << failure;
    }
  }
};

TEST_P(IdleSoakTest, ARequestIsServedOnThreeHosts) {
  run("P2pUcxAFDConnector", {0, 1, 2});
}

TEST_P(IdleSoakTest, ARequestIsServedByANearAndAFarPeer) {
  run("P2pAFDConnector", {0, 0, 1});
}

INSTANTIATE_TEST_SUITE_P(Awaits, IdleSoakTest, ::testing::Values(Awaits::kStep, Awaits::kRows),
                         [](const auto& test) {
                           return test.param == Awaits::kStep ? "AStep" : "Rows";
                         });

}  // namespace
}  // namespace afd::conformance
