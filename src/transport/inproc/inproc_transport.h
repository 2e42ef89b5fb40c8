// The transport between ranks that are threads of one process: the same windows and the same code
// as over shared memory, in private memory that ranks find by an unguessable token.
#pragma once

#include <memory>

#include "transport/mapped/waiter.h"
#include "transport/transport.h"

namespace afd::transport {

struct InprocOptions {
  WaitPolicy wait;
};

std::unique_ptr<Transport> make_inproc_transport(InprocOptions options = {});

}  // namespace afd::transport
