// Multi-head latent attention with the up-projections absorbed: scores and sums are taken over the
// compressed entries of the cache, never over per-head keys and values. One path serves prompts and
// decoding, so that the bits of a row are the same in either.
#include <algorithm>
#include <optional>

#include "base/check.h"
#include "model/mlp.h"
#include "model/model.h"
#include "model/packed_matrix.h"
#include "model/rope.h"
#include "model/scratch.h"

namespace afd::model {
namespace {

// Rows that pass through a layer together; bounds the working memory.
constexpr std::size_t kRowsAtOnce = 256;

// Rows times heads whose scores are taken from one transposed block of the cache.
constexpr std::size_t kQueriesAtOnce = 64;

// The latent norms have an epsilon of their own, which is not in the configuration.
constexpr float kLatentNormEps = 1e-6f;

}  // namespace

struct AttentionPart::Weights {
  struct Layer {
    std::vector<float> input_norm;
    std::vector<float> post_attention_norm;
    std::vector<float> q_latent_norm;  ///< Empty: queries are not compressed.
    std::vector<float> kv_latent_norm;
    PackedMatrix input;                  ///< [q_proj or q_a_proj | kv_a_proj_with_mqa]
    PackedMatrix q_up;                   ///< q_b_proj
    std::vector<PackedMatrix> key_up;    ///< Per head: [qk_nope_head_dim, kv_lora_rank]
    std::vector<PackedMatrix> value_up;  ///< Per head: [kv_lora_rank, v_head_dim]
    PackedMatrix output;
    std::optional<PackedMatrix> router;  ///< With the gate, on MoE layers.
    std::optional<Mlp> dense_mlp;        ///< With the gate, on dense layers.
  };

  explicit Weights(const Checkpoint& from) : checkpoint(from), rope(from.config()) {}

  Result<void> load_layer(std::uint32_t layer_idx, bool gate);
  Result<void> load_head_projections(const ConstTensorView& kv_b, Layer& layer);

  /// One chunk of at most kRowsAtOnce rows.
  void attend(const Layer& layer, std::uint32_t layer_idx, std::span<const Row> rows,
              float* residual, float* hidden, Scratch::Buffers& buffers) const;
  void write_cache(const Layer& layer, std::uint32_t layer_idx, const Row& row,
                   const float* compressed, const float* cosines, const float* sines) const;
  void mix(std::uint32_t layer_idx, std::span<const Row> rows, const float* queries, float* output,
           Scratch::Buffers& buffers) const;

  std::size_t q_head_dim() const {
    return config().qk_nope_head_dim + std::size_t{config().qk_rope_head_dim};
  }
  std::size_t latent_dim() const {
    return config().kv_lora_rank + std::size_t{config().qk_rope_head_dim};
  }
  const ModelConfig& config() const { return checkpoint.config(); }

