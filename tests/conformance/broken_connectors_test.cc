// The suite notices. For every rule there are connectors that break that rule and nothing else on
// purpose (reference_connector.h); at least one test of exactly that rule has to fail on each of
// them.
//
// Threads only: that forked ranks are judged by the same bodies is the harness's test.
#include <cctype>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/harness.h"
#include "conformance/quiet.h"
#include "conformance/reference_connector.h"

namespace afd::conformance {
namespace {

constexpr std::size_t kNumRules = 12;

/// "R11MakesASystemCall" -> "R11".
std::string rule_of(std::string_view name) {
  std::size_t end = 1;
  while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) {
    ++end;
  }
  return std::string(name.substr(0, end));
}

std::vector<Fault> all_faults() {
  std::vector<Fault> faults;
  for (int fault = 1; fault <= static_cast<int>(Fault::kR12SpinsForEver); ++fault) {
    faults.push_back(static_cast<Fault>(fault));
  }
  return faults;
}

class BrokenConnectorTest : public ::testing::TestWithParam<Fault> {};

TEST_P(BrokenConnectorTest, IsCaughtByATestOfItsRule) {
  const ConnectorUnderTest connector = reference_connector(GetParam());
  const std::string rule = rule_of(to_string(GetParam()));
  if (rule == "R11" && !quiet_counters_work()) {
    GTEST_SKIP() << "this build does not count allocations, locks and system calls";
  }
  std::string kept;
  for (const CaseParam& param : cases_of(connector)) {
    if (rule_of(param.subject->name) != rule) {
      continue;
    }
    const CaseResult result = run_case(param);
    if (!result.failures.empty()) {
      std::printf("%s says: %s\n", std::string(param.subject->name).c_str(),
                  result.failures.front().c_str());
      return;
    }
    kept += "\n  " + std::string(param.subject->name) +
            (result.skipped.empty() ? "" : " (skipped: " + result.skipped + ")");
  }
  // On a machine that is never calm nothing can be said about spinning.
  if (GetParam() == Fault::kR11YieldsWhileItSpins && kept.find("skipped") != std::string::npos) {
    GTEST_SKIP() << "no test of the rule could be run to its end:" << kept;
  }
  ADD_FAILURE() << "no test of " << rule << " noticed:" << kept;
}

INSTANTIATE_TEST_SUITE_P(Reference, BrokenConnectorTest, ::testing::ValuesIn(all_faults()),
                         [](const auto& fault) { return std::string(to_string(fault.param)); });

TEST(BrokenConnectorsTest, SinksWithoutBuffersAreNoBreachOfQuiet) {
  Capabilities capabilities = reference_connector().capabilities;
  capabilities.in_place_buffers = false;
  capabilities.progressive_rows = true;
  const ConnectorUnderTest connector = reference_connector(Fault::kNone, capabilities);
  std::size_t num_run = 0;
  for (const CaseParam& param : cases_of(connector)) {
    if (param.subject->name == std::string_view("R11AThousandTransfersAreQuiet")) {
      const CaseResult result = run_case(param);
      EXPECT_TRUE(result.failures.empty()) << result.failures.front();
      ++num_run;
    }
  }
  EXPECT_EQ(num_run, 1u);
}

TEST(BrokenConnectorsTest, ThereIsOneForEveryRule) {
  for (std::size_t rule = 1; rule <= kNumRules; ++rule) {
    const std::string name = "R" + std::to_string(rule);
    std::size_t num_faults = 0;
    for (Fault fault : all_faults()) {
      num_faults += rule_of(to_string(fault)) == name ? 1 : 0;
    }
    EXPECT_GE(num_faults, 1u) << name;
    std::size_t num_cases = 0;
    for (const Case& subject : all_cases()) {
      num_cases += rule_of(subject.name) == name ? 1 : 0;
    }
    EXPECT_GE(num_cases, 1u) << name;
  }
}

}  // namespace
}  // namespace afd::conformance
