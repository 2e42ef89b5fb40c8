#include "model/scratch.h"

#include <new>

namespace afd::model {
namespace {

constexpr std::align_val_t kAlign{64};

}  // namespace

void Scratch::Buffers::AlignedDelete::operator()(float* memory) const {
  ::operator delete[](memory, kAlign);
}

float* Scratch::Buffers::floats(Slot slot, std::size_t count) {
  Buffer& buffer = slots[static_cast<std::size_t>(slot)];
  if (buffer.size < count) {
    buffer.data.reset();
    buffer.data.reset(new (kAlign) float[count]);
    buffer.size = count;
  }
  return buffer.data.get();
}

Scratch::Scratch() : buffers_(std::make_unique<Buffers>()) {}
Scratch::~Scratch() = default;
Scratch::Scratch(Scratch&&) noexcept = default;
Scratch& Scratch::operator=(Scratch&&) noexcept = default;

KvCache::KvCache(const ModelConfig& config, std::uint32_t num_positions_max)
    : num_positions_max_(num_positions_max),
      entry_floats_(round_up_to_lanes(config.kv_lora_rank + config.qk_rope_head_dim)),
      // Not set to zero: a first touch of every page would cost more than a short sequence.
      data_(std::make_unique_for_overwrite<float[]>(std::size_t{config.num_hidden_layers} *
                                                    num_positions_max * entry_floats_)) {}

}  // namespace afd::model
