// The smallest runtime that can drive the network, for tests and benchmarks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "model/model.h"

namespace afd::model {

struct TestModelOptions {
  bool gate_on_attention = false;
  InstructionSet instruction_set = InstructionSet::kBest;
};

/// Both parts of one checkpoint.
struct TestModel {
  std::unique_ptr<AttentionPart> attention;
  std::unique_ptr<FfnPart> ffn;
  bool gate_on_attention = false;

  const ModelConfig& config() const { return attention->config(); }

  static Result<TestModel> load(const std::string& directory,
                                const TestModelOptions& options = {}) {
    const Result<Checkpoint> checkpoint = Checkpoint::open(directory);
    if (!checkpoint) {
      return fail(checkpoint.error());
    }
    auto attention = AttentionPart::load(*checkpoint, {.gate = options.gate_on_attention,
                                                       .instruction_set = options.instruction_set});
    if (!attention) {
      return fail(std::move(attention).error());
    }
    auto ffn = FfnPart::load(*checkpoint, {.gate_on_attention = options.gate_on_attention,
                                           .instruction_set = options.instruction_set});
    if (!ffn) {
      return fail(std::move(ffn).error());
    }
    return TestModel{*std::move(attention), *std::move(ffn), options.gate_on_attention};
  }
};

/// Sees the residual stream and the normed rows of each layer, after attention and after the FFN.
using OnLayer = std::function<void(std::uint32_t layer_idx, bool after_ffn,
                                   std::span<const float> residual, std::span<const float> hidden)>;

/// One pass of a batch through the whole network.
/// @return the logits of the rows `wanted`, [wanted.size(), vocab_size]
inline std::vector<float> forward_batch(const TestModel& model, std::span<const Row> rows,
                                        std::span<const std::int32_t> token_ids,
                                        std::span<const std::size_t> wanted, Scratch& scratch,
                                        const OnLayer& on_layer = {}) {
  const ModelConfig& config = model.config();
  const std::size_t hidden_size = config.hidden_size;
  std::vector<float> residual(rows.size() * hidden_size);
  std::vector<float> hidden(residual.size());
  std::vector<float> output(residual.size());
  std::vector<float> router_logits(rows.size() * config.n_routed_experts);
  model.attention->embed(token_ids, residual.data());
  for (std::uint32_t layer_idx = 0; layer_idx < config.num_hidden_layers; ++layer_idx) {
    model.attention->attention(layer_idx, rows, residual.data(), hidden.data(), scratch);
    if (on_layer) {
      on_layer(layer_idx, false, residual, hidden);
    }
    if (!model.gate_on_attention) {
      model.ffn->forward(layer_idx, hidden.data(), rows.size(), nullptr, output.data(), scratch);
    } else if (config.is_moe_layer(layer_idx)) {
      model.attention->router_logits(layer_idx, hidden.data(), rows.size(), router_logits.data(),
                                     scratch);
      model.ffn->forward(layer_idx, hidden.data(), rows.size(), router_logits.data(), output.data(),
                         scratch);
    } else {
      model.attention->dense_mlp(layer_idx, hidden.data(), rows.size(), output.data(), scratch);
    }
    model.attention->add(residual.data(), output.data(), rows.size());
    if (on_layer) {
      on_layer(layer_idx, true, residual, hidden);
    }
  }
  std::vector<float> last(wanted.size() * hidden_size);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::copy_n(residual.begin() + static_cast<std::ptrdiff_t>(wanted[i] * hidden_size),
                hidden_size, last.begin() + static_cast<std::ptrdiff_t>(i * hidden_size));
  }
  std::vector<float> logits(wanted.size() * config.vocab_size);
  model.attention->logits(last.data(), wanted.size(), logits.data(), scratch);
  return logits;
}

/// One sequence with its cache.
class TestSequence {
 public:
  TestSequence(const TestModel& model, std::size_t num_positions_max)
      : model_(model), cache_(model.config(), static_cast<std::uint32_t>(num_positions_max)) {}

  /// Appends tokens; returns the logits after the last.
  std::vector<float> forward(std::span<const std::int32_t> token_ids) {
    const std::vector<Row> rows = next_rows(token_ids.size());
    const std::size_t last = token_ids.size() - 1;
    return forward_batch(model_, rows, token_ids, {&last, 1}, scratch_, on_layer);
  }

  /// Rows for the next positions, for a batch of several sequences.
  std::vector<Row> next_rows(std::size_t count) {
    std::vector<Row> rows;
    for (std::size_t i = 0; i < count; ++i) {
      rows.push_back({&cache_, position_++});
    }
    return rows;
  }

  OnLayer on_layer;

 private:
  const TestModel& model_;
  KvCache cache_;
  Scratch scratch_;
  std::uint32_t position_ = 0;
};

inline std::int32_t best_token(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// Greedy tokens, up to an end token or the context's end.
inline std::vector<std::int32_t> greedy(const TestModel& model,
                                        const std::vector<std::int32_t>& prompt,
                                        std::size_t num_tokens_max) {
  const std::vector<std::int32_t>& ends = model.config().eos_token_ids;
  TestSequence sequence(model, prompt.size() + num_tokens_max);
  std::vector<std::int32_t> ids;
  std::vector<float> logits = sequence.forward(prompt);
  while (ids.size() < num_tokens_max) {
    ids.push_back(best_token(logits));
    if (std::find(ends.begin(), ends.end(), ids.back()) != ends.end() ||
        prompt.size() + ids.size() >= model.config().max_position_embeddings) {
      break;
    }
    logits = sequence.forward({&ids.back(), 1});
  }
  return ids;
}

}  // namespace afd::model
