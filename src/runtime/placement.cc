#include "runtime/placement.h"

#include <algorithm>

namespace afd::runtime {
namespace {

/// Every subgroup has as many ranks, every processor as many subgroups, and more than two
/// ranks have to share one.
bool subgroups_are_even(RankCounts counts, std::uint32_t num_processors) {
  const auto [fewer, more] = std::minmax(counts.num_attention_ranks, counts.num_ffn_ranks);
  return more % fewer == 0 && fewer % num_processors == 0 && more + fewer > 2 * num_processors;
}

}  // namespace

std::vector<std::uint32_t> processors_of(RankId id, RankCounts counts, Placement placement,
                                         const std::vector<std::uint32_t>& allowed) {
  const auto num_processors = static_cast<std::uint32_t>(allowed.size());
  const Result<RankMapping> mapping =
      build_rank_mapping(counts.num_attention_ranks, counts.num_ffn_ranks, id.role, id.role_rank);
  if (placement == Placement::kAnywhere || num_processors < 2 || !mapping) {
    return {};
  }
  if (subgroups_are_even(counts, num_processors)) {
    return {allowed[mapping->subgroup_index % num_processors]};
  }
  return {};
}

}  // namespace afd::runtime
