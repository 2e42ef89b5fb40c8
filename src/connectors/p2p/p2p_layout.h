// Which rows of which rank lie where: the arithmetic of fan-in and split, without any memory.
//
// An FFN rank's landing memory of one stage is [sum of its peers' rows, hidden_size]: every
// attention peer knows all counts from the DP metadata, so each writes at its own row offset and
// nothing is concatenated. The output stands in the same order. Where A < F an attention rank deals
// its rows to its FFN ranks in blocks (topology.h), one dummy row to those that would get none.
//
// Threads: immutable after construction; StageLayout is a plain value.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <afd/factory.h>
#include <afd/metadata.h>
#include <afd/result.h>
#include <afd/topology.h>

#include "transport/transport.h"

namespace afd::p2p {

inline constexpr std::uint32_t kStagesMax = 8;

/// One peer's share of a stage.
struct PeerRows {
  std::uint32_t num_rows = 0;    ///< Rows that travel, at least 1 in an active stage.
  std::uint32_t row_offset = 0;  ///< First row in the channel's landing memory.
  std::uint32_t first_row = 0;   ///< First row in this rank's own tensor.
  bool dummy = false;            ///< The one row is a stand-in: its output is dropped (A < F).
};

/// What one stage of the current step looks like from this rank.
struct StageLayout {
  bool active = false;
  std::uint32_t num_rows = 0;  ///< Of this rank's tensor: own rows (attention), sum of peers (FFN).
  SeqLens seq_lens;            ///< FFN: rows per peer, in peer order.
  std::array<PeerRows, SeqLens::kPeersMax> peers{};  ///< By index into RankMapping::peers.
};

class P2pLayout {
 public:
  /// @return kInvalidArgument  more than session::kRanksMax ranks or SeqLens::kPeersMax peers, or
  ///                          limits out of range
  static Result<P2pLayout> create(const ConnectorParams& params);

  const RankMapping& mapping() const { return mapping_; }
  const TransferLimits& limits() const { return limits_; }
  std::uint64_t row_bytes() const { return row_bytes_; }

  /// This rank's index among the attention peers of that FFN rank's channel.
  std::uint16_t peer_idx_in_channel(std::uint32_t ffn_rank) const;

  /// Sizes of the channel that `ffn_rank` owns.
  transport::ChannelGeometry geometry(std::uint32_t ffn_rank) const;

  /// Lays out one step. Writes `stages` only on success.
  /// @return kInvalidArgument  a stage beyond num_stages, rows beyond max_num_tokens
  Result<void> apply(const ControlPayload& payload,
                     std::array<StageLayout, kStagesMax>& stages) const;

 private:
  P2pLayout(RankMapping mapping, TransferLimits limits);

  StageLayout lay_out_attention(std::span<const std::int32_t> counts) const;
  StageLayout lay_out_ffn(std::span<const std::int32_t> counts) const;
  std::uint32_t rows_of(std::span<const std::int32_t> counts, std::uint32_t attention_rank) const;
  RankMapping ffn_mapping(std::uint32_t ffn_rank) const;

  RankMapping mapping_;
  TransferLimits limits_;
  std::uint64_t row_bytes_;
  /// Attention: for each peer, the attention ranks of its channel, in order.
  std::vector<std::vector<std::uint32_t>> channel_peers_;
  /// A < F, FFN side: FFN ranks that share this rank's attention rank, and this one's place.
  std::uint32_t num_siblings_ = 1;
  std::uint32_t sibling_idx_ = 0;
};

}  // namespace afd::p2p
