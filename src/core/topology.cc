#include "core/rank_mapping.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace afd {
namespace {

/// A run of consecutive role ranks.
struct Block {
  std::uint32_t first = 0;
  std::uint32_t size = 0;
};

/// The ranks r of `num_ranks` with floor(r * num_blocks / num_ranks) == block_idx.
Block block_of(std::uint32_t block_idx, std::uint32_t num_blocks, std::uint32_t num_ranks) {
  const auto first_of = [&](std::uint64_t block) {
    return static_cast<std::uint32_t>((block * num_ranks + num_blocks - 1) / num_blocks);
  };
  const std::uint32_t first = first_of(block_idx);
  return {first, first_of(std::uint64_t{block_idx} + 1) - first};
}

std::uint32_t block_index(std::uint32_t rank, std::uint32_t num_blocks, std::uint32_t num_ranks) {
  return static_cast<std::uint32_t>(std::uint64_t{rank} * num_blocks / num_ranks);
}

std::vector<std::uint32_t> ranks_of(Block block, std::uint32_t offset = 0) {
  std::vector<std::uint32_t> ranks(block.size);
  std::iota(ranks.begin(), ranks.end(), block.first + offset);
  return ranks;
}

Result<void> check_role_rank(std::int64_t role_rank, std::int64_t role_size, Role role) {
  if (role_rank < 0) {
    return fail(ErrorCode::kInvalidArgument,
                "AFD role rank must be non-negative, got " + std::to_string(role_rank));
  }
  if (role_rank >= role_size) {
    const std::string where = role == Role::kAttention
                                  ? "Attention role rank must be within attention size"
                                  : "FFN role rank must be within FFN size";
    return fail(ErrorCode::kInvalidArgument, where + " (rank=" + std::to_string(role_rank) +
                                                 ", size=" + std::to_string(role_size) + ")");
  }
  return {};
}

Result<void> check_count(std::int64_t count, const char* name) {
  if (count <= 0) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(name) + " must be positive, got " + std::to_string(count));
  }
  if (count > kRanksMax) {
    return fail(ErrorCode::kInvalidArgument, std::string(name) + " must be at most " +
                                                 std::to_string(kRanksMax) + ", got " +
                                                 std::to_string(count));
  }
  return {};
}

}  // namespace

Result<void> validate_topology(std::int64_t num_attention_ranks, std::int64_t num_ffn_ranks) {
  Result<void> checked = check_count(num_attention_ranks, "num_attention_ranks");
  return checked ? check_count(num_ffn_ranks, "num_ffn_ranks") : checked;
}

Result<void> validate_strict_topology(std::int64_t num_attention_ranks,
                                      std::int64_t num_ffn_ranks) {
  const std::string attention = std::to_string(num_attention_ranks);
  const std::string ffn = std::to_string(num_ffn_ranks);
  if (num_attention_ranks < num_ffn_ranks) {
    return fail(
        ErrorCode::kInvalidArgument,
        "P2pNcclAFDConnector currently requires num_attention_ranks >= num_ffn_ranks, got " +
            attention + " < " + ffn);
  }
  if (num_ffn_ranks == 0) {
    return fail(ErrorCode::kInvalidArgument, "num_ffn_ranks must be positive, got 0");
  }
  // -1 divides everything, and the smallest integer % -1 overflows.
  if (num_ffn_ranks != -1 && num_attention_ranks % num_ffn_ranks != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "P2pNcclAFDConnector currently requires num_attention_ranks to be a multiple of "
                "num_ffn_ranks, got " +
                    attention + " and " + ffn);
  }
  return {};
}

Result<RankMapping> build_rank_mapping(std::int64_t num_attention_ranks, std::int64_t num_ffn_ranks,
                                       Role role, std::int64_t role_rank) {
  Result<RankMapping> built =
      build_rank_mapping_without_members(num_attention_ranks, num_ffn_ranks, role, role_rank);
  if (!built) {
    return built;
  }
  const std::uint32_t ffn_size = built->counts.num_ffn_ranks;
  const std::uint32_t larger_size = std::max(built->counts.num_attention_ranks, ffn_size);
  const Block block = block_of(built->subgroup_index, built->min_size, larger_size);
  if (built->counts.num_attention_ranks < ffn_size) {
    built->subgroup_ranks = ranks_of(block);
    built->subgroup_ranks.push_back(ffn_size + built->subgroup_index);
  } else {
    built->subgroup_ranks = ranks_of(block, ffn_size);
    built->subgroup_ranks.insert(built->subgroup_ranks.begin(), built->subgroup_index);
  }
  return built;
}

