// The DeepSeek-V2/V3 network, cut where attention-FFN disaggregation cuts it. Tensors in, tensors
// out: it knows neither ranks nor transports.
//
// One forward pass of a batch of rows (tokens of any mix of sequences):
//
//     embed(token_ids) -> residual
//     for each layer:
//        attention(layer, rows): residual += attention; hidden = norm(residual)    attention side
//        FfnPart::forward(layer, hidden) -> ffn_output                             FFN side
//        add(residual, ffn_output)                                                 attention side
//     logits(residual row) -> [vocab_size]
//
// Layout invariance: every output row is computed from its own input row (and its own sequence's KV
// cache) alone, with fixed accumulation order: the bits do not depend on which other rows are in
// the batch, on how the batch is cut, or on the number of threads.
//
// All activations are float32, row-major, dense.
//
// Threads: a loaded part is immutable; concurrent calls need their own Scratch (and their own
// sequences). Nothing allocates after a Scratch has seen its largest batch.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <afd/result.h>

#include "model/checkpoint.h"
#include "model/kernels.h"
#include "model/model_config.h"

namespace afd::model {

/// Working memory of one thread. Grows to the largest batch, and the largest cache, seen.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  struct Buffers;
  Buffers& buffers() { return *buffers_; }

 private:
  std::unique_ptr<Buffers> buffers_;
};

/// The compressed KV cache of one sequence: per layer and position kv_lora_rank + qk_rope_head_dim
/// floats. Sized once for `num_positions_max`; memory is touched as positions are written.
class KvCache {
 public:
  KvCache(const ModelConfig& config, std::uint32_t num_positions_max);

  std::uint32_t num_positions_max() const { return num_positions_max_; }

  /// Floats of one entry, those that fill it up to whole panels included.
  std::size_t entry_floats() const { return entry_floats_; }
  float* entry(std::uint32_t layer_idx, std::uint32_t position) {
    return data_.get() + (std::size_t{layer_idx} * num_positions_max_ + position) * entry_floats_;
  }

 private:
  std::uint32_t num_positions_max_;
  std::size_t entry_floats_;
  std::unique_ptr<float[]> data_;
};

/// One row of a batch: the token at `position` of the sequence that `cache` belongs to. Rows of one
/// sequence stand in ascending position order; all earlier positions are in the cache or in the
/// batch.
struct Row {
  KvCache* cache = nullptr;
  std::uint32_t position = 0;
};

struct AttentionOptions {
  /// Also load the routers and the dense MLPs: the gate runs on the attention side.
  bool gate = false;
  /// All give the same bits; one that this machine lacks is an error. For tests and benchmarks.
  InstructionSet instruction_set = InstructionSet::kBest;
};

/// What attention ranks own: embedding, norms, attention, final norm and LM head.
class AttentionPart {
 public:
  /// @return kInvalidArgument  a tensor is missing or has another shape or dtype: which, found,
  ///                           wanted
  ///         kUnavailable      too little memory, or no such instruction set
  static Result<std::unique_ptr<AttentionPart>> load(const Checkpoint& checkpoint,
                                                     const AttentionOptions& options);
  ~AttentionPart();

  const ModelConfig& config() const;

  /// residual[i] = embedding of token_ids[i]; ids were checked to be in [0, vocab_size).
  void embed(std::span<const std::int32_t> token_ids, float* residual) const;

  /// The attention block of one layer: input norm, MLA (writing this batch's KV entries), residual
  /// add, post-attention norm. residual and hidden: [rows.size(), hidden_size].
  void attention(std::uint32_t layer_idx, std::span<const Row> rows, float* residual, float* hidden,
                 Scratch& scratch) const;

  /// residual += ffn_output, element by element.
  void add(float* residual, const float* ffn_output, std::size_t num_rows) const;

  /// Final norm and LM head. residual: [num_rows, hidden_size]; logits: [num_rows, vocab_size].
  void logits(const float* residual, std::size_t num_rows, float* logits, Scratch& scratch) const;

  /// Router logits of an MoE layer (options.gate): [num_rows, n_routed_experts].
  void router_logits(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows,
                     float* router_logits, Scratch& scratch) const;
  /// The MLP of a dense layer (options.gate): [num_rows, hidden_size].
  void dense_mlp(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows, float* output,
                 Scratch& scratch) const;

 private:
  struct Weights;
  explicit AttentionPart(std::unique_ptr<Weights> weights);
  std::unique_ptr<Weights> weights_;
};

struct FfnOptions {
  /// The gate runs on the attention side: routers and dense MLPs are not loaded, and forward()
  /// needs router logits.
  bool gate_on_attention = false;
  /// As in AttentionOptions.
  InstructionSet instruction_set = InstructionSet::kBest;
};

/// What FFN ranks own: dense MLPs, routers, routed and shared experts.
class FfnPart {
 public:
  /// @return as AttentionPart::load()
  static Result<std::unique_ptr<FfnPart>> load(const Checkpoint& checkpoint,
                                               const FfnOptions& options);
  ~FfnPart();

  const ModelConfig& config() const;

  /// One layer. hidden and output: [num_rows, hidden_size]; they do not overlap. router_logits:
  /// [num_rows, n_routed_experts], or null where this part has the router (or the layer is dense).
  void forward(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows,
               const float* router_logits, float* output, Scratch& scratch) const;

  /// The experts that the router chooses and their weights, best first: [num_rows,
  /// num_experts_per_tok].
  void route(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows,
             const float* router_logits, std::int32_t* topk_ids, float* topk_weights,
             Scratch& scratch) const;

 private:
  struct Weights;
  explicit FfnPart(std::unique_ptr<Weights> weights);
  std::unique_ptr<Weights> weights_;
};

}  // namespace afd::model
