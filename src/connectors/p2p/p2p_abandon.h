// A seam for tests: how a thread plays a dead process.
#pragma once

#include <afd/connector.h>

namespace afd::p2p {

/// Leaves the job as a killed process would: without a goodbye, with everything else where it is.
/// The connector has to be one of in_process_connector_class() or p2p_shm_connector_class(), and is
/// closed afterwards as ever. From any thread, also during init.
void abandon_for_tests(ConnectorBase& connector) noexcept;

}  // namespace afd::p2p
