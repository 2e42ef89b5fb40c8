#include "conformance/conformance.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "conformance/cases.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

/// Why the connector cannot run the case in this mode; empty if it can.
std::string reason_to_leave_out(const Case& subject, const ConnectorUnderTest& connector,
                                Mode mode) {
  const Needs& needs = subject.needs;
  const Capabilities& can = connector.capabilities;
  if (mode == Mode::kForked && !can.cross_process) {
    return "ranks as processes";
  }
  if (mode == Mode::kThreads && connector.hosts) {
    return "ranks of one process";
  }
  if (needs.in_place_buffers && !can.in_place_buffers) {
    return "in_place_buffers";
  }
  if (needs.progressive_rows && !can.progressive_rows) {
    return "progressive_rows";
  }
  if (needs.router_logits && !can.router_logits) {
    return "router_logits";
  }
  if (needs.any_ratio && !can.any_ratio) {
    return "any_ratio";
  }
  if (needs.no_network_calls && can.network_calls) {
    return "transfers without system calls";
  }
  if (needs.num_stages > can.num_stages_max) {
    return std::to_string(needs.num_stages) + " stages";
  }
  if (needs.kills && mode == Mode::kThreads && !connector.abandon) {
    return "ConnectorUnderTest::abandon (threads cannot be killed)";
  }
  return {};
}

}  // namespace

Result<ConnectorUnderTest> from_factory(std::shared_ptr<const ConnectorFactory> factory,
                                        const std::string& connector_name) {
  const Result<const ConnectorClass*> found = factory->get_connector_class(connector_name);
  if (!found) {
    return afd::fail(found.error());
  }
  if (Result<void> available = (*found)->check_available(); !available) {
    return afd::fail(std::move(available).error());
  }
  ConnectorUnderTest connector;
  connector.name = connector_name;
  connector.connector_name = connector_name;
  connector.capabilities = (*found)->capabilities();
  connector.create = [factory](const ConnectorParams& params) {
    return factory->create_connector(params);
  };
  return connector;
}

const std::vector<Case>& all_cases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (auto part :
         {r1_identity_cases, r2_order_cases, r3_no_hidden_wait_cases, r4_borrow_cases,
          r5_in_place_cases, r6_deadline_cases, r7_peer_loss_cases, r8_close_cases,
          r9_all_or_nothing_cases, r10_role_cases, r11_quiet_cases, r12_idle_cases, sweep_cases}) {
      std::ranges::copy(part(), std::back_inserter(all));
    }
    return all;
  }();
  return cases;
}

std::vector<CaseParam> cases_of(const ConnectorUnderTest& connector) {
  std::vector<CaseParam> params;
  for (Mode mode : {Mode::kThreads, Mode::kForked}) {
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer sees nothing across processes, and its run time does not survive fork().
    if (mode == Mode::kForked) {
      continue;
    }
#endif
    for (const Case& subject : all_cases()) {
      const std::string reason = reason_to_leave_out(subject, connector, mode);
      if (reason.empty()) {
        params.push_back({&subject, mode, connector});
      } else if (mode == Mode::kThreads ? !connector.hosts : connector.capabilities.cross_process) {
        std::printf("%s: %s is left out, it needs %s\n", connector.name.c_str(),
                    std::string(subject.name).c_str(), reason.c_str());
      }
    }
  }
  return params;
}

void PrintTo(const CaseParam& param, std::ostream* out) {
  *out << param.connector.name << " with its ranks as "
       << (param.mode == Mode::kThreads ? "threads" : "forked processes");
}

std::string case_name(const ::testing::TestParamInfo<CaseParam>& info) {
  return std::string(info.param.subject->name) +
         (info.param.mode == Mode::kThreads ? "_Threads" : "_Forked");
}

CaseResult run_case(const CaseParam& param) {
  CaseRun run(param.connector, param.mode);
  param.subject->body(run);
  return run.take();
}

// The one test: what it does is its parameter's business.
TEST_P(ConnectorConformance, Keeps) {
  const CaseResult result = run_case(GetParam());
  for (const std::string& failure : result.failures) {
    ADD_FAILURE() << failure;
  }
  if (!result.skipped.empty() && result.failures.empty()) {
    GTEST_SKIP() << result.skipped;
  }
}

// A connector that instantiates nothing is a mistake of its test program, not of this library.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConnectorConformance);

}  // namespace afd::conformance
