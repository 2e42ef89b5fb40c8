// Every other rank's end of the star: one connection to rank 0.
//
//   connecting --> (proving) --hello--> greeted --waiting or peer--> accepted --start--> joined
//
// Where there is a secret, this rank proves that it knows it, and wants rank 0's proof, before it
// says hello.
//
// Until it is accepted, whatever ends the attempt is a reason to try again: rank 0 may not be there
// yet, or be of a job that is still ending. After that the connection's end is rank 0's death.
//
// Threads: as Link.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "session/address.h"
#include "session/authentication.h"
#include "session/connection.h"
#include "session/event_loop.h"
#include "session/link.h"
#include "session/session.h"

namespace afd::session {

class Member final : public Link {
 public:
  /// @param addresses  of rank 0's host, tried one after the other; not empty
  Member(EventLoop& loop, const std::vector<Address>& addresses, const JoinOptions& options,
         const Credentials& credentials, LinkEvents& events);

  void start() override;
  Error give_up(Error error) override;
  void arrive(std::uint32_t round) override;
  void contribute(std::uint32_t round, std::string_view contribution) override;
  void query(Query query) override;
  void leave(const Goodbye& goodbye) noexcept override;

 private:
  enum class Phase { kConnecting, kProving, kGreeted, kAccepted, kJoined, kOver };

  void connect();
  void on_connected();
  void greet();
  void try_again(std::string_view why);
  void on_readable();
  void handle(const FrameBuffer::Frame& frame);
  void handle_while_proving(const FrameBuffer::Frame& frame);
  void take_nonce(const FrameBuffer::Frame& frame);
  void on_denied(const FrameBuffer::Frame& frame);
  void handle_while_joining(const FrameBuffer::Frame& frame);
  void handle_after_joining(const FrameBuffer::Frame& frame);
  void begin(std::uint32_t epoch);
  void on_malformed(const Error& error);
  void on_ended();
  void fail_join(Error error);
  void send(std::string frame);
  std::uint32_t num_ranks() const;

  EventLoop& loop_;
  const std::vector<Address>& addresses_;
  const std::string& there_;  // "node7:1239", for messages
  std::size_t num_attempts_ = 0;
  const JoinOptions& options_;
  const Credentials& credentials_;
  LinkEvents& events_;
  LoopTimer timer_;
  std::chrono::milliseconds delay_;
  std::minstd_rand random_{std::random_device()()};
  Phase phase_ = Phase::kConnecting;
  std::unique_ptr<Connection> connection_;
  Nonce nonce_{};  // of this attempt
  ConnectionKeys keys_{};
  std::vector<std::optional<PeerBlob>> blobs_;  // by world rank, while they come
  std::vector<std::string> hub_addresses_;      // where this rank's connection leads
  // The round that this rank has arrived in and that is not over.
  std::optional<std::uint32_t> open_barrier_;
  std::optional<std::uint32_t> open_gather_;
};

}  // namespace afd::session
