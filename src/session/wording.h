// Words that the session's parts share.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <vector>

#include <afd/deadline.h>
#include <afd/topology.h>

namespace afd::session {

/// "attention rank 1, ffn rank 0".
std::string rank_names(const std::vector<std::uint32_t>& world_ranks, RankCounts counts);

/// "10 s", "1.5 s", "250 ms", "7 ms": two digits or so, since a deadline was made a little before
/// the wait began, which may have been over by then: "0 ms".
std::string duration_text(Deadline::Clock::duration duration);

/// "attention rank 1", and where it is if that is another host: "attention rank 1 at 10.0.0.2".
/// @param addresses  the rank's, or none
std::string rank_at_host(std::uint32_t world_rank, RankCounts counts,
                         const std::vector<std::string>& addresses);

}  // namespace afd::session
