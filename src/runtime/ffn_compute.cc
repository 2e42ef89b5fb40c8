#include "runtime/ffn_compute.h"

#include <string>

namespace afd::runtime {

std::vector<std::uint32_t> ModelFfnCompute::served_layers() const {
  const model::ModelConfig& config = part_.config();
  std::vector<std::uint32_t> layers;
  for (std::uint32_t layer_idx = 0; layer_idx < config.num_hidden_layers; ++layer_idx) {
    if (!gate_on_attention_ || config.is_moe_layer(layer_idx)) {
      layers.push_back(layer_idx);
    }
  }
  return layers;
}

std::optional<ExpertRoutingSpec> ModelFfnCompute::routing_spec() const {
  if (!gate_on_attention_) {
    return std::nullopt;
  }
  return ExpertRoutingSpec{.router_logits_width = part_.config().n_routed_experts,
                           .router_logits_dtype = kFloat32};
}

Result<F2ATransferPayload> ModelFfnCompute::forward(std::uint32_t layer_idx,
                                                    const A2FTransferPayload& input,
                                                    TensorView output) {
  if (input.hidden_states.dtype != kFloat32) {
    return fail(ErrorCode::kProtocolMismatch, "hidden states are " +
                                                  to_string(input.hidden_states.dtype) +
                                                  ", this model computes in float32");
  }
  part_.forward(layer_idx, static_cast<const float*>(input.hidden_states.data),
                static_cast<std::size_t>(input.hidden_states.num_rows()),
                static_cast<const float*>(input.router_logits.data),
                static_cast<float*>(output.data), scratch_);
  return F2ATransferPayload{.routed_output = output, .shared_output = {}};
}

}  // namespace afd::runtime
