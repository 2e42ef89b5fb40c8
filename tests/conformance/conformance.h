// The conformance suite of the connector contract (include/afd/connector.h, docs/contract.md).
//
// One body of tests, R1 to R12, sweeps and the order of the golden data path, for every connector,
// ours or a plug-in's. A connector joins in a few lines:
//
//   #include "conformance/conformance.h"
//
//   INSTANTIATE_TEST_SUITE_P(
//       MyConnector, ConnectorConformance,
//       ::testing::ValuesIn(afd::conformance::cases_of(my_connector_under_test())),
//       afd::conformance::case_name);
//
// and links afd_conformance_suite, an OBJECT library (from a static one the linker would drop the
// tests). A connector that is a shared object needs no code at all: `afd_conformance --library
// libmine.so --connector MyConnector` runs the suite on it.
//
// Every case runs with its ranks as threads of one process and, where capabilities().cross_process
// is set, once more with its ranks as forked processes. These may live on several hosts
// (ConnectorUnderTest::hosts).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <afd/config.h>
#include <afd/connector.h>
#include <afd/factory.h>

namespace afd::conformance {

/// Hosts that the ranks of a job live on.
struct HostsUnderTest {
  /// Moves the calling process to its rank's host, before the rank makes its connector.
  std::function<void(std::uint32_t world_rank)> enter;
  /// Where world rank 0 listens, as the others reach it: "10.77.0.1". IPv4.
  std::string address;
  /// How they meet: a secret, or `insecure`.
  SessionConfig session;
};

/// A connector that is to be judged, and what the suite cannot ask it.
struct ConnectorUnderTest {
  /// Prefix of messages; letters and digits.
  std::string name;
  /// Makes one rank's connector, with `params.config.connector` already right or ignored.
  std::function<Result<std::unique_ptr<ConnectorBase>>(const ConnectorParams& params)> create;
  Capabilities capabilities;
  /// What `config.connector` says; the extra settings of each rank.
  std::string connector_name;
  std::string extra_config = "{}";
  /// None: all ranks are on this host. With hosts they are forked processes in every case.
  std::optional<HostsUnderTest> hosts{};
  /// Leaves everything as a dead process would, without a goodbye. May be empty: then R7 is shown
  /// with killed processes alone. Called from any thread.
  std::function<void(ConnectorBase& connector)> abandon;
  /// How long a call may take that ought to return at once, before the suite calls it hanging.
  std::chrono::milliseconds patience{20'000};
  /// Of the sweeps; 0: another one in every run. A failing sweep prints its seed.
  std::uint64_t seed = 0;
};

/// Names a connector of a factory. The factory is shared by all ranks that the suite makes.
/// @return kInvalidArgument, kUnavailable  as ConnectorFactory::get_connector_class
Result<ConnectorUnderTest> from_factory(std::shared_ptr<const ConnectorFactory> factory,
                                        const std::string& connector_name);

/// Where the ranks of a job live.
enum class Mode : std::uint8_t { kThreads, kForked };

class CaseRun;

/// What a case needs of a connector beyond the rules; without it the case does not exist for it.
struct Needs {
  bool in_place_buffers = false;
  bool progressive_rows = false;
  bool router_logits = false;
  bool any_ratio = false;
  bool kills = false;             ///< Forked ranks, or threads and ConnectorUnderTest::abandon.
  bool no_network_calls = false;  ///< A connector whose transfers make no system call.
  std::uint32_t num_stages = 1;
};

/// One test of the suite: a claim that starts with its rule, and a body that collects failures.
struct Case {
  std::string_view name;  ///< "R3BothStagesCanBeSentBeforeEitherIsReceived"
  void (*body)(CaseRun& run);
  Needs needs;
};

/// All cases, in the order of the rules.
const std::vector<Case>& all_cases();

/// A case for one connector and mode: the parameter of the suite.
struct CaseParam {
  const Case* subject = nullptr;
  Mode mode = Mode::kThreads;
  ConnectorUnderTest connector;
};

/// Every case that this connector can run, in every mode that it can do. Prints what it leaves out.
std::vector<CaseParam> cases_of(const ConnectorUnderTest& connector);

/// What GoogleTest prints of a failing test's parameter.
void PrintTo(const CaseParam& param, std::ostream* out);

/// "R3BothStagesCanBeSentBeforeEitherIsReceived_Forked".
std::string case_name(const ::testing::TestParamInfo<CaseParam>& info);

struct CaseResult {
  std::vector<std::string> failures;
  /// Bounds of time that were missed: failures, unless a repeated job keeps them. A busy machine
  /// misses some, a slow connector all.
  std::vector<std::string> missed_bounds;
  std::string skipped;  ///< Why it could not say anything here; empty if it did.
};

/// Runs one case and reports instead of failing: how broken connectors are shown to be caught.
CaseResult run_case(const CaseParam& param);

}  // namespace afd::conformance

class ConnectorConformance : public ::testing::TestWithParam<afd::conformance::CaseParam> {};
