// Takes a connector out of builtin_connectors(), as the CLI and the bindings do.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <afd/factory.h>

#include "conformance/conformance.h"
#include "connectors/p2p/p2p_abandon.h"

namespace afd::conformance {

/// One of the P2P connectors. Ends the test program where the connector cannot be made: a suite
/// that ran no test must not pass.
inline ConnectorUnderTest builtin_under_test(const std::string& connector_name) {
  Result<ConnectorUnderTest> connector =
      from_factory(std::make_shared<const ConnectorFactory>(builtin_connectors()), connector_name);
  if (!connector) {
    std::fprintf(stderr, "%s: %s\n", connector_name.c_str(), connector.error().message.c_str());
    std::exit(1);
  }
  connector->abandon = &p2p::abandon_for_tests;
  return *std::move(connector);
}

}  // namespace afd::conformance
