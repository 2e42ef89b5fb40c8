// The transport between hosts: windows that a wire fills (docs/decisions/0007).
//
// Every rank has its windows in memory of its own: an FFN rank its channel's, an attention rank a
// mirror of the channel of each FFN rank that it attached. publish() sends the rows as active
// messages, piece by piece; the receiver's handler puts each piece at its place in the window and
// raises the lane's signal there. So receivers poll, read in place and read behind the sender
// exactly as over shared memory.
//
// Progress is made by whoever waits, and a little by whoever publishes: there is no thread.
//
// What strangers send is dropped: every message carries a token that the receiver drew at random
// and told its peers in its blob. What a peer sends that does not fit this rank's windows is
// reported by fault().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/mapped/waiter.h"
#include "transport/transport.h"
#include "transport/wire.h"

namespace afd::transport {

struct RemoteOptions {
  std::uint32_t world_rank = 0;                 ///< of the rank whose transport it is
  std::unique_ptr<const WireMaker> wire_maker;  ///< asked by create()
  WaitPolicy wait{.spin_ns_max = 20'000};       ///< longer than over bare memory: so are the hops
};

/// Opens nothing yet.
std::unique_ptr<Transport> make_remote_transport(RemoteOptions options);

}  // namespace afd::transport
