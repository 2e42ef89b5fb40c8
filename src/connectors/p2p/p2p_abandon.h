// Seams for tests: how a thread plays a dead process, and a clock that need not be waited for.
#pragma once

#include <chrono>

#include <afd/connector.h>

namespace afd::p2p {

/// Leaves the job as a killed process would: without a goodbye, with everything else where it is.
/// The connector has to be one of in_process_connector_class() or p2p_shm_connector_class(), and is
/// closed afterwards as ever. From any thread, also during init.
void abandon_for_tests(ConnectorBase& connector) noexcept;

/// How long an FFN rank waits for the other attention ranks to leave, once the one that sends it
/// its steps has left. Of the same connectors, before the first receive.
void set_leaving_together_for_tests(ConnectorBase& connector,
                                    std::chrono::milliseconds time) noexcept;

}  // namespace afd::p2p
