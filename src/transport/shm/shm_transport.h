// The transport between processes of one machine: windows in /dev/shm.
//
// A window's memory has a name only from create() to seal(). Peers are processes of the same user
// and are trusted not to shrink a segment; what they write into it is checked where it is used.
#pragma once

#include <memory>

#include "transport/mapped/waiter.h"
#include "transport/mapped/window.h"
#include "transport/transport.h"

namespace afd::transport {

struct ShmOptions {
  WaitPolicy wait;
};

/// Makes and finds windows in /dev/shm.
std::unique_ptr<WindowProvider> make_shm_provider();

std::unique_ptr<Transport> make_shm_transport(ShmOptions options = {});

}  // namespace afd::transport
