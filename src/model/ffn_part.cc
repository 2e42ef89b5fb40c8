#include <algorithm>
#include <optional>

#include "base/check.h"
#include "model/mlp.h"
#include "model/model.h"
#include "model/packed_matrix.h"
#include "model/routing.h"
#include "model/scratch.h"

namespace afd::model {

struct FfnPart::Weights {
  struct Layer {
    std::optional<Mlp> dense_mlp;
    std::optional<PackedMatrix> router;
    std::vector<float> router_bias;  ///< Empty: the routing has none.
    std::vector<Mlp> experts;
    std::optional<Mlp> shared_experts;
  };

  Result<void> load_layer(const Checkpoint& checkpoint, std::uint32_t layer_idx, bool with_gate);
  void route(const Layer& layer, const float* hidden, std::size_t num_rows,
             const float* router_logits, std::int32_t* topk_ids, float* topk_weights,
             Scratch::Buffers& buffers) const;
  void forward_experts(const Layer& layer, const float* hidden, std::size_t num_rows,
                       const float* router_logits, float* output, Scratch::Buffers& buffers) const;

  ModelConfig config;
  const Kernels* kernels = nullptr;
  Arena arena;
  std::vector<Layer> layers;
};

Result<std::unique_ptr<FfnPart>> FfnPart::load(const Checkpoint& checkpoint,
                                               const FfnOptions& options) {
  const Result<const Kernels*> kernels = find_kernels(options.instruction_set);
  if (!kernels) {
    return fail(kernels.error());
  }
  auto weights = std::make_unique<Weights>();
  weights->config = checkpoint.config();
  weights->kernels = *kernels;
  weights->layers.resize(weights->config.num_hidden_layers);
  for (std::uint32_t layer_idx = 0; layer_idx < weights->config.num_hidden_layers; ++layer_idx) {
    Result<void> loaded = weights->load_layer(checkpoint, layer_idx, !options.gate_on_attention);
    if (!loaded) {
      return fail(std::move(loaded).error());
    }
  }
  return std::unique_ptr<FfnPart>(new FfnPart(std::move(weights)));
}

Result<void> FfnPart::Weights::load_layer(const Checkpoint& checkpoint, std::uint32_t layer_idx,
                                          bool with_gate) {
  Layer& layer = layers[layer_idx];
  const std::string prefix = layer_name(layer_idx, "mlp");
  if (!config.is_moe_layer(layer_idx)) {
    if (with_gate) {
      Result<Mlp> mlp = Mlp::load(checkpoint, prefix, config.intermediate_size, arena);
      if (!mlp) {
        return fail(std::move(mlp).error());
      }
      layer.dense_mlp = *std::move(mlp);
    }
    return {};
  }
  if (with_gate) {
    Result<PackedMatrix> router = load_matrix(checkpoint, prefix + ".gate.weight",
                                              config.n_routed_experts, config.hidden_size, arena);
    if (!router) {
      return fail(std::move(router).error());
    }
    layer.router = *router;
  }
  // Choosing is done here also where the logits come from the attention side.
  if (config.topk_method == TopkMethod::kNoauxTc) {
    Result<std::vector<float>> bias =
        load_vector(checkpoint, prefix + ".gate.e_score_correction_bias", config.n_routed_experts);
    if (!bias) {
      return fail(std::move(bias).error());
    }
    layer.router_bias = *std::move(bias);
  }
  for (std::uint32_t expert = 0; expert < config.n_routed_experts; ++expert) {
    Result<Mlp> mlp = Mlp::load(checkpoint, prefix + ".experts." + std::to_string(expert),
                                config.moe_intermediate_size, arena);
    if (!mlp) {
      return fail(std::move(mlp).error());
    }
    layer.experts.push_back(*std::move(mlp));
  }
  if (config.n_shared_experts > 0) {
    Result<Mlp> mlp =
        Mlp::load(checkpoint, prefix + ".shared_experts",
                  std::size_t{config.n_shared_experts} * config.moe_intermediate_size, arena);
    if (!mlp) {
      return fail(std::move(mlp).error());
    }
    layer.shared_experts = *std::move(mlp);
  }
  return {};
}

FfnPart::FfnPart(std::unique_ptr<Weights> weights) : weights_(std::move(weights)) {}
FfnPart::~FfnPart() = default;

const ModelConfig& FfnPart::config() const {
  return weights_->config;
}

void FfnPart::forward(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows,
                      const float* router_logits, float* output, Scratch& scratch) const {
  const Weights::Layer& layer = weights_->layers[layer_idx];
  if (config().is_moe_layer(layer_idx)) {
    weights_->forward_experts(layer, hidden, num_rows, router_logits, output, scratch.buffers());
    return;
  }
  AFD_CHECK(layer.dense_mlp.has_value(), layer_idx);
  layer.dense_mlp->forward(*weights_->kernels, hidden, num_rows, output, scratch.buffers());
}

void FfnPart::route(std::uint32_t layer_idx, const float* hidden, std::size_t num_rows,
                    const float* router_logits, std::int32_t* topk_ids, float* topk_weights,
                    Scratch& scratch) const {
  AFD_CHECK(config().is_moe_layer(layer_idx), layer_idx);
  weights_->route(weights_->layers[layer_idx], hidden, num_rows, router_logits, topk_ids,
                  topk_weights, scratch.buffers());
}

void FfnPart::Weights::route(const Layer& layer, const float* hidden, std::size_t num_rows,
                             const float* router_logits, std::int32_t* topk_ids,
                             float* topk_weights, Scratch::Buffers& buffers) const {
  const std::size_t num_experts = config.n_routed_experts;
  const std::size_t top_k = config.num_experts_per_tok;
  if (router_logits == nullptr) {
    AFD_CHECK(layer.router.has_value());
    float* const computed = buffers.floats(Slot::kRouterLogits, num_rows * num_experts);
    layer.router->multiply(*kernels, hidden, config.hidden_size, num_rows, computed, num_experts);
    router_logits = computed;
  }
  float* const working = buffers.floats(Slot::kRoutingScratch, routing_scratch_floats(config));
  const float* const bias = layer.router_bias.empty() ? nullptr : layer.router_bias.data();
  for (std::size_t row = 0; row < num_rows; ++row) {
    route_token(config, *kernels, router_logits + row * num_experts, bias, working,
                topk_ids + row * top_k, topk_weights + row * top_k);
  }
}

void FfnPart::Weights::forward_experts(const Layer& layer, const float* hidden,
                                       std::size_t num_rows, const float* router_logits,
                                       float* output, Scratch::Buffers& buffers) const {
  const std::size_t hidden_size = config.hidden_size;
  const std::size_t num_experts = config.n_routed_experts;
  const std::size_t top_k = config.num_experts_per_tok;
  const std::size_t num_choices = num_rows * top_k;

  buffers.topk_ids.resize(std::max(buffers.topk_ids.size(), num_choices));
  std::int32_t* const topk_ids = buffers.topk_ids.data();
  float* const topk_weights = buffers.floats(Slot::kTopkWeights, num_choices);
  route(layer, hidden, num_rows, router_logits, topk_ids, topk_weights, buffers);

  // Choices sorted by expert, so that each expert's weights are read once: expert e has the slots
  // [begins[e], begins[e + 1]).
  std::vector<std::uint32_t>& begins = buffers.expert_begins;
  begins.assign(num_experts + 1, 0);
  for (std::size_t choice = 0; choice < num_choices; ++choice) {
    ++begins[static_cast<std::size_t>(topk_ids[choice]) + 1];
  }
  for (std::size_t expert = 0; expert < num_experts; ++expert) {
    begins[expert + 1] += begins[expert];
  }
  buffers.slot_of_choice.resize(std::max(buffers.slot_of_choice.size(), num_choices));
  std::uint32_t* const slot_of_choice = buffers.slot_of_choice.data();
  float* const inputs = buffers.floats(Slot::kExpertInput, num_choices * hidden_size);
  for (std::size_t choice = 0; choice < num_choices; ++choice) {
    const std::uint32_t slot = begins[static_cast<std::size_t>(topk_ids[choice])]++;
    slot_of_choice[choice] = slot;
    std::copy_n(hidden + choice / top_k * hidden_size, hidden_size, inputs + slot * hidden_size);
  }
  // Now begins[e] is the end of expert e.
  float* const outputs = buffers.floats(Slot::kExpertOutput, num_choices * hidden_size);
  std::size_t begin = 0;
  for (std::size_t expert = 0; expert < num_experts; ++expert) {
    const std::size_t end = begins[expert];
    if (end > begin) {
      layer.experts[expert].forward(*kernels, inputs + begin * hidden_size, end - begin,
                                    outputs + begin * hidden_size, buffers);
    }
    begin = end;
  }

  // In a fixed order for every row: its choices, best first, then the shared experts.
  float* const shared = inputs;  // Big enough: top_k is at least 1.
  if (layer.shared_experts) {
    layer.shared_experts->forward(*kernels, hidden, num_rows, shared, buffers);
  }
  // Summed privately, then written once: the output may be landing memory of another process.
  float* const sum = buffers.floats(Slot::kExpertSum, hidden_size);
  for (std::size_t row = 0; row < num_rows; ++row) {
    for (std::size_t rank = 0; rank < top_k; ++rank) {
      const std::size_t choice = row * top_k + rank;
      const float* const expert_output = outputs + slot_of_choice[choice] * hidden_size;
      if (rank == 0) {
        kernels->scale(sum, expert_output, topk_weights[choice], hidden_size);
      } else {
        kernels->scale_add(sum, expert_output, topk_weights[choice], hidden_size);
      }
    }
    if (layer.shared_experts) {
      kernels->add(sum, shared + row * hidden_size, hidden_size);
    }
    std::copy_n(sum, hidden_size, output + row * hidden_size);
  }
}

}  // namespace afd::model
