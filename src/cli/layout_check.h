// Whether a connector takes a layout that the topology's own rules allow.
#pragma once

#include <string>

#include <afd/config.h>
#include <afd/factory.h>

namespace afd::cli {

/// "P2pAFDConnector refuses this layout: ...", as `afd run` would find out. Empty: it takes it,
/// or this cannot be told here, since the connector's library is not there.
std::string layout_note(const ConnectorFactory& factory, const AfdConfig& config);

}  // namespace afd::cli
