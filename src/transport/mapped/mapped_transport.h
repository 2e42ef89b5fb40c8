// A transport over memory that both ends map. How the memory is made and found is the provider's
// business: that is all that the in-process and the shared-memory transport differ in.
#pragma once

#include <memory>

#include "transport/mapped/waiter.h"
#include "transport/mapped/window.h"
#include "transport/transport.h"

namespace afd::transport {

std::unique_ptr<Transport> make_mapped_transport(std::unique_ptr<WindowProvider> provider,
                                                 WaitPolicy policy);

}  // namespace afd::transport
