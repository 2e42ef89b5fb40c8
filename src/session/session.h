// The ranks of one job meet at one address, compare what must be equal, and watch each other.
//
//   1. join():      world rank 0 listens on host:port, the others connect, in any order and with
//                   retries; each says hello. A rank whose values differ from rank 0's, or
//                   that is there already, is refused; the others wait on
//   2. blob(rank):  what every rank told the others (where its window is)
//   3. barrier():   everybody got this far
//   4. the connection stays: its end means that the rank is dead (kLost), a goodbye that it left
//                   (kLeft), or left without having finished (kGaveUp)
//
// The topology is a star: rank 0 relays blobs, barriers, gathers and the news of losses.
//
//   Order.     Rank 0 tells every rank of a loss before it handles or relays anything that another
//              rank did later, and before it tells its own callers; before it relays a goodbye it
//              looks at every other connection for a loss. So all ranks name the rank that died
//              first, also where others leave because of it.
//   Loss.      Any loss ends the job's collectives: barriers and gathers that are blocked, or come
//              later, fail with the first lost rank's name.
//   Leaving.   A rank that left is not lost. A barrier then fails, since it needs every rank; a
//              gather fails once a rank of its role left.
//   Rank 0.    When rank 0 itself left, the others may go on, but nothing is relayed any more.
//              Every collective fails ("ffn rank 0 left, and it relays barriers and gathers") and
//              the states of the other ranks stay what they were. When rank 0 died, it is the rank
//              that every other names, unless it had announced an earlier loss.
//   Stopping.  A stopped rank (SIGSTOP) is present: no session counts time after the join, but for
//              the callers' deadlines and the 0.1 s of close(). Its users may: the P2P connector
//              gives attention ranks 5 s to leave together (contract, R7), and an init that cannot
//              map a peer's memory 1 s to hear of that peer's end.
//
//   Hosts.     Beyond loopback the kernels of two hosts show each other that they are there, with
//              probes on the idle connection; a host that gives no sign of life for the heartbeat
//              limit is lost with its ranks, and named. A stopped process is no dead host: its
//              kernel answers.
//
// Security: authentication.h. Who goes beyond loopback has a shared secret, or says aloud that it
// goes without.
//
// Threads: join() on one thread; then all methods from any thread. One background thread of its
// own, which ends in close(). A child that was forked must not touch its parent's session.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
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
  std::string host = "127.0.0.1";  ///< rank 0's: an address, or a name
  std::uint16_t port = 1239;       ///< rank 0 may have 0: it takes a free one, and tells it
  /// Rank 0: told, on the thread that joins, the port at which it listens. May be empty.
  std::function<void(std::uint16_t port)> on_listening;
  Role role = Role::kAttention;
  std::uint32_t role_rank = 0;
  std::uint32_t world_rank = 0;
  RankCounts counts;
  /// Beyond loopback: where rank 0 listens, how ranks know each other, when a host is lost.
  SessionConfig network;
  /// Compared value by value with rank 0's; A, F and the protocol version are always compared. At
  /// most 64 pairs; keys of 1 to 64 bytes, each once; values of at most 1 KiB; printable ASCII.
  std::vector<std::pair<std::string, std::string>> must_match;
  /// What this rank tells every other; at most 64 KiB.
  std::string blob;
  /// Told every `waiting_interval`, on the thread that joins, who is missing: "attention rank 1,
  /// ffn rank 0". A rank that cannot reach rank 0 yet knows of no other. May be empty.
  std::function<void(std::string_view missing)> on_waiting;
  std::chrono::milliseconds waiting_interval{1'000};
  /// Ends a join that is under way with kFailedPrecondition "closed".
  std::stop_token stop;
  /// Test only: ends it the same way, but tells nobody, as a process that dies meanwhile.
  std::stop_token abandon;
  /// How long rank 0 keeps a connection that has not said hello.
  std::chrono::milliseconds hello_timeout{5'000};
};

enum class PeerState : std::uint8_t {
  kPresent,
  kLeft,    ///< Said goodbye.
  kGaveUp,  ///< Said goodbye, and that it did not finish (give_up).
  kLost,    ///< Its connection ended without one.
};

/// With a goodbye of either kind.
constexpr bool has_left(PeerState state) {
  return state == PeerState::kLeft || state == PeerState::kGaveUp;
}

/// What join() refuses of where and how to meet, for those who want to know before they load a
/// model: the settings themselves, a host beyond loopback without a secret, the secret's file.
/// @param listens  of rank 0, which listens at `host` or `network.bind_host`
/// @return kInvalidArgument
Result<void> validate_meeting(const std::string& host, std::uint16_t port, bool listens,
                              const SessionConfig& network);

/// "attention rank 1", "ffn rank 0": how every message names a rank (FFN-first world ranks).
std::string rank_name(std::uint32_t world_rank, RankCounts counts);

class Session {
 public:
  /// `world_rank` has to be FFN-first, as in RankMapping.
  ///
  /// A rank that leaves while the others wait (its deadline passed, it was stopped) counts as
  /// missing again; when rank 0's deadline passes, all fail with its error.
  ///
  /// @return kDeadlineExceeded    "attention rank 1, ffn rank 0 did not arrive within 10 s at ...",
  ///                              apart from "attention rank 0 arrived and left", which was there
  ///                              and gave up before this rank did
  ///                              Rank 0's has why ranks that came were refused, too
  ///         kProtocolMismatch    "hidden_size differs: attention rank 0 has 2048, ffn rank 0 has
  ///                              4096": at once, on the rank that differs from rank 0; the others
  ///                              go on waiting for the right one. A peer that does not speak this
  ///                              protocol
  ///         kInvalidArgument     the secret: its file, or "the shared secret differs from ffn rank
  ///                              0's"; the others go on waiting
  ///         kInvalidArgument     "attention rank 0 is already present": the duplicate is refused,
  ///                              the job goes on waiting for the right one; the port is in use
  ///                              (named); options out of range
  ///         kPeerLost            a rank died while the others were still arriving, on all ranks
  ///         kFailedPrecondition  "closed": `stop` was requested
  ///         kUnavailable         no file descriptor or thread left
  static Result<std::unique_ptr<Session>> join(JoinOptions options, Deadline deadline);
  /// Calls close().
  ~Session();

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Equal on all ranks of this join, different for every join; never 0.
  std::uint32_t epoch() const noexcept;
  /// Empty for a rank out of range.
  std::string_view blob(std::uint32_t world_rank) const;
  /// Where a rank says that it can be reached, the preferred address first. Of rank 0, where it
  /// says nothing, to where this rank's connection leads. None for a rank out of range.
  std::span<const std::string> peer_addresses(std::uint32_t world_rank) const;
  /// The first of them, or empty.
  std::string_view peer_host(std::uint32_t world_rank) const;

  /// Waits until every rank called it as often. Calls of several threads run one after the other.
  ///
  /// @return kDeadlineExceeded    "attention rank 1 did not reach the barrier within 2 s"; a repeat
  ///                              waits for the same barrier
  ///         kPeerLost            a rank was lost, or left
  ///         kFailedPrecondition  "closed"
  Result<void> barrier(Deadline deadline);

  /// Contributions of all ranks of this rank's role, by role_rank. Collective over the role; each
  /// contributes at most 64 KiB. A rank alone in its role gets its own back, without a message.
  ///
  /// @return kDeadlineExceeded    a repeat, with the same contribution, waits for the same gather
  ///         kInvalidArgument     more than 64 KiB, or a repeat with another contribution
  ///         kPeerLost            a rank was lost, or one of this role left
  ///         kFailedPrecondition  "closed"
  Result<std::vector<std::string>> all_gather(std::string_view mine, Deadline deadline);

  /// One atomic load: fit for a spin loop. Its own rank is present.
  PeerState peer_state(std::uint32_t world_rank) const noexcept;
  /// The rank that was the first to give up, if any did.
  std::optional<std::uint32_t> first_to_give_up() const;
  /// "attention rank 1 gave up: REASON", or "attention rank 1 has left the job". Of a rank that
  /// left.
  std::string departure_text(std::uint32_t world_rank) const;
  /// The error of the first rank that was lost: "ffn rank 1 lost: its connection ended",
  /// "attention rank 1 at 10.0.0.2 lost: no sign of life for 5 s". No error while none was; a rank
  /// that left is none.
  Result<void> check_peers() const;

  /// Called on the session's thread after any peer's state changed; must not block and must not
  /// call close(). Set once, before the first barrier; called right away, on this thread, if a
  /// state changed already. Not called after close().
  void set_on_change(std::function<void()> on_change);

  /// Says goodbye, wakes blocked calls (kFailedPrecondition "closed"), joins the thread, closes
  /// every socket. Waits at most 0.1 s for a peer whose socket is full; such a peer may take this
  /// rank for lost. Repeatable.
  void close() noexcept;

  /// The same, but the goodbye says that this rank did not finish, and why: what is still under way
  /// will not come to its end. `reason` is cut to 4 KiB of printable ASCII.
  void give_up(std::string_view reason) noexcept;

  /// Test only: ends the connection without a goodbye, as a dead process would.
  void abandon() noexcept;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace afd::session
