#include "connectors/p2p/p2p_layout.h"

#include <algorithm>
#include <utility>

#include <afd/control_payload.h>

#include "session/session_frame.h"

namespace afd::p2p {
namespace {

// An element count that fits every header field and leaves byte sizes far below 2^64.
constexpr std::uint32_t kWidthMax = 1u << 24;
constexpr std::uint32_t kTokensMax = 1u << 24;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t granule) {
  return (bytes + granule - 1) / granule * granule;
}

// One control message: a fixed part, then per stage a key, two names and a number per rank.
std::uint64_t control_bytes_max(std::uint32_t num_stages, std::uint32_t num_attention_ranks) {
  std::uint64_t sum = 0;
  sum += 256;                             // frame header, four flags, braces
  sum += std::uint64_t{num_stages} * 96;  // stage key, two field names, the maximum
  sum += std::uint64_t{num_stages} * num_attention_ranks * 12;  // "-2147483648,"
  return round_up(sum, 64);
}

Result<void> check_limits(const TransferLimits& limits) {
  const auto out_of_range = [](std::string_view name, std::uint64_t found, std::uint64_t lowest,
                               std::uint64_t highest) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(name) + " must be in " + std::to_string(lowest) + ".." +
                    std::to_string(highest) + ", got " + std::to_string(found));
  };
  if (limits.hidden_size == 0 || limits.hidden_size > kWidthMax) {
    return out_of_range("hidden_size", limits.hidden_size, 1, kWidthMax);
  }
  if (limits.num_layers == 0) {
    return out_of_range("num_layers", limits.num_layers, 1, UINT32_MAX);
  }
  if (limits.max_num_tokens == 0 || limits.max_num_tokens > kTokensMax) {
    return out_of_range("max_num_tokens", limits.max_num_tokens, 1, kTokensMax);
  }
  if (limits.num_stages == 0 || limits.num_stages > kStagesMax) {
    return out_of_range("num_stages", limits.num_stages, 1, kStagesMax);
  }
  if (limits.num_experts > kWidthMax) {
    return out_of_range("num_experts", limits.num_experts, 0, kWidthMax);
  }
  if (limits.top_k > kWidthMax) {
    return out_of_range("top_k", limits.top_k, 0, kWidthMax);
  }
  if (limits.dtype.bits == 0 || limits.dtype.bits % 8 != 0 || limits.dtype.lanes != 1) {
    return fail(ErrorCode::kInvalidArgument,
                "dtype must be whole bytes and one lane, got " + to_string(limits.dtype));
  }
  return {};
}

}  // namespace

Result<P2pLayout> P2pLayout::create(const ConnectorParams& params) {
  if (Result<void> checked = check_limits(params.limits); !checked) {
    return fail(std::move(checked).error());
  }
  const std::uint64_t num_ranks =
      std::uint64_t{params.config.num_attention_ranks} + params.config.num_ffn_ranks;
  if (num_ranks > session::kRanksMax) {
    return fail(ErrorCode::kInvalidArgument,
                "a job has at most " + std::to_string(session::kRanksMax) +
                    " ranks, this one has " + std::to_string(num_ranks) + " (" +
                    std::to_string(params.config.num_attention_ranks) + " attention, " +
                    std::to_string(params.config.num_ffn_ranks) + " ffn)");
  }
  Result<RankMapping> mapping =
      build_rank_mapping(params.config.num_attention_ranks, params.config.num_ffn_ranks,
                         params.config.role, params.role_rank);
  if (!mapping) {
    return fail(std::move(mapping).error());
  }
  if (mapping->peers.size() > SeqLens::kPeersMax) {
    return fail(ErrorCode::kInvalidArgument,
                "a subgroup has at most " + std::to_string(SeqLens::kPeersMax) +
                    " peers, this one has " + std::to_string(mapping->peers.size()) +
                    ": use more ranks of the other role");
  }
  return P2pLayout(*std::move(mapping), params.limits);
}

P2pLayout::P2pLayout(RankMapping mapping, TransferLimits limits)
    : mapping_(std::move(mapping)),
      limits_(limits),
      row_bytes_(std::uint64_t{limits.hidden_size} * limits.dtype.size_bytes()) {
  if (mapping_.role == Role::kAttention) {
    for (std::uint32_t ffn_rank : mapping_.peers) {
      channel_peers_.push_back(ffn_mapping(ffn_rank).peers);
    }
    return;
  }
  const Result<RankMapping> attention =
      build_rank_mapping(mapping_.counts.num_attention_ranks, mapping_.counts.num_ffn_ranks,
                         Role::kAttention, mapping_.peers.front());
  const std::vector<std::uint32_t>& siblings = attention->peers;
  num_siblings_ = static_cast<std::uint32_t>(siblings.size());
  sibling_idx_ = static_cast<std::uint32_t>(
      std::find(siblings.begin(), siblings.end(), mapping_.role_rank) - siblings.begin());
}

