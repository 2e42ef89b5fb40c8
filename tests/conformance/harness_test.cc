// The harness tells what went wrong in a rank, wherever the rank lives, and never hangs on one.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "conformance/harness.h"
#include "conformance/reference_connector.h"

namespace afd::conformance {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HarnessTest : public ::testing::TestWithParam<Mode> {
 protected:
  CaseResult run(const JobSpec& spec, const std::function<void(Rank& rank)>& body) {
    CaseRun run(connector_, GetParam());
    run.job(spec, body);
    return run.take();
  }
  // Bodies here need no connector of use: each rank makes one and leaves it alone.
  ConnectorUnderTest connector_ = [] {
    ConnectorUnderTest connector = reference_connector();
    connector.patience = std::chrono::milliseconds(500);
    return connector;
  }();
  JobSpec spec_{.counts = {2, 1}, .init = false};
};

TEST_P(HarnessTest, ABodyWithoutFailureLeavesNone) {
  EXPECT_THAT(run(spec_, [](Rank& rank) { rank.barrier(); }).failures, IsEmpty());
}

TEST_P(HarnessTest, AFailureNamesItsRankTextAndPlace) {
  const CaseResult result = run(spec_, [](Rank& rank) {
    if (rank.is_attention() && rank.role_rank() == 1) {
      rank.fail("something is wrong");
    }
  });
  EXPECT_THAT(result.failures, ElementsAre(AllOf(HasSubstr("attention rank 1: something is wrong"),
                                                 HasSubstr("harness_test.cc:"))));
}

TEST_P(HarnessTest, AStoppedRankStopsTheOthersAtTheirBarrier) {
  const CaseResult result = run(spec_, [](Rank& rank) {
    if (rank.is_ffn()) {
      rank.require_that(false, "cannot go on");
    }
    rank.barrier();
    rank.fail("went on");
  });
  EXPECT_THAT(result.failures, ElementsAre(HasSubstr("ffn rank 0: cannot go on")));
}

TEST_P(HarnessTest, ABarrierThatSomebodyMissesIsAFailure) {
  const CaseResult result = run(spec_, [](Rank& rank) {
    if (rank.is_ffn()) {
      rank.board().await(0, 1, Board::Clock::now() + 3 * rank.patience());
    }
    rank.barrier();
  });
  EXPECT_THAT(result.failures, Contains(HasSubstr("did not come to the barrier")));
}

TEST_P(HarnessTest, ABoundThatIsMissedOnceIsNoFailure) {
  int num_jobs = 0;
  JobSpec spec = spec_;
  spec.controller = [&num_jobs](JobControl& control) {
    control.board().post(0, static_cast<std::uint64_t>(++num_jobs));
  };
  const auto body = [](Rank& rank, std::uint64_t keeps_from) {
    rank.await(0);
    if (rank.is_ffn() && rank.board().read(0) < keeps_from) {
      rank.miss_bound("late");
    }
  };
  EXPECT_THAT(run(spec, [&](Rank& rank) { body(rank, 2); }).failures, IsEmpty());
  EXPECT_EQ(num_jobs, 2);
  num_jobs = 0;
  EXPECT_THAT(run(spec, [&](Rank& rank) { body(rank, 100); }).failures,
              ElementsAre(HasSubstr("ffn rank 0: late")));
  EXPECT_EQ(num_jobs, 3);
}

TEST_P(HarnessTest, ASkipIsReported) {
  EXPECT_EQ(run(spec_, [](Rank& rank) { rank.skip("no such device"); }).skipped, "no such device");
}

INSTANTIATE_TEST_SUITE_P(Modes, HarnessTest, ::testing::Values(Mode::kThreads, Mode::kForked),
                         [](const auto& mode) {
                           return mode.param == Mode::kThreads ? "Threads" : "Forked";
                         });

TEST_F(HarnessTest, ACrashOfAForkedRankIsAFailureThatNamesIt) {
  CaseRun run(connector_, Mode::kForked);
  run.job(spec_, [](Rank& rank) {
    if (rank.is_ffn()) {
      rank.fail("said before the crash");
      std::signal(SIGUSR1, SIG_DFL);
      raise(SIGUSR1);
    }
  });
  const CaseResult result = run.take();
  EXPECT_THAT(result.failures, Contains(HasSubstr("ffn rank 0: said before the crash")));
  EXPECT_THAT(result.failures, Contains(HasSubstr("ffn rank 0 ended with signal User defined")));
}

TEST_F(HarnessTest, AKilledVictimIsExpected) {
  CaseRun run(connector_, Mode::kForked);
  JobSpec spec = spec_;
  spec.victim = 0;
  spec.controller = [](JobControl& control) {
    control.wait_asleep(0);
    control.kill(0);
  };
  run.job(spec, [](Rank& rank) {
    if (rank.is_ffn()) {
      rank.die_here();
    }
  });
  EXPECT_THAT(run.take().failures, IsEmpty());
}

}  // namespace
}  // namespace afd::conformance
