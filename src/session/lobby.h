// Rank 0's front door: takes connections, and keeps each until it has said hello.
//
// Strangers are connections that have not; anybody who can reach the port can make them. They are
// bounded in time (hello_timeout, from the connection's first moment to its whole hello), in bytes
// (one hello) and in number, and one that does not speak the protocol is dropped. Where there is a
// secret, nothing but a nonce and a proof is read of a stranger that has not proved that it knows
// it; what it said otherwise is answered with a code, or not at all.
//
// When there are too many, one gives way: of the host that has the most of them here, so that a
// flood from one host costs ranks on others nothing; of that host's, one that has said least, and
// has nothing more to read; of those that have said a nonce, any, so that a flood that does so,
// too, cannot count on having been the last. A rank that gave way tries again.
//
// Refusals are logged where there is a secret: the first, and then a number each minute at most.
//
// The listener stays open for the life of the session, so that a second job cannot take the port
// and a late duplicate hears why.
//
// Threads: as Link.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include <afd/deadline.h>
#include <afd/result.h>

#include "session/address.h"
#include "session/authentication.h"
#include "session/connection.h"
#include "session/event_loop.h"
#include "session/session_frame.h"

namespace afd::session {

class Lobby {
 public:
  using StrangerId = std::uint64_t;
  /// Told of a hello of any version. Answers with exactly one of drop(), refuse() and take().
  using OnHello = std::function<void(StrangerId id, const FrameBuffer::Frame& hello)>;

  struct Options {
    std::chrono::milliseconds hello_timeout{0};
    const SessionConfig& network;
    const Credentials& credentials;
  };

  Lobby(EventLoop& loop, base::Fd listener, Options options, OnHello on_hello);

  /// Begins to take connections.
  void open();
  std::uint16_t port() const { return port_of(listener_.fd()); }

  void drop(StrangerId id);
  /// Tells it why; it stays until it has gone, or its time is up.
  void refuse(StrangerId id, const Error& error);
  /// The connection is the caller's from now on.
  std::unique_ptr<Connection> take(StrangerId id);

  /// Tells everybody who is here, those who have just come included.
  void refuse_all(const Error& error);
  void finish(Deadline deadline) noexcept;

 private:
  // In the order in which they give way.
  enum class Stage { kRefused, kSilent, kProving, kProven };
  struct Stranger {
    std::unique_ptr<Connection> connection;
    std::unique_ptr<LoopTimer> timer;
    std::string host;
    Stage stage = Stage::kSilent;
    ConnectionKeys keys{};  // once it is proving
  };
  using Strangers = std::map<StrangerId, Stranger>;

  void on_connections();
  void add(base::Fd fd);
  void make_room();
  Strangers::iterator next_to_go();
  void on_readable(StrangerId id);
  // Each: whether more of the stranger's frames may be handled.
  bool handle(StrangerId id, Stranger& stranger, const FrameBuffer::Frame& frame);
  bool take_nonce(Stranger& stranger, const FrameBuffer::Frame& frame);
  bool take_proof(Stranger& stranger, const FrameBuffer::Frame& frame);
  bool deny(Stranger& stranger, Denial denial, std::string_view why);
  void log_refusal(const Stranger& stranger, std::string_view why);

  EventLoop& loop_;
  const Options options_;
  const OnHello on_hello_;
  LoopSocket listener_;
  LoopTimer accept_again_;
  StrangerId next_id_ = 0;
  Strangers strangers_;  // oldest first
  std::minstd_rand random_{std::random_device()()};
  Deadline log_not_before_ = Deadline::now();
  std::uint64_t num_unlogged_ = 0;
};

}  // namespace afd::session
