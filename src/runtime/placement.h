// Which processors a rank of a launched job may use.
#pragma once

#include <cstdint>
#include <vector>

#include <afd/config.h>

#include "runtime/rank.h"

namespace afd::runtime {

/// Where ranks run.
enum class Placement {
  kAnywhere,   ///< Wherever the launcher may.
  kSubgroups,  ///< Each subgroup (FFN ranks and the attention ranks that they serve) on a processor
               ///< of its own, as far as they go.
};

/// Processors for this rank; empty: those of the launcher.
std::vector<std::uint32_t> processors_of(RankId id, const AfdConfig& afd, Placement placement);

}  // namespace afd::runtime
