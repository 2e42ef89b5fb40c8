// What is worth telling about a checkpoint that loads: tensors that nobody reads, and weights that
// are no numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace afd::model {

/// Names of tensors that no part of the model reads, in order. Not those of the extra layers for
/// predicting further tokens, which `num_nextn_predict_layers` announces, nor what other programs
/// write into such files although it follows from the configuration (`rotary_emb.inv_freq`, the
/// output matrix where it is the embeddings').
std::vector<std::string> unused_tensors(const Checkpoint& checkpoint);

/// The first weight that is NaN or infinite: "tensor \"x\" is NaN at element 7 of [3, 5]". Reads
/// every weight, up to `bytes_max` bytes of them.
std::optional<std::string> find_non_finite(const Checkpoint& checkpoint,
                                           std::uint64_t bytes_max = std::uint64_t{64} << 30);

}  // namespace afd::model
