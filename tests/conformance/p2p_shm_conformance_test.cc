// P2pShmAFDConnector: ranks as threads and as forked processes.
#include "conformance/builtin_under_test.h"

using afd::conformance::builtin_under_test;
using afd::conformance::case_name;
using afd::conformance::cases_of;

INSTANTIATE_TEST_SUITE_P(P2pShm, ConnectorConformance,
                         ::testing::ValuesIn(cases_of(builtin_under_test("P2pShmAFDConnector"))),
                         case_name);
