// The transport between hosts: windows that a wire fills (docs/decisions/0007), and that ranks of
// one host share (docs/decisions/0009).
//
// Every rank has its windows in memory of its own: an FFN rank its channel's, an attention rank a
// mirror of the channel of each FFN rank that it attached. publish() sends the rows as active
// messages, piece by piece; the receiver's handler puts each piece at its place in the window and
// raises the lane's signal there. So receivers poll, read in place and read behind the sender
// exactly as over shared memory.
//
// Progress is made by whoever waits, and a little by whoever publishes: there is no thread.
//
// Ranks that share memory need no wire. Where the options give a way to share windows, a peer whose
// place is this rank's maps this rank's windows and is mapped, as over shared memory: it is *near*.
// The landing memory of a channel is one and the same for near and far peers. A rank without far
// peers drops its wire as soon as all have met and is then a shared-memory transport; one with both
// sleeps where it polls its wire, and near peers wake it through a FIFO.
//
// What strangers send is dropped: every message carries a token that the receiver drew at random
// and told its peers in its blob. What a peer sends that does not fit this rank's windows is
// reported by fault().
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/mapped/waiter.h"
#include "transport/mapped/window.h"
#include "transport/transport.h"
#include "transport/wire.h"

namespace afd::transport {

struct RemoteOptions {
  std::uint32_t world_rank = 0;  ///< of the rank whose transport it is
  /// Asked by create(). Null: only near peers can be reached.
  std::unique_ptr<const WireMaker> wire_maker;
  /// How near peers share windows. Null: all peers are far.
  std::unique_ptr<WindowProvider> shared;
  /// Where windows can be shared: near is whoever has the same (base::shared_place()). Empty:
  /// unknown.
  std::string place;
  WaitPolicy wait{.spin_ns_max = 20'000};  ///< longer than over bare memory: so are the hops
};

/// Opens nothing yet.
std::unique_ptr<Transport> make_remote_transport(RemoteOptions options);

}  // namespace afd::transport
