// What carries messages between hosts: UCX's worker, behind an interface without a type of UCX, so
// that the transport over it stands in this library and UCX in a shared object of its own.
//
// Messages of one endpoint arrive in order, whole, each as a header and bytes. Callbacks run inside
// progress() and the calls below. Nothing here waits.
//
// Threads: one at a time; the transport has a lock. event_fd() from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <afd/result.h>

namespace afd::transport {

/// A message as it arrives. Valid within the call.
struct Arrival {
  std::span<const std::byte> header;
  const std::byte* data = nullptr;  ///< null: it is fetched with Wire::fetch()
  void* descriptor = nullptr;       ///< of one that has to be fetched
  std::uint64_t size_bytes = 0;
};

/// Told of every arrival.
class WireReceiver {
 public:
  /// @return true  a fetch() of it has begun: its descriptor is kept until that has ended
  virtual bool on_arrival(const Arrival& arrival) noexcept = 0;

 protected:
  ~WireReceiver() = default;
};

/// Told of one thing's end.
class WireEnd {
 public:
  /// @param why_not  the wire's words; null: it went well
  virtual void on_end(const char* why_not) noexcept = 0;

 protected:
  ~WireEnd() = default;
};

/// One peer, as a wire knows it.
class WireEndpoint {
 public:
  virtual ~WireEndpoint() = default;
};

class Wire {
 public:
  /// Every endpoint has to be closed before.
  virtual ~Wire() = default;

  /// For the peers: where this wire can be reached. Any bytes, at most 16 KiB.
  virtual const std::string& address() const = 0;

  /// Begins to connect; sends may follow at once.
  /// @param address  as a peer told it
  /// @param broken   told when nothing can be sent any more; stays where it is until close() is
  /// done
  /// @return kUnavailable  the wire's words
  virtual Result<std::unique_ptr<WireEndpoint>> connect(std::string_view address,
                                                        WireEnd& broken) = 0;
  /// Begins to close it: what was not sent is dropped. Repeatable.
  virtual void close(WireEndpoint& endpoint) = 0;
  /// Whether that is done; then the endpoint may go.
  virtual bool is_closed(WireEndpoint& endpoint) = 0;

  /// Sends header and data. Unless the wire is done with both at once they stay untouched until
  /// `end` is told. @return whether it will be
  /// @return kPeerLost  the wire's words: nothing was sent, and `end` is told nothing
  virtual Result<bool> send(WireEndpoint& endpoint, std::span<const std::byte> header,
                            std::span<const std::byte> data, WireEnd& end) = 0;
  /// Fetches an arrival's bytes to `target`; `end` is told, perhaps before the return.
  virtual void fetch(const Arrival& arrival, std::byte* target, WireEnd& end) = 0;

  /// Handles what has come and what can go. @return whether there was something
  virtual bool progress() = 0;

  /// Readable once something has come after a successful arm().
  virtual int event_fd() const = 0;
  /// False: something has come already, or has still to go.
  virtual bool arm() = 0;

  /// Only ways within this host were asked for. What has been sent needs this side no more then,
  /// and a peer's death is not noticed.
  virtual bool is_memory_only() const = 0;
  /// What should travel as one message: large enough that its cost is the bytes', small enough that
  /// the receiver reads the first ones while the last are under way.
  virtual std::uint64_t piece_bytes() const = 0;
  /// "UCX tcp/eth0": what carries messages to that peer. For people.
  virtual std::string describe(const WireEndpoint& endpoint) const = 0;
};

class WireMaker {
 public:
  virtual ~WireMaker() = default;
  /// @return kUnavailable  no device, no memory, no library
  virtual Result<std::unique_ptr<Wire>> make(WireReceiver& receiver) const = 0;
};

}  // namespace afd::transport
