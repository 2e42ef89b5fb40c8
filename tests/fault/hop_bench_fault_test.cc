// `afd bench hop` whose other half dies: both spin without a way to sleep, so nobody else would
// ever end it.
#include <signal.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// The first child of a process, or -1.
pid_t child_of(pid_t parent) {
  const std::string pid = std::to_string(parent);
  std::ifstream file("/proc/" + pid + "/task/" + pid + "/children");
  pid_t child = -1;
  file >> child;
  return file ? child : -1;
}

TEST(HopBenchFaultTest, AHalfThatIsKilledEndsTheOther) {
  // Where they stand when one dies is chance: in a meeting, a floor's spin, or the connector.
  for (int trial = 0; trial < 12; ++trial) {
    Program bench({AFD_BINARY, "bench", "hop", "--sizes", "64", "--samples", "200000"});
    const auto until = std::chrono::steady_clock::now() + seconds(20);
    pid_t child = -1;
    while ((child = child_of(bench.pid())) < 0 && !bench.has_ended() &&
           std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (bench.has_ended()) {
      const Ended ended = bench.wait(seconds(1));
      ASSERT_NE(ended.err.find("needs two processors"), std::string::npos) << describe(ended);
      GTEST_SKIP() << "bench hop needs two processors";
    }
    ASSERT_GT(child, 0);
    std::this_thread::sleep_for(milliseconds(200 + 37 * trial));
    // The other stands where it waits for this one by the time that it dies.
    ASSERT_EQ(::kill(child, SIGSTOP), 0);
    EXPECT_TRUE(await_state(child, 'T', seconds(10)));
    std::this_thread::sleep_for(milliseconds(50));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    const Ended ended = bench.wait(seconds(10));
    ASSERT_EQ(ended.exit_code, 3) << "trial " << trial << ": " << describe(ended);
    EXPECT_NE(ended.err.find("afd bench hop: "), std::string::npos) << describe(ended);
  }
}

}  // namespace
}  // namespace afd::testing
