// What an FFN rank computes, behind an interface: the server (ffn_server.h) knows the contract, an
// engine knows its kernels.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <afd/metadata.h>
#include <afd/result.h>
#include <afd/tensor.h>

#include "model/model.h"

namespace afd::runtime {

class FfnCompute {
 public:
  virtual ~FfnCompute() = default;

  /// The layers whose FFN runs here, ascending. All, or the MoE layers where the gate (and with it
  /// the dense layers) is on the attention side.
  virtual std::vector<std::uint32_t> served_layers() const = 0;

  /// Set where router logits come with the hidden states.
  virtual std::optional<ExpertRoutingSpec> routing_spec() const = 0;

  /// One layer of one transfer.
  ///
  /// @param input   as received; may hold rows of several attention ranks
  /// @param output  [total_tokens, hidden_size] to write; does not overlap the input
  /// @return `output`, or tensors of one's own that stay untouched until the next call
  virtual Result<F2ATransferPayload> forward(std::uint32_t layer_idx,
                                             const A2FTransferPayload& input,
                                             TensorView output) = 0;
};

/// The C++ model's FFN part as compute. `part` outlives this object.
class ModelFfnCompute : public FfnCompute {
 public:
  ModelFfnCompute(const model::FfnPart& part, bool gate_on_attention)
      : part_(part), gate_on_attention_(gate_on_attention) {}

  std::vector<std::uint32_t> served_layers() const override;
  std::optional<ExpertRoutingSpec> routing_spec() const override;
  Result<F2ATransferPayload> forward(std::uint32_t layer_idx, const A2FTransferPayload& input,
                                     TensorView output) override;

 private:
  const model::FfnPart& part_;
  bool gate_on_attention_;
  model::Scratch scratch_;
};

}  // namespace afd::runtime
