// What the session's tests share: free ports, ranks by name, strangers on the port.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <afd/deadline.h>
#include <afd/result.h>

#include "base/fd.h"
#include "session/authentication.h"
#include "session/session.h"

namespace afd::session::testing {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr RankCounts k1A1F{.num_attention_ranks = 1, .num_ffn_ranks = 1};
inline constexpr RankCounts k2A1F{.num_attention_ranks = 2, .num_ffn_ranks = 1};
inline constexpr RankCounts k2A2F{.num_attention_ranks = 2, .num_ffn_ranks = 2};

// A Result that is this error, to the letter. Ends the test function where it is none.
#define EXPECT_FAILS(result, wanted_code, wanted_message) \
  do {                                                    \
    const auto& failing = (result);                       \
    ASSERT_FALSE(failing);                                \
    EXPECT_EQ(failing.error().code, wanted_code);         \
    EXPECT_EQ(failing.error().message, wanted_message);   \
  } while (false)

/// A port on 127.0.0.1 that nobody listens on, outside the range from which the kernel takes the
/// ports of outgoing connections.
std::uint16_t free_port();

/// Long enough for a slow machine under a sanitizer; no test waits for it to pass.
inline Deadline soon() {
  return Deadline::after(seconds(60));
}

/// Options of one rank. The blob is its name.
JoinOptions rank_options(std::uint32_t world_rank, RankCounts counts, std::uint16_t port);

using Joined = Result<std::unique_ptr<Session>>;

/// Joins on threads and keeps the results by world rank.
class Job {
 public:
  explicit Job(RankCounts counts)
      : counts_(counts), port_(free_port()), results_(num_ranks()), threads_(num_ranks()) {}
  ~Job() { wait(); }

  RankCounts counts() const { return counts_; }
  std::uint16_t port() const { return port_; }
  std::uint32_t num_ranks() const { return counts_.num_attention_ranks + counts_.num_ffn_ranks; }

  JoinOptions options(std::uint32_t world_rank) const {
    return rank_options(world_rank, counts_, port_);
  }
  void start(std::uint32_t world_rank, Deadline deadline = soon()) {
    start(options(world_rank), deadline);
  }
  void start(JoinOptions options, Deadline deadline = soon());
  void start_all();
  /// Until every started rank's join has returned.
  void wait();
  /// After wait().
  Joined& result(std::uint32_t world_rank) { return *results_[world_rank]; }
  Session& operator[](std::uint32_t world_rank) { return **result(world_rank); }

 private:
  RankCounts counts_;
  std::uint16_t port_;
  std::vector<std::unique_ptr<Joined>> results_;
  std::vector<std::thread> threads_;
};

/// Polls until `holds`, at most a minute. False: it did not come to hold.
bool eventually(const std::function<bool()>& holds);

/// A blocking TCP connection to 127.0.0.1:port, retried until something listens. `source`: the
/// local address, for a stranger from elsewhere: "127.0.0.2".
base::Fd connect_raw(std::uint16_t port, const char* source = nullptr);
/// To another host, once.
base::Fd connect_raw_to(const std::string& host, std::uint16_t port);
/// The same with a socket that is there already.
void connect_raw_with(const base::Fd& fd, std::uint16_t port);
/// Listens on 127.0.0.1:port.
base::Fd listen_raw(std::uint16_t port);
void send_raw(const base::Fd& fd, std::string_view bytes);
/// Reads until the other side ends the connection.
std::string read_to_end(const base::Fd& fd);

/// Exactly so many bytes; fewer where the other side ended the connection.
std::string read_exactly(const base::Fd& fd, std::size_t bytes);
/// One frame, header and payload, and as many bytes of a seal.
std::string read_frame(const base::Fd& fd, std::size_t seal_bytes = 0);

/// A rank that speaks by hand with rank 0 of a job that has a secret.
class RawProver {
 public:
  RawProver(std::uint16_t port, Secret secret) : fd_(connect_raw(port)), secret_(secret) {}
  const base::Fd& fd() const { return fd_; }
  /// Both nonces have been said.
  void exchange_nonces(const Nonce& mine = {7});
  /// The proof has been said and rank 0's has come: it is right.
  bool prove();
  const ConnectionKeys& keys() const { return keys_; }
  /// Sends a frame with its seal.
  void send(const std::string& frame) { send_raw(fd_, frame + outgoing_.seal(frame)); }
  void send_with_seal(const std::string& frame, const std::string& seal) {
    send_raw(fd_, frame + seal);
  }
  FrameSeal& outgoing() { return outgoing_; }
  /// The next frame of rank 0's, without its seal, which is checked.
  std::string receive();

 private:
  base::Fd fd_;
  Secret secret_;
  ConnectionKeys keys_{};
  FrameSeal outgoing_{Proof{}};
  FrameSeal incoming_{Proof{}};
};

/// Connections accepted on 127.0.0.1:port of whose end nothing has arrived, whether or not anybody
/// has looked. The kernel may take its time under load.
std::size_t num_live_connections(std::uint16_t port);

std::size_t num_open_fds();
std::size_t num_threads();
/// Waits for it: the kernel lists a thread for a moment after it has been joined.
bool has_num_threads(std::size_t wanted);

}  // namespace afd::session::testing
