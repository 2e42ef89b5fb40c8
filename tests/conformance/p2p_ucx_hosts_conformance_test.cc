// P2pUcxAFDConnector with every rank of a job on a host of its own, over TCP.
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

ConnectorUnderTest over_tcp() {
  ConnectorUnderTest connector = builtin_under_test("P2pUcxAFDConnector");
  connector.extra_config = R"({"ucx_transports":"tcp","ucx_net_devices":"eth0"})";
  static_cast<void>(no_memory_hooks);
  return connector;
}

}  // namespace

TEST(P2pUcxHosts, AreThere) {
  if (!SuiteHosts::get().why_not().empty()) {
    GTEST_SKIP() << "every case on hosts: " << SuiteHosts::get().why_not();
  }
}

INSTANTIATE_TEST_SUITE_P(P2pUcxHosts, ConnectorConformance,
                         ::testing::ValuesIn(SuiteHosts::cases(over_tcp(), {0, 1, 2})), case_name);