RankMapping P2pLayout::ffn_mapping(std::uint32_t ffn_rank) const {
  return *build_rank_mapping(mapping_.counts.num_attention_ranks, mapping_.counts.num_ffn_ranks,
                             Role::kFfn, ffn_rank);
}

std::uint16_t P2pLayout::peer_idx_in_channel(std::uint32_t ffn_rank) const {
  const std::vector<std::uint32_t> peers = ffn_mapping(ffn_rank).peers;
  return static_cast<std::uint16_t>(std::find(peers.begin(), peers.end(), mapping_.role_rank) -
                                    peers.begin());
}

transport::ChannelGeometry P2pLayout::geometry(std::uint32_t ffn_rank) const {
  const RankMapping owner = ffn_mapping(ffn_rank);
  // A >= F: every peer brings up to max_num_tokens rows. A < F: the one peer deals its rows out,
  // the first FFN ranks getting the larger shares, and never less than the one dummy row.
  std::uint64_t rows = std::uint64_t{limits_.max_num_tokens} * owner.peers.size();
  if (mapping_.counts.num_attention_ranks < mapping_.counts.num_ffn_ranks) {
    rows = limits_.max_num_tokens;
  }
  transport::ChannelGeometry geometry;
  geometry.num_peers = static_cast<std::uint32_t>(owner.peers.size());
  geometry.num_stages = limits_.num_stages;
  geometry.a2f_bytes[0] = rows * row_bytes_;
  geometry.a2f_bytes[1] = rows * limits_.num_experts * sizeof(float);
  geometry.a2f_bytes[2] = 0;
  geometry.a2f_bytes[3] = 0;
  geometry.f2a_bytes[0] = rows * row_bytes_;
  geometry.control_slots = 16;
  geometry.control_bytes_max =
      control_bytes_max(limits_.num_stages, mapping_.counts.num_attention_ranks);
  return geometry;
}

std::uint32_t P2pLayout::rows_of(std::span<const std::int32_t> counts,
                                 std::uint32_t attention_rank) const {
  return num_tokens_for_attention_rank(counts, attention_rank, mapping_.counts.num_attention_ranks);
}

StageLayout P2pLayout::lay_out_attention(std::span<const std::int32_t> counts) const {
  StageLayout stage;
  stage.active = true;
  stage.num_rows = rows_of(counts, mapping_.role_rank);
  const auto num_peers = static_cast<std::uint32_t>(mapping_.peers.size());
  std::uint32_t first_row = 0;
  for (std::uint32_t peer = 0; peer < num_peers; ++peer) {
    PeerRows& share = stage.peers[peer];
    const std::uint32_t rows = rows_for_peer(stage.num_rows, peer, num_peers);
    share.dummy = rows == 0;
    share.num_rows = std::max(rows, 1u);
    share.first_row = share.dummy ? 0 : first_row;
    first_row += rows;
    for (std::uint32_t other : channel_peers_[peer]) {
      if (other < mapping_.role_rank) {
        share.row_offset += rows_of(counts, other);
      }
    }
  }
  return stage;
}

StageLayout P2pLayout::lay_out_ffn(std::span<const std::int32_t> counts) const {
  StageLayout stage;
  stage.active = true;
  for (std::size_t peer = 0; peer < mapping_.peers.size(); ++peer) {
    PeerRows& share = stage.peers[peer];
    const std::uint32_t rows =
        rows_for_peer(rows_of(counts, mapping_.peers[peer]), sibling_idx_, num_siblings_);
    share.num_rows = std::max(rows, 1u);
    share.row_offset = stage.num_rows;
    share.first_row = stage.num_rows;
    stage.num_rows += share.num_rows;
    stage.seq_lens.push_back(share.num_rows);
  }
  return stage;
}

Result<void> P2pLayout::apply(const ControlPayload& payload,
                              std::array<StageLayout, kStagesMax>& stages) const {
  std::array<StageLayout, kStagesMax> fresh{};
  for (const auto& [stage_idx, dp_metadata] : payload.dp_metadata_list) {
    if (stage_idx < 0 || stage_idx >= std::int64_t{limits_.num_stages}) {
      return fail(ErrorCode::kInvalidArgument, "stage " + std::to_string(stage_idx) +
                                                   " is not in [0, " +
                                                   std::to_string(limits_.num_stages) + ")");
    }
    const std::vector<std::int32_t>& counts = dp_metadata.num_tokens_across_dp;
    for (std::int32_t count : counts) {
      if (count > std::int64_t{limits_.max_num_tokens}) {
        return fail(ErrorCode::kInvalidArgument,
                    "stage " + std::to_string(stage_idx) + " announces " + std::to_string(count) +
                        " tokens, max_num_tokens is " + std::to_string(limits_.max_num_tokens));
      }
    }
    fresh[static_cast<std::size_t>(stage_idx)] =
        mapping_.role == Role::kAttention ? lay_out_attention(counts) : lay_out_ffn(counts);
  }
  stages = fresh;
  return {};
}

}  // namespace afd::p2p
