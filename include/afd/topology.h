// Who talks to whom: world ranks, subgroups and control senders for A attention and F FFN ranks.
//
// The subgroup of attention rank a is FFN rank floor(a * F / A) where A >= F: blocks of consecutive
// attention ranks, sizes differing by at most one, equal to the reference's where A is a multiple
// of F. Where A < F, FFN rank f belongs to attention rank floor(f * A / F), which splits its rows
// evenly over its FFN ranks.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <afd/config.h>
#include <afd/export.h>
#include <afd/result.h>

namespace afd {

/// Ranks of one role, at most, for the functions of this header. Keeps every sum and product of
/// counts far from overflow, and a typing error from asking for gigabytes.
///
/// A job that runs has narrower limits, which its connector checks when it is created: at most 64
/// peers a rank (SeqLens::kPeersMax), and with the built-in connectors A + F of at most 1024.
inline constexpr std::uint32_t kRanksMax = 1u << 16;

/// Numbers of ranks of each role, both in [1, kRanksMax].
struct RankCounts {
  std::uint32_t num_attention_ranks = 1;
  std::uint32_t num_ffn_ranks = 1;
  friend bool operator==(const RankCounts&, const RankCounts&) = default;
};

/// Any A and F in [1, kRanksMax].
/// @return kInvalidArgument  "num_ffn_ranks must be positive, got 0"
AFD_EXPORT Result<void> validate_topology(std::int64_t num_attention_ranks,
                                          std::int64_t num_ffn_ranks);
/// The reference's rule for P2pNcclAFDConnector: A >= F and A % F == 0, with its messages. Only
/// this rule: two negative counts may keep it, so validate_topology() has to follow.
AFD_EXPORT Result<void> validate_strict_topology(std::int64_t num_attention_ranks,
                                                 std::int64_t num_ffn_ranks);

/// One rank's place. World ranks are FFN first: FFN rank k is k, attention rank j is F + j.
struct RankMapping {
  Role role = Role::kAttention;
  std::uint32_t role_rank = 0;
  std::uint32_t world_rank = 0;
  /// Rank in the control group, which is FFN first too: k for FFN rank k, F + j for attention rank
  /// j. Has a meaning only where participates_in_dp_metadata_group.
  std::uint32_t p2p_rank = 0;
  RankCounts counts;
  std::uint32_t min_size = 1;  ///< min(A, F): how many attention ranks send control payloads.
  std::uint32_t subgroup_index = 0;
  std::uint32_t rank_in_subgroup = 0;
  /// World ranks of this rank's subgroup, its FFN ranks first. A >= F: one FFN rank and its
  /// attention ranks; A < F: the FFN ranks of one attention rank, then that rank.
  std::vector<std::uint32_t> subgroup_ranks;
  /// Role ranks of the other role with which this rank exchanges tensors, ascending.
  std::vector<std::uint32_t> peers;
  /// FFN role ranks to which this (attention) rank sends the control payload: r, r + min(A, F), ...
  std::vector<std::uint32_t> dp_metadata_destinations;
  /// Attention role rank from which this (FFN) rank receives it.
  std::uint32_t dp_metadata_source = 0;
  bool participates_in_dp_metadata_group = false;
};

/// @return kInvalidArgument  counts or role_rank out of range, with the reference's messages
AFD_EXPORT Result<RankMapping> build_rank_mapping(std::int64_t num_attention_ranks,
                                                  std::int64_t num_ffn_ranks, Role role,
                                                  std::int64_t role_rank);

/// Rows that an attention rank sends to its peer number `peer_idx` of `num_peers` (A < F): rows are
/// dealt in consecutive blocks that differ by at most one, the larger ones first. May be 0.
AFD_EXPORT std::uint32_t rows_for_peer(std::uint32_t num_rows, std::uint32_t peer_idx,
                                       std::uint32_t num_peers);

/// A worker's coordinates in its engine.
struct ParallelCoordinates {
  std::int64_t data_parallel_size = 1;
  std::int64_t data_parallel_rank = 0;
  std::int64_t prefill_context_parallel_size = 1;
  std::int64_t pcp_rank = 0;
  std::int64_t tensor_parallel_size = 1;
  std::int64_t tp_rank = 0;
};

/// role_rank = (dp * pcp_size + pcp) * tp_size + tp; ranks count only where their size is above 1.
/// @return kInvalidArgument  outside [0, size of the role), with the reference's message
AFD_EXPORT Result<std::uint32_t> resolve_role_rank(const ParallelCoordinates& coordinates,
                                                   Role role, RankCounts counts);

}  // namespace afd
