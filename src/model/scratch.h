// The inside of Scratch: buffers that only grow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/model.h"

namespace afd::model {

/// What the buffers hold; each function's own, so that nested calls never share one.
enum class Slot : std::uint8_t {
  kProjected,
  kQueryLatent,
  kQueries,
  kLatentNorm,
  kAngles,
  kLatentQueries,
  kPanel,
  kScores,
  kLatentOutput,
  kValues,
  kAttentionOutput,
  kFinalNorm,
  kMlpInner,
  kRouterLogits,
  kRoutingScratch,
  kTopkWeights,
  kExpertInput,
  kExpertOutput,
  kExpertSum,
  kCount,
};

struct Scratch::Buffers {
  struct AlignedDelete {
    void operator()(float* memory) const;
  };
  struct Buffer {
    std::unique_ptr<float[], AlignedDelete> data;
    std::size_t size = 0;
  };

  /// At least `count` floats, 64-byte aligned, with whatever was there before.
  float* floats(Slot slot, std::size_t count);

  std::array<Buffer, static_cast<std::size_t>(Slot::kCount)> slots;
  std::vector<std::int32_t> topk_ids;
  std::vector<std::uint32_t> expert_begins;
  std::vector<std::uint32_t> slot_of_choice;
};

}  // namespace afd::model
