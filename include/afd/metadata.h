// What travels beside the tensors: which layer and stage a transfer belongs to, whose rows are in
// it, and the token counts that the ranks agree on once a step.
//
// Threads: plain values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <afd/export.h>
#include <afd/result.h>
#include <afd/tensor.h>

namespace afd {

/// Rows per peer of one transfer, in peer order. At most kPeersMax entries, held inline, so that a
/// transfer allocates nothing (R11).
class SeqLens {
 public:
  /// Attention ranks that one FFN rank serves, or FFN ranks that one attention rank serves.
  static constexpr std::size_t kPeersMax = 64;

  SeqLens() = default;

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::uint32_t operator[](std::size_t peer) const { return rows_[peer]; }
  const std::uint32_t* begin() const { return rows_.data(); }
  const std::uint32_t* end() const { return rows_.data() + size_; }
  operator std::span<const std::uint32_t>() const { return {rows_.data(), size_}; }

  /// Returns false, and changes nothing, when full.
  bool push_back(std::uint32_t rows) {
    if (size_ == kPeersMax) {
      return false;
    }
    rows_[size_++] = rows;
    return true;
  }
  friend bool operator==(const SeqLens& a, const SeqLens& b) {
    return std::span<const std::uint32_t>(a).size() == b.size() &&
           std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  std::array<std::uint32_t, kPeersMax> rows_{};
  std::size_t size_ = 0;
};

/// One layer and stage of one transfer.
///
/// Invariant: seq_lens has at least one entry and each is positive. The creating functions check
/// it; `is_valid()` is for those that were filled field by field.
struct AFD_EXPORT TransferMetadata {
  std::uint32_t layer_idx = 0;
  std::uint32_t stage_idx = 0;
  SeqLens seq_lens;

  /// The transfer of one attention rank: one length.
  /// @return kInvalidArgument  seq_len is not positive, or larger than 2^32 - 1
  static Result<TransferMetadata> create_attention_metadata(std::uint32_t layer_idx,
                                                            std::uint32_t stage_idx,
                                                            std::int64_t seq_len);
  /// The transfer of an FFN rank: one length per attention peer, in peer order. Copies the list.
  /// @return kInvalidArgument  the list is empty ("seq_lens cannot be empty"), has more than
  ///         SeqLens::kPeersMax entries, or one is not positive ("all sequence lengths must be
  ///         positive, got [3, 0]")
  static Result<TransferMetadata> create_ffn_metadata(std::uint32_t layer_idx,
                                                      std::uint32_t stage_idx,
                                                      std::span<const std::int64_t> seq_lens);

  bool is_valid() const;
  /// The sum of seq_lens: the leading extent of every tensor of this transfer.
  std::uint64_t total_tokens() const;
  /// True if the shape has at least one extent and the first is total_tokens(); the rest is free.
  bool validate_tensor_shape(const Shape& shape) const;

  friend bool operator==(const TransferMetadata&, const TransferMetadata&) = default;
};

/// Base for what a back-end carries from a receive to the matching send.
class AFD_EXPORT TransferState {
 public:
  virtual ~TransferState() = default;
};

struct TransferContext {
  TransferMetadata metadata{};
  /// Null for P2P. Shared by the payload that a receive returned and the connector that made it.
  std::shared_ptr<TransferState> states{};
};

/// Width and element type of the router logits that travel beside the hidden states.
struct ExpertRoutingSpec {
  std::uint32_t router_logits_width = 0;  ///< Number of routed experts.
  DType router_logits_dtype = kFloat32;
};

/// What recv_attn_output returns. The views stand in landing memory (R5).
struct A2FTransferPayload {
  ConstTensorView hidden_states{};  ///< [context.metadata.total_tokens(), hidden_size]
  TransferContext context{};
  ConstTensorView router_logits{};  ///< [total_tokens, num_experts], or empty.
  ConstTensorView topk_ids{};       ///< int32 [total_tokens, top_k], or empty.
  ConstTensorView topk_weights{};   ///< f32 [total_tokens, top_k], or empty.
};

/// What an FFN rank gives back.
struct F2ATransferPayload {
  ConstTensorView routed_output{};  ///< [total_tokens, hidden_size]
  ConstTensorView shared_output{};  ///< The same shape, or empty.
};

/// Token counts of one stage, one entry per attention DP rank. Counts of 0 are idle ranks: they
/// transfer one dummy row (num_tokens_for_attention_rank).
struct AFD_EXPORT DpMetadata {
  std::vector<std::int32_t> num_tokens_across_dp;
  std::int32_t max_tokens_across_dp = 0;

  /// Computes the maximum.
  /// @return kInvalidArgument  counts is empty
  static Result<DpMetadata> create(std::vector<std::int32_t> counts);

  /// Sizes of each sequence-parallel shard: ceil(count / sp_size), each sp_size times, in rank
  /// order.
  /// @return kInvalidArgument  sp_size is not in [1, 65536]
  Result<std::vector<std::int32_t>> sp_local_sizes(std::uint32_t sp_size) const;
  /// Inclusive prefix sum of sp_local_sizes.
  Result<std::vector<std::int64_t>> cu_tokens_across_sp(std::uint32_t sp_size) const;
  /// Rows of chunk `chunk_idx` of each shard: max(1, min(max_chunk_size, size - max_chunk_size *
  /// chunk_idx)).
  Result<std::vector<std::int32_t>> chunked_sizes(std::uint32_t sp_size,
                                                  std::int32_t max_chunk_size,
                                                  std::uint32_t chunk_idx) const;

  friend bool operator==(const DpMetadata&, const DpMetadata&) = default;
};

/// Rows that `attention_rank` of `num_attention_ranks` transfers, from one stage's counts. Fewer
/// counts than ranks, dividing them evenly, are repeated (each DP rank's TP workers hold the same
/// tokens). Never below 1: an idle rank sends a dummy row.
AFD_EXPORT std::uint32_t num_tokens_for_attention_rank(std::span<const std::int32_t> counts,
                                                       std::int64_t attention_rank,
                                                       std::uint32_t num_attention_ranks,
                                                       std::int64_t fallback = 1);

/// One step's control message: token counts per stage, and how the step runs.
struct ControlPayload {
  /// Keyed by stage_idx.
  std::map<std::int64_t, DpMetadata> dp_metadata_list;
  bool is_graph_capturing = false;
  bool is_graph_replaying = false;
  bool is_profile = false;
  bool is_warmup = false;

  friend bool operator==(const ControlPayload&, const ControlPayload&) = default;
};

}  // namespace afd
