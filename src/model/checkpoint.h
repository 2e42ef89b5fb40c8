// A Hugging Face checkpoint directory: config.json and *.safetensors, single or sharded,
// memory-mapped.
//
// Threads: immutable after open(). Copies share the mapping, which lives as long as any of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>
#include <afd/tensor.h>

#include "model/model_config.h"

namespace afd::model {

/// Whether weights can be of this type: f32, f16 or bf16.
bool is_weight_dtype(DType dtype);

class Checkpoint {
 public:
  /// Maps model.safetensors, or the shards that model.safetensors.index.json names. Reads and
  /// checks every header; touches no weight.
  /// @return kInvalidArgument  which file, what is wrong: truncated, a header that lies
  ///                           (overlapping, out of bounds, wrong size for its shape), an unknown
  ///                           dtype, a shard that is missing or outside the directory, ...
  static Result<Checkpoint> open(const std::string& directory);

  const ModelConfig& config() const;
  const std::string& directory() const;

  /// The tensor, viewed in the mapped file. dtype f32, f16 or bf16.
  /// @return kInvalidArgument  it is missing, its shape is not `shape`, or it has another dtype:
  ///                           found and wanted
  Result<ConstTensorView> tensor(std::string_view name, const Shape& shape) const;
  bool has_tensor(std::string_view name) const;
  /// The tensor, whatever its shape and dtype; nothing where there is none of that name.
  std::optional<ConstTensorView> find_tensor(std::string_view name) const;
  std::vector<std::string> tensor_names() const;

  /// Lower-case hex SHA-256 over names, dtypes, shapes and sampled contents of all tensors and the
  /// config: equal checkpoints have equal hashes on every rank. For the handshake.
  std::string content_hash() const;

 private:
  struct State;
  explicit Checkpoint(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace afd::model
