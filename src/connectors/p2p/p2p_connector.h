// The P2P connectors: one attention rank exchanges tensors with the FFN ranks of its subgroup, over
// any transport of landing windows and signals.
#pragma once

#include <afd/factory.h>

namespace afd::p2p {

/// `P2pAFDConnector`: ranks are processes on any hosts; shared memory between those of one host,
/// UCX between the others.
const ConnectorClass* p2p_connector_class();

/// `InProcessAFDConnector`: ranks are threads of one process.
const ConnectorClass* in_process_connector_class();

/// `P2pShmAFDConnector`: ranks are processes (or threads) of one machine.
const ConnectorClass* p2p_shm_connector_class();

}  // namespace afd::p2p