  Checkpoint checkpoint;  ///< Embeddings are read from the mapped file.
  const Kernels* kernels = nullptr;
  Arena arena;
  Rope rope;
  float softmax_scale = 1.0f;
  ConstTensorView embeddings;
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  PackedMatrix lm_head;
};

Result<std::unique_ptr<AttentionPart>> AttentionPart::load(const Checkpoint& checkpoint,
                                                           const AttentionOptions& options) {
  const Result<const Kernels*> kernels = find_kernels(options.instruction_set);
  if (!kernels) {
    return fail(kernels.error());
  }
  auto weights = std::make_unique<Weights>(checkpoint);
  const ModelConfig& config = weights->config();
  weights->kernels = *kernels;
  weights->softmax_scale = attention_softmax_scale(config);
  const Shape table{config.vocab_size, config.hidden_size};
  const Result<ConstTensorView> embeddings = checkpoint.tensor("model.embed_tokens.weight", table);
  if (!embeddings) {
    return fail(embeddings.error());
  }
  weights->embeddings = *embeddings;
  weights->layers.resize(config.num_hidden_layers);
  for (std::uint32_t layer_idx = 0; layer_idx < config.num_hidden_layers; ++layer_idx) {
    Result<void> loaded = weights->load_layer(layer_idx, options.gate);
    if (!loaded) {
      return fail(std::move(loaded).error());
    }
  }
  Result<std::vector<float>> norm =
      load_vector(checkpoint, "model.norm.weight", config.hidden_size);
  if (!norm) {
    return fail(std::move(norm).error());
  }
  weights->final_norm = *std::move(norm);
  const Result<PackedMatrix> lm_head = load_matrix(
      checkpoint, config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight",
      config.vocab_size, config.hidden_size, weights->arena);
  if (!lm_head) {
    return fail(lm_head.error());
  }
  weights->lm_head = *lm_head;
  return std::unique_ptr<AttentionPart>(new AttentionPart(std::move(weights)));
}

Result<void> AttentionPart::Weights::load_layer(std::uint32_t layer_idx, bool gate) {
  const ModelConfig& c = config();
  const std::size_t hidden_size = c.hidden_size;
  const std::size_t heads = c.num_attention_heads;
  Layer& layer = layers[layer_idx];
  const auto vector = [&](const char* name, std::size_t size,
                          std::vector<float>* to) -> Result<void> {
    Result<std::vector<float>> values = load_vector(checkpoint, layer_name(layer_idx, name), size);
    if (!values) {
      return fail(std::move(values).error());
    }
    *to = *std::move(values);
    return {};
  };
  const auto tensor = [&](const char* name, std::size_t n, std::size_t k) {
    return checkpoint.tensor(layer_name(layer_idx, name), Shape{n, k});
  };
  const auto matrix = [&](const char* name, std::size_t n, std::size_t k,
                          PackedMatrix* to) -> Result<void> {
    Result<PackedMatrix> packed = load_matrix(checkpoint, layer_name(layer_idx, name), n, k, arena);
    if (!packed) {
      return fail(std::move(packed).error());
    }
    *to = *packed;
    return {};
  };

  Result<void> done = vector("input_layernorm.weight", hidden_size, &layer.input_norm);
  if (done) {
    done = vector("post_attention_layernorm.weight", hidden_size, &layer.post_attention_norm);
  }
  if (done) {
    done = vector("self_attn.kv_a_layernorm.weight", c.kv_lora_rank, &layer.kv_latent_norm);
  }
  const bool compressed = c.q_lora_rank > 0;
  if (done && compressed) {
    done = vector("self_attn.q_a_layernorm.weight", c.q_lora_rank, &layer.q_latent_norm);
  }
  if (done && compressed) {
    done = matrix("self_attn.q_b_proj.weight", heads * q_head_dim(), c.q_lora_rank, &layer.q_up);
  }
  if (!done) {
    return done;
  }
  const std::size_t q_columns = compressed ? c.q_lora_rank : heads * q_head_dim();
  const Result<ConstTensorView> q = tensor(
      compressed ? "self_attn.q_a_proj.weight" : "self_attn.q_proj.weight", q_columns, hidden_size);
  if (!q) {
    return fail(q.error());
  }
  const Result<ConstTensorView> kv_a =
      tensor("self_attn.kv_a_proj_with_mqa.weight", latent_dim(), hidden_size);
  if (!kv_a) {
    return fail(kv_a.error());
  }
  Result<PackedMatrix> input = PackedMatrix::pack(
      {{.tensor = *q, .num_rows = q_columns}, {.tensor = *kv_a, .num_rows = latent_dim()}}, arena);
  if (!input) {
    return fail(std::move(input).error());
  }
  layer.input = *input;
  const Result<ConstTensorView> kv_b =
      tensor("self_attn.kv_b_proj.weight", heads * (c.qk_nope_head_dim + std::size_t{c.v_head_dim}),
             c.kv_lora_rank);
  if (!kv_b) {
    return fail(kv_b.error());
  }
  done = load_head_projections(*kv_b, layer);
  if (done) {
    done = matrix("self_attn.o_proj.weight", hidden_size, heads * c.v_head_dim, &layer.output);
  }
  if (!done || !gate) {
    return done;
  }
  if (c.is_moe_layer(layer_idx)) {
    PackedMatrix router;
    done = matrix("mlp.gate.weight", c.n_routed_experts, hidden_size, &router);
    layer.router = router;
    return done;
  }
  Result<Mlp> mlp = Mlp::load(checkpoint, layer_name(layer_idx, "mlp"), c.intermediate_size, arena);
  if (!mlp) {
    return fail(std::move(mlp).error());
  }
  layer.dense_mlp = *std::move(mlp);
  return {};
}

Result<void> AttentionPart::Weights::load_head_projections(const ConstTensorView& kv_b,
                                                           Layer& layer) {
  const std::size_t nope = config().qk_nope_head_dim;
  const std::size_t value = config().v_head_dim;
  for (std::size_t head = 0; head < config().num_attention_heads; ++head) {
    const std::size_t first_row = head * (nope + value);
    Result<PackedMatrix> key_up = PackedMatrix::pack(
        {{.tensor = kv_b, .first_row = first_row, .num_rows = nope, .transposed = true}}, arena);
    if (!key_up) {
      return fail(std::move(key_up).error());
    }
    Result<PackedMatrix> value_up = PackedMatrix::pack(
        {{.tensor = kv_b, .first_row = first_row + nope, .num_rows = value}}, arena);
    if (!value_up) {
      return fail(std::move(value_up).error());
    }
    layer.key_up.push_back(*key_up);
    layer.value_up.push_back(*value_up);
  }
  return {};
}

AttentionPart::AttentionPart(std::unique_ptr<Weights> weights) : weights_(std::move(weights)) {}
AttentionPart::~AttentionPart() = default;

const ModelConfig& AttentionPart::config() const {
  return weights_->config();
}

void AttentionPart::embed(std::span<const std::int32_t> token_ids, float* residual) const {
  const std::size_t hidden_size = config().hidden_size;
  for (std::int32_t token_id : token_ids) {
    AFD_CHECK(token_id >= 0 && static_cast<std::uint32_t>(token_id) < config().vocab_size,
              token_id);
    convert_to_float(weights_->embeddings, static_cast<std::size_t>(token_id) * hidden_size,
                     hidden_size, residual);
    residual += hidden_size;
  }
}

void AttentionPart::attention(std::uint32_t layer_idx, std::span<const Row> rows, float* residual,
                              float* hidden, Scratch& scratch) const {
  const std::size_t hidden_size = config().hidden_size;
  for (std::size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce) {
    const std::size_t count = std::min(kRowsAtOnce, rows.size() - begin);
    weights_->attend(weights_->layers[layer_idx], layer_idx, rows.subspan(begin, count),
                     residual + begin * hidden_size, hidden + begin * hidden_size,
                     scratch.buffers());
  }
}

void AttentionPart::Weights::attend(const Layer& layer, std::uint32_t layer_idx,
                                    std::span<const Row> rows, float* residual, float* hidden,
                                    Scratch::Buffers& buffers) const {
  const ModelConfig& c = config();
  const std::size_t num_rows = rows.size();
  const std::size_t hidden_size = c.hidden_size;
  const std::size_t heads = c.num_attention_heads;
  const std::size_t nope = c.qk_nope_head_dim;
  const std::size_t latent_stride = round_up_to_lanes(latent_dim());
  const auto eps = static_cast<float>(c.rms_norm_eps);

  // `hidden` holds the normed input until the output norm overwrites it.
  for (std::size_t i = 0; i < num_rows; ++i) {
    kernels->rms_norm(residual + i * hidden_size, layer.input_norm.data(), hidden_size, eps,
                      hidden + i * hidden_size);
  }
  const std::size_t projected_stride = layer.input.n();
  float* const projected = buffers.floats(Slot::kProjected, num_rows * projected_stride);
  layer.input.multiply(*kernels, hidden, hidden_size, num_rows, projected, projected_stride);

  const float* queries = projected;
  std::size_t queries_stride = projected_stride;
  if (c.q_lora_rank > 0) {
    for (std::size_t i = 0; i < num_rows; ++i) {
      float* const latent = projected + i * projected_stride;
      kernels->rms_norm(latent, layer.q_latent_norm.data(), c.q_lora_rank, kLatentNormEps, latent);
    }
    queries_stride = heads * q_head_dim();
    float* const expanded = buffers.floats(Slot::kQueries, num_rows * queries_stride);
    layer.q_up.multiply(*kernels, projected, projected_stride, num_rows, expanded, queries_stride);
    queries = expanded;
  }

  // Queries against the compressed cache: [num_rows, heads, kv_lora_rank | qk_rope_head_dim].
  float* const latent_queries =
      buffers.floats(Slot::kLatentQueries, num_rows * heads * latent_stride);
  for (std::size_t head = 0; head < heads; ++head) {
    layer.key_up[head].multiply(*kernels, queries + head * q_head_dim(), queries_stride, num_rows,
                                latent_queries + head * latent_stride, heads * latent_stride);
  }
  const std::size_t compressed_begin = projected_stride - latent_dim();
  float* const cosines = buffers.floats(Slot::kAngles, 2 * rope.num_pairs());
  float* const sines = cosines + rope.num_pairs();
  for (std::size_t i = 0; i < num_rows; ++i) {
    rope.angles(rows[i].position, cosines, sines);
    write_cache(layer, layer_idx, rows[i], projected + i * projected_stride + compressed_begin,
                cosines, sines);
    for (std::size_t head = 0; head < heads; ++head) {
      float* const rotated = latent_queries + (i * heads + head) * latent_stride + c.kv_lora_rank;
      std::copy_n(queries + i * queries_stride + head * q_head_dim() + nope, c.qk_rope_head_dim,
                  rotated);
      rotate_pairs(cosines, sines, rope.num_pairs(), rotated);
    }
  }

  float* const latent_output =
      buffers.floats(Slot::kLatentOutput, num_rows * heads * c.kv_lora_rank);
  mix(layer_idx, rows, latent_queries, latent_output, buffers);

  const std::size_t values_stride = heads * c.v_head_dim;
  float* const values = buffers.floats(Slot::kValues, num_rows * values_stride);
  for (std::size_t head = 0; head < heads; ++head) {
    layer.value_up[head].multiply(*kernels, latent_output + head * c.kv_lora_rank,
                                  heads * c.kv_lora_rank, num_rows, values + head * c.v_head_dim,
                                  values_stride);
  }
  float* const output = buffers.floats(Slot::kAttentionOutput, num_rows * hidden_size);
  layer.output.multiply(*kernels, values, values_stride, num_rows, output, hidden_size);
  kernels->add(residual, output, num_rows * hidden_size);
  for (std::size_t i = 0; i < num_rows; ++i) {
    kernels->rms_norm(residual + i * hidden_size, layer.post_attention_norm.data(), hidden_size,
                      eps, hidden + i * hidden_size);
  }
}

void AttentionPart::Weights::write_cache(const Layer& layer, std::uint32_t layer_idx,
                                         const Row& row, const float* compressed,
                                         const float* cosines, const float* sines) const {
  const ModelConfig& c = config();
  AFD_CHECK(row.position < row.cache->num_positions_max(), row.position);
  float* const entry = row.cache->entry(layer_idx, row.position);
  kernels->rms_norm(compressed, layer.kv_latent_norm.data(), c.kv_lora_rank, kLatentNormEps, entry);
  float* const key = entry + c.kv_lora_rank;
  std::copy_n(compressed + c.kv_lora_rank, c.qk_rope_head_dim, key);
  rotate_pairs(cosines, sines, rope.num_pairs(), key);
  std::fill(key + c.qk_rope_head_dim, entry + row.cache->entry_floats(), 0.0f);
}

/// output [rows, heads, kv_lora_rank]: the cache's entries weighted by each query's softmax.
void AttentionPart::Weights::mix(std::uint32_t layer_idx, std::span<const Row> rows,
                                 const float* queries, float* output,
                                 Scratch::Buffers& buffers) const {
  const ModelConfig& c = config();
  const std::size_t heads = c.num_attention_heads;
  const std::size_t latent_stride = round_up_to_lanes(latent_dim());
  const std::size_t tile_rows_max = std::max<std::size_t>(1, kQueriesAtOnce / heads);
  std::size_t positions_max = 0;
  for (const Row& row : rows) {
    positions_max = std::max<std::size_t>(positions_max, row.cache->num_positions_max());
  }
  // Holds a transposed block, then the sum of every head.
  float* const panel = buffers.floats(Slot::kPanel, std::max(kLanes * latent_stride, heads));
  float* const scores =
      buffers.floats(Slot::kScores, tile_rows_max * heads * round_up_to_lanes(positions_max));

  for (std::size_t begin = 0; begin < rows.size();) {
    // Rows of one sequence that stand side by side share the transposed blocks of its cache.
    KvCache& cache = *rows[begin].cache;
    std::size_t end = begin + 1;
    while (end < rows.size() && end - begin < tile_rows_max && rows[end].cache == &cache &&
           rows[end].position > rows[end - 1].position) {
      ++end;
    }
    const std::size_t num_rows = end - begin;
    const std::size_t num_positions = std::size_t{rows[end - 1].position} + 1;
    const std::size_t scores_stride = round_up_to_lanes(num_positions);

    std::size_t first = 0;  // Of this tile's rows, the first that sees the block.
    for (std::size_t block = 0; block < num_positions; block += kLanes) {
      while (rows[begin + first].position < block) {
        ++first;
      }
      const float* entries[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        // Past the end the last entry stands in: its lanes' scores are never read.
        entries[i] = cache.entry(
            layer_idx, static_cast<std::uint32_t>(std::min(block + i, num_positions - 1)));
      }
      kernels->transpose(entries, latent_dim(), panel);
      kernels->product_f32({.x = queries + (begin + first) * heads * latent_stride,
                            .x_stride = latent_stride,
                            .num_rows = (num_rows - first) * heads,
                            .panels = panel,
                            .k = latent_dim(),
                            .n = kLanes,
                            .out = scores + first * heads * scores_stride + block,
                            .out_stride = scores_stride});
    }
    for (std::size_t i = 0; i < num_rows; ++i) {
      float* const row_scores = scores + i * heads * scores_stride;
      float* const row_output = output + (begin + i) * heads * c.kv_lora_rank;
      const std::size_t seen = std::size_t{rows[begin + i].position} + 1;
      float* const sums = panel;  // The transposed block is done with.
      for (std::size_t head = 0; head < heads; ++head) {
        sums[head] = kernels->exp_minus_max(row_scores + head * scores_stride, seen, softmax_scale);
      }
      kernels->product_f32({.x = row_scores,
                            .x_stride = scores_stride,
                            .num_rows = heads,
                            .panels = cache.entry(layer_idx, 0),
                            .panel_stride = kLanes,
                            .k_stride = cache.entry_floats(),
                            .k = seen,
                            .n = c.kv_lora_rank,
                            .out = row_output,
                            .out_stride = c.kv_lora_rank});
      for (std::size_t head = 0; head < heads; ++head) {
        float* const mixed = row_output + head * c.kv_lora_rank;
        kernels->scale(mixed, mixed, 1.0f / sums[head], c.kv_lora_rank);
      }
    }
    begin = end;
  }
}

void AttentionPart::add(float* residual, const float* ffn_output, std::size_t num_rows) const {
  weights_->kernels->add(residual, ffn_output, num_rows * config().hidden_size);
}

void AttentionPart::logits(const float* residual, std::size_t num_rows, float* logits,
                           Scratch& scratch) const {
  const std::size_t hidden_size = config().hidden_size;
  const std::size_t vocab_size = config().vocab_size;
  for (std::size_t begin = 0; begin < num_rows; begin += kRowsAtOnce) {
    const std::size_t count = std::min(kRowsAtOnce, num_rows - begin);
    float* const normed = scratch.buffers().floats(Slot::kFinalNorm, count * hidden_size);
    for (std::size_t i = 0; i < count; ++i) {
      weights_->kernels->rms_norm(residual + (begin + i) * hidden_size, weights_->final_norm.data(),
                                  hidden_size, static_cast<float>(config().rms_norm_eps),
                                  normed + i * hidden_size);
    }
    weights_->lm_head.multiply(*weights_->kernels, normed, hidden_size, count,
                               logits + begin * vocab_size, vocab_size);
  }
}

void AttentionPart::router_logits(std::uint32_t layer_idx, const float* hidden,
                                  std::size_t num_rows, float* router_logits,
                                  Scratch& /*scratch*/) const {
  const Weights::Layer& layer = weights_->layers[layer_idx];
  AFD_CHECK(layer.router.has_value(), layer_idx);
  layer.router->multiply(*weights_->kernels, hidden, config().hidden_size, num_rows, router_logits,
                         config().n_routed_experts);
}

void AttentionPart::dense_mlp(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows,
                              float* output, Scratch& scratch) const {
  const Weights::Layer& layer = weights_->layers[layer_idx];
  AFD_CHECK(layer.dense_mlp.has_value(), layer_idx);
  layer.dense_mlp->forward(*weights_->kernels, hidden, num_rows, output, scratch.buffers());
}

}  // namespace afd::model
