// The connector that the suite itself is judged by keeps every rule.
#include "conformance/reference_connector.h"

using afd::conformance::case_name;
using afd::conformance::cases_of;
using afd::conformance::reference_connector;

INSTANTIATE_TEST_SUITE_P(Reference, ConnectorConformance,
                         ::testing::ValuesIn(cases_of(reference_connector())), case_name);
