#include "runtime/placement.h"

#include <afd/topology.h>

#include "base/cpu.h"

namespace afd::runtime {

std::vector<std::uint32_t> processors_of(RankId id, const AfdConfig& afd, Placement placement) {
  if (placement == Placement::kAnywhere) {
    return {};
  }
  const Result<RankMapping> mapping =
      build_rank_mapping(afd.num_attention_ranks, afd.num_ffn_ranks, id.role, id.role_rank);
  const std::vector<std::uint32_t> allowed = base::allowed_cpus();
  if (!mapping) {
    return {};
  }
  return {allowed[mapping->subgroup_index % allowed.size()]};
}

}  // namespace afd::runtime
