// P2pAFDConnector with the ranks of a job on several hosts, some of them on one.
#include <cstdlib>

#include "conformance/builtin_under_test.h"
#include "conformance/hosts_under_test.h"

using afd::conformance::builtin_under_test;
using afd::conformance::case_name;
using afd::conformance::ConnectorUnderTest;
using afd::conformance::SuiteHosts;

namespace {

// R11's filter: as p2p_ucx_conformance_test.cc says.
const int no_memory_hooks = ::setenv("UCX_MEM_EVENTS", "no", /*overwrite=*/1);

ConnectorUnderTest connector() {
  static_cast<void>(no_memory_hooks);
  return builtin_under_test("P2pAFDConnector");
}

}  // namespace

TEST(P2pHosts, AreThere) {
  if (!SuiteHosts::get().why_not().empty()) {
    GTEST_SKIP() << "every case on hosts: " << SuiteHosts::get().why_not();
  }
}

// No two ranks of 2A1F are on one host.
INSTANTIATE_TEST_SUITE_P(P2pFar, ConnectorConformance,
                         ::testing::ValuesIn(SuiteHosts::cases(connector(), {0, 1, 2})), case_name);
// In 2A1F the FFN rank has a near and a far peer. In 1A1F both are on one host, and in wider
// layouts there are all kinds of peers.
INSTANTIATE_TEST_SUITE_P(P2pMixed, ConnectorConformance,
                         ::testing::ValuesIn(SuiteHosts::cases(connector(), {0, 0, 1})), case_name);
