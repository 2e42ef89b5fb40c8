// P2pUcxAFDConnector over TCP and over UCX's shared memory: ranks as threads and as forked
// processes.
#include <cstdlib>

#include "conformance/builtin_under_test.h"

using afd::conformance::builtin_under_test;
using afd::conformance::case_name;
using afd::conformance::cases_of;
using afd::conformance::ConnectorUnderTest;

namespace {

// UCX hooks into the C library's memory calls and then calls the kernel where a thread ends, with
// all signals blocked: under R11's filter, which makes a signal of each call, that kills the
// process. Before the library is loaded, which reads it once.
const int no_memory_hooks = ::setenv("UCX_MEM_EVENTS", "no", /*overwrite=*/1);

ConnectorUnderTest over(const char* extra_config) {
  ConnectorUnderTest connector = builtin_under_test("P2pUcxAFDConnector");
  connector.extra_config = extra_config;
  static_cast<void>(no_memory_hooks);
  return connector;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(
    P2pUcxTcp, ConnectorConformance,
    ::testing::ValuesIn(cases_of(over(R"({"ucx_transports":"tcp","ucx_net_devices":"lo"})"))),
    case_name);
INSTANTIATE_TEST_SUITE_P(P2pUcxShm, ConnectorConformance,
                         ::testing::ValuesIn(cases_of(over(R"({"ucx_transports":"posix"})"))),
                         case_name);