Result<RankMapping> build_rank_mapping_without_members(std::int64_t num_attention_ranks,
                                                       std::int64_t num_ffn_ranks, Role role,
                                                       std::int64_t role_rank) {
  if (Result<void> checked = validate_topology(num_attention_ranks, num_ffn_ranks); !checked) {
    return fail(std::move(checked).error());
  }
  const bool is_attention = role == Role::kAttention;
  const std::int64_t role_size = is_attention ? num_attention_ranks : num_ffn_ranks;
  if (Result<void> checked = check_role_rank(role_rank, role_size, role); !checked) {
    return fail(std::move(checked).error());
  }

  const auto attention_size = static_cast<std::uint32_t>(num_attention_ranks);
  const auto ffn_size = static_cast<std::uint32_t>(num_ffn_ranks);
  RankMapping mapping;
  mapping.role = role;
  mapping.role_rank = static_cast<std::uint32_t>(role_rank);
  mapping.world_rank = is_attention ? ffn_size + mapping.role_rank : mapping.role_rank;
  mapping.p2p_rank = mapping.world_rank;
  mapping.counts = {attention_size, ffn_size};
  mapping.min_size = std::min(attention_size, ffn_size);

  // Each subgroup has one rank of the smaller role, its hub, and a block of the larger one.
  const bool attention_is_hub = attention_size < ffn_size;
  const bool is_hub = is_attention == attention_is_hub;
  const std::uint32_t larger_size = std::max(attention_size, ffn_size);
  mapping.subgroup_index =
      is_hub ? mapping.role_rank : block_index(mapping.role_rank, mapping.min_size, larger_size);
  const Block block = block_of(mapping.subgroup_index, mapping.min_size, larger_size);
  if (is_hub) {
    mapping.peers = ranks_of(block);
  } else {
    mapping.peers = {mapping.subgroup_index};
  }
  if (attention_is_hub) {
    mapping.rank_in_subgroup = is_hub ? block.size : mapping.role_rank - block.first;
  } else {
    mapping.rank_in_subgroup = is_hub ? 0 : 1 + mapping.role_rank - block.first;
  }

  mapping.participates_in_dp_metadata_group = !is_attention || mapping.role_rank < mapping.min_size;
  if (!is_attention) {
    mapping.dp_metadata_source = mapping.role_rank % mapping.min_size;
  } else if (mapping.participates_in_dp_metadata_group) {
    for (std::uint32_t k = mapping.role_rank; k < ffn_size; k += mapping.min_size) {
      mapping.dp_metadata_destinations.push_back(k);
    }
  }
  return mapping;
}

std::uint32_t rows_for_peer(std::uint32_t num_rows, std::uint32_t peer_idx,
                            std::uint32_t num_peers) {
  if (peer_idx >= num_peers) {
    return 0;
  }
  return num_rows / num_peers + (peer_idx < num_rows % num_peers ? 1 : 0);
}

Result<std::uint32_t> resolve_role_rank(const ParallelCoordinates& coordinates, Role role,
                                        RankCounts counts) {
  // A rank of a dimension of size one is not read: engines leave anything there.
  const std::int64_t dp_rank =
      coordinates.data_parallel_size > 1 ? coordinates.data_parallel_rank : 0;
  const std::int64_t pcp_rank =
      coordinates.prefill_context_parallel_size > 1 ? coordinates.pcp_rank : 0;
  const std::int64_t tp_rank = coordinates.tensor_parallel_size > 1 ? coordinates.tp_rank : 0;
  const std::int64_t role_size =
      role == Role::kAttention ? counts.num_attention_ranks : counts.num_ffn_ranks;

  std::int64_t role_rank = 0;
  const bool overflow =
      __builtin_mul_overflow(dp_rank, coordinates.prefill_context_parallel_size, &role_rank) ||
      __builtin_add_overflow(role_rank, pcp_rank, &role_rank) ||
      __builtin_mul_overflow(role_rank, coordinates.tensor_parallel_size, &role_rank) ||
      __builtin_add_overflow(role_rank, tp_rank, &role_rank);
  if (overflow || role_rank < 0 || role_rank >= role_size) {
    return fail(ErrorCode::kInvalidArgument,
                "AFD role rank derived from distributed ranks is out of range: role='" +
                    std::string(to_string(role)) + "', dp_rank=" + std::to_string(dp_rank) +
                    ", pcp_rank=" + std::to_string(pcp_rank) + ", tp_rank=" +
                    std::to_string(tp_rank) + ", role_size=" + std::to_string(role_size));
  }
  return static_cast<std::uint32_t>(role_rank);
}

}  // namespace afd
