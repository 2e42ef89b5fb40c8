// The ranks of one job meet at one address, compare what must be equal, and watch each other.
//
//   1. join():      world rank 0 listens on host:port, the others connect (in any order, with
//   retries);
//                   each says hello; differences and duplicates end the join on all sides
//   2. blob(rank):  what every rank told the others (where its window is)
//   3. barrier():   everybody got this far
//   4. the connection stays: its end means that the rank is dead (kLost), a goodbye that it left
//   (kLeft)
//
// The topology is a star: rank 0 relays blobs, barriers, gathers and the news of losses. A loss
// that rank 0 announces is seen by every rank before anything that rank 0 or another rank does in
// reaction to it, so all ranks name the rank that died first.
//
// Threads: join() on one thread; then all methods from any thread. One background thread of its
// own, which ends in close().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <afd/config.h>
#include <afd/deadline.h>
#include <afd/result.h>
#include <afd/topology.h>

namespace afd::session {

struct JoinOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 1239;
  Role role = Role::kAttention;
  std::uint32_t role_rank = 0;
  std::uint32_t world_rank = 0;
  RankCounts counts;
  /// Compared value by value with rank 0's; A, F and the protocol version are always compared.
  std::vector<std::pair<std::string, std::string>> must_match;
  /// What this rank tells every other; at most 64 KiB.
  std::string blob;
  /// Told about once a second who is missing. May be empty.
  std::function<void(std::string_view missing)> on_waiting;
  /// Ends a join that is under way with kFailedPrecondition "closed".
  std::stop_token stop;
};

enum class PeerState : std::uint8_t {
  kPresent,
  kLeft,  ///< Said goodbye.
  kLost,  ///< Its connection ended without one.
};

/// "attention rank 1", "ffn rank 0": how every message names a rank (FFN-first world ranks).
std::string rank_name(std::uint32_t world_rank, RankCounts counts);

class Session {
 public:
  /// @return kDeadlineExceeded   "attention rank 1, ffn rank 0 did not arrive within 10 s at ..."
  ///         kProtocolMismatch   "hidden_size differs: attention rank 0 has 2048, ffn rank 0 has
  ///         4096";
  ///                             a peer that does not speak this protocol
  ///         kInvalidArgument    "attention rank 0 is already present": the duplicate is refused,
  ///         the
  ///                             job goes on waiting for the right one; the port is in use (named)
  ///         kPeerLost           a rank died while the others were still arriving
  static Result<std::unique_ptr<Session>> join(JoinOptions options, Deadline deadline);
  /// Calls close().
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Equal on all ranks of this join, different for every join; never 0.
  std::uint32_t epoch() const noexcept;
  std::string_view blob(std::uint32_t world_rank) const;

  /// Waits until every rank called it as often. @return kDeadlineExceeded (who is missing),
  /// kPeerLost
  Result<void> barrier(Deadline deadline);

  /// Contributions of all ranks of this rank's role, by role_rank. Collective over the role.
  Result<std::vector<std::string>> all_gather(std::string_view mine, Deadline deadline);

  /// One atomic load: fit for a spin loop.
  PeerState peer_state(std::uint32_t world_rank) const noexcept;
  /// The error of the first rank that was lost: "ffn rank 1 lost: its connection ended". No error
  /// while none was.
  Result<void> check_peers() const;

  /// Called on the session's thread after any peer's state changed; must not block. Set once,
  /// before the first barrier; may be called right away if a state changed already. Not called
  /// after close().
  void set_on_change(std::function<void()> on_change);

  /// Says goodbye, wakes blocked calls (kFailedPrecondition "closed"), joins the thread.
  /// Repeatable.
  void close() noexcept;

  /// Test only: ends the connection without a goodbye, as a dead process would.
  void abandon() noexcept;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace afd::session
