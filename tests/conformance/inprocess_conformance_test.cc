// InProcessAFDConnector: the twin of every other connector, its ranks threads of one process.
#include "conformance/builtin_under_test.h"

using afd::conformance::builtin_under_test;
using afd::conformance::case_name;
using afd::conformance::cases_of;

INSTANTIATE_TEST_SUITE_P(InProcess, ConnectorConformance,
                         ::testing::ValuesIn(cases_of(builtin_under_test("InProcessAFDConnector"))),
                         case_name);
