// Places of many ranks, as `afd topology` lists them.
#pragma once

#include <cstdint>

#include <afd/topology.h>

namespace afd {

/// As build_rank_mapping(), with subgroup_ranks empty: filled in for each rank of a subgroup of n
/// they would take n * n steps.
Result<RankMapping> build_rank_mapping_without_members(std::int64_t num_attention_ranks,
                                                       std::int64_t num_ffn_ranks, Role role,
                                                       std::int64_t role_rank);

}  // namespace afd
