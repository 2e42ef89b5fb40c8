// P2pAFDConnector with all ranks on this host, as threads and as forked processes.
#include "conformance/builtin_under_test.h"

using afd::conformance::builtin_under_test;
using afd::conformance::case_name;
using afd::conformance::cases_of;
using afd::conformance::ConnectorUnderTest;

namespace {

/// Ranks that meet on loopback share memory: R11 allows them no system call.
ConnectorUnderTest on_one_host() {
  ConnectorUnderTest connector = builtin_under_test("P2pAFDConnector");
  connector.capabilities.network_calls = false;
  return connector;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(P2p, ConnectorConformance, ::testing::ValuesIn(cases_of(on_one_host())),
                         case_name);
