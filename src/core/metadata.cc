#include <afd/metadata.h>

#include <limits>
#include <numeric>

namespace afd {
namespace {

constexpr std::int64_t kSeqLenMax = std::numeric_limits<std::uint32_t>::max();

// Keeps the results, which have an entry a shard, from taking all memory for a typing error.
constexpr std::uint32_t kShardsMax = 1u << 16;

std::string render_list(std::span<const std::int64_t> values) {
  // A caller's list has no bound; a message has.
  constexpr std::size_t kShownMax = SeqLens::kPeersMax;
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += i == 0 ? "" : ", ";
    if (i == kShownMax) {
      text += "...";
      break;
    }
    text += std::to_string(values[i]);
  }
  return text + "]";
}

Result<SeqLens> make_seq_lens(std::span<const std::int64_t> values) {
  if (values.empty()) {
    return fail(ErrorCode::kInvalidArgument, "seq_lens cannot be empty");
  }
  if (std::any_of(values.begin(), values.end(), [](std::int64_t v) { return v <= 0; })) {
    return fail(ErrorCode::kInvalidArgument,
                "all sequence lengths must be positive, got " + render_list(values));
  }
  if (std::any_of(values.begin(), values.end(), [](std::int64_t v) { return v > kSeqLenMax; })) {
    return fail(ErrorCode::kInvalidArgument, "all sequence lengths must be at most " +
                                                 std::to_string(kSeqLenMax) + ", got " +
                                                 render_list(values));
  }
  if (values.size() > SeqLens::kPeersMax) {
    return fail(ErrorCode::kInvalidArgument, "seq_lens has " + std::to_string(values.size()) +
                                                 " entries, expected at most " +
                                                 std::to_string(SeqLens::kPeersMax));
  }
  SeqLens seq_lens;
  for (std::int64_t value : values) {
    seq_lens.push_back(static_cast<std::uint32_t>(value));
  }
  return seq_lens;
}

}  // namespace

Result<TransferMetadata> TransferMetadata::create_attention_metadata(std::uint32_t layer_idx,
                                                                     std::uint32_t stage_idx,
                                                                     std::int64_t seq_len) {
  return create_ffn_metadata(layer_idx, stage_idx, {&seq_len, 1});
}

Result<TransferMetadata> TransferMetadata::create_ffn_metadata(
    std::uint32_t layer_idx, std::uint32_t stage_idx, std::span<const std::int64_t> seq_lens) {
  Result<SeqLens> checked = make_seq_lens(seq_lens);
  if (!checked) {
    return fail(std::move(checked).error());
  }
  return TransferMetadata{layer_idx, stage_idx, *checked};
}

bool TransferMetadata::is_valid() const {
  return !seq_lens.empty() && std::find(seq_lens.begin(), seq_lens.end(), 0u) == seq_lens.end();
}

std::uint64_t TransferMetadata::total_tokens() const {
  return std::accumulate(seq_lens.begin(), seq_lens.end(), std::uint64_t{0});
}

bool TransferMetadata::validate_tensor_shape(const Shape& shape) const {
  return shape.rank() >= 1 && shape[0] == total_tokens();
}

Result<DpMetadata> DpMetadata::create(std::vector<std::int32_t> counts) {
  if (counts.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "num_tokens_across_dp is empty, expected a count for each attention DP rank");
  }
  const std::int32_t max = *std::max_element(counts.begin(), counts.end());
  return DpMetadata{std::move(counts), max};
}

Result<std::vector<std::int32_t>> DpMetadata::sp_local_sizes(std::uint32_t sp_size) const {
  if (sp_size == 0 || sp_size > kShardsMax) {
    return fail(ErrorCode::kInvalidArgument, "sp_size is " + std::to_string(sp_size) +
                                                 ", expected 1 to " + std::to_string(kShardsMax));
  }
  std::vector<std::int32_t> sizes;
  sizes.reserve(num_tokens_across_dp.size() * sp_size);
  for (std::int32_t count : num_tokens_across_dp) {
    // In 64 bits, since count + sp_size - 1 may not fit; rounded down also for negative counts.
    const std::int64_t padded = std::int64_t{count} + sp_size - 1;
    const std::int64_t shard =
        padded >= 0 ? padded / sp_size : -((-padded + sp_size - 1) / std::int64_t{sp_size});
    sizes.insert(sizes.end(), sp_size, static_cast<std::int32_t>(shard));
  }
  return sizes;
}

Result<std::vector<std::int64_t>> DpMetadata::cu_tokens_across_sp(std::uint32_t sp_size) const {
  const Result<std::vector<std::int32_t>> sizes = sp_local_sizes(sp_size);
  if (!sizes) {
    return fail(sizes.error());
  }
  std::vector<std::int64_t> sums;
  sums.reserve(sizes->size());
  std::int64_t sum = 0;
  for (std::int32_t size : *sizes) {
    sum += size;
    sums.push_back(sum);
  }
  return sums;
}

Result<std::vector<std::int32_t>> DpMetadata::chunked_sizes(std::uint32_t sp_size,
                                                            std::int32_t max_chunk_size,
                                                            std::uint32_t chunk_idx) const {
  Result<std::vector<std::int32_t>> sizes = sp_local_sizes(sp_size);
  if (!sizes) {
    return sizes;
  }
  for (std::int32_t& size : *sizes) {
    const std::int64_t left = size - std::int64_t{max_chunk_size} * chunk_idx;
    size = static_cast<std::int32_t>(
        std::max<std::int64_t>(1, std::min<std::int64_t>(max_chunk_size, left)));
  }
  return sizes;
}

std::uint32_t num_tokens_for_attention_rank(std::span<const std::int32_t> counts,
                                            std::int64_t attention_rank,
                                            std::uint32_t num_attention_ranks,
                                            std::int64_t fallback) {
  const std::int64_t fallback_tokens = std::clamp<std::int64_t>(fallback, 1, kSeqLenMax);
  const auto num_counts = static_cast<std::int64_t>(counts.size());
  if (num_counts == 0) {
    return static_cast<std::uint32_t>(fallback_tokens);
  }
  std::int64_t ranks_per_count = 1;
  if (num_counts < num_attention_ranks && num_attention_ranks % num_counts == 0) {
    ranks_per_count = num_attention_ranks / num_counts;
  }
  if (attention_rank < 0 || attention_rank / ranks_per_count >= num_counts) {
    return static_cast<std::uint32_t>(fallback_tokens);
  }
  const std::int32_t count = counts[static_cast<std::size_t>(attention_rank / ranks_per_count)];
  return static_cast<std::uint32_t>(std::max<std::int32_t>(1, count));
}

}  // namespace afd
