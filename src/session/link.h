// How one rank reaches the others, and what it hears from them.
//
//     Session  -- Link -->       Hub (world rank 0)  or  Member (every other rank)
//     Session  <-- LinkEvents --
//
// Networks come in here: the session above knows of hosts only that messages name them.
//
// Threads: everything with the session's mutex held, on the loop's thread or a caller's. An event
// may be raised from within a call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "session/session_frame.h"

namespace afd::session {

/// What a goodbye means for those who hear of it.
inline Gone departure_of(std::uint32_t world_rank, const Goodbye& goodbye) {
  return {.world_rank = world_rank,
          .how = goodbye.gave_up ? Departure::kGaveUp : Departure::kLeft,
          .reason = goodbye.reason};
}

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;

  /// Everybody is there. By world rank, each with the address or two at which it can be reached.
  virtual void joined(std::uint32_t epoch, std::vector<PeerBlob> peers) = 0;
  /// The join is over, for all ranks that could be told.
  virtual void join_failed(Error error) = 0;
  /// Who has not arrived (yet), and during the join why this rank knows no better: "connection
  /// refused", or empty.
  virtual void missing(const Waiting& waiting, std::string_view why) = 0;
  /// During the join, on rank 0: why ranks that came were refused, each once; those of them that
  /// have come rightly since are out again. Empty: nobody is.
  virtual void refused(std::string_view refusals) = 0;
  virtual void barrier_released(std::uint32_t round) = 0;
  virtual void gathered(Gathered gathered) = 0;
  /// After joined(). All ranks that hear of a loss hear of it in the same order.
  virtual void gone(const Gone& gone) = 0;
};

class Link {
 public:
  virtual ~Link() = default;

  /// Begins the join.
  virtual void start() = 0;
  /// Ends the join that is under way because of this rank: its deadline, or its caller's wish.
  /// Returns the error with which it ends, which may have another cause already.
  virtual Error give_up(Error error) = 0;

  virtual void arrive(std::uint32_t round) = 0;
  virtual void contribute(std::uint32_t round, std::string_view contribution) = 0;
  /// Asks who is missing: a missing() event now and on every change, until the round is complete.
  virtual void query(Query query) = 0;
  /// Says this goodbye. Takes a bounded time, whatever the peers do. Nothing may be called after
  /// it.
  virtual void leave(const Goodbye& goodbye) noexcept = 0;
};

}  // namespace afd::session
