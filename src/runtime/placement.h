// Which processors a rank of a launched job may use.
#pragma once

#include <cstdint>
#include <vector>

#include <afd/topology.h>

#include "runtime/rank.h"

namespace afd::runtime {

/// Where ranks run.
enum class Placement {
  kAnywhere,  ///< Wherever the launcher may.
  /// More ranks than processors: each subgroup (FFN ranks and the attention ranks that they serve)
  /// stays on one, if that gives every processor the same work: a hop then stays within a core.
  /// Every processor gets as many ranks, so that jobs side by side, which do not know of each
  /// other, load all of them alike. Else anywhere: ranks that have a processor each gain nothing
  /// from being tied to it, and lose where another program wants it.
  kAuto,
};

/// Processors for this rank; empty: `allowed`, all of them.
///
/// @param allowed  where the launcher may run, at least one
std::vector<std::uint32_t> processors_of(RankId id, RankCounts counts, Placement placement,
                                         const std::vector<std::uint32_t>& allowed);

}  // namespace afd::runtime
