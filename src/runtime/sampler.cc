#include "runtime/sampler.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace afd::runtime {
namespace {

// Multipliers and key increments of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3".
constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

std::size_t index_of_largest(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t id = 1; id < logits.size(); ++id) {
    if (logits[id] > logits[best]) {
      best = id;
    }
  }
  return best;
}

/// NaN, or infinity upwards: the difference to it would be NaN.
bool has_no_largest(std::span<const float> logits) {
  bool found = false;
  for (const float logit : logits) {
    found |= !(logit <= std::numeric_limits<float>::max());
  }
  return found;
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

double uniform(std::uint64_t seed, DrawId draw) {
  const std::array<std::uint32_t, 4> bits =
      philox4x32({draw.position, draw.request_idx, 0, 0},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t word = std::uint64_t{bits[1]} << 32 | bits[0];
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

Result<std::int32_t> choose_token(std::span<const float> logits, const SamplingParams& params,
                                  DrawId draw) {
  if (has_no_largest(logits)) {
    return fail(ErrorCode::kInvalidArgument, "request " + std::to_string(draw.request_idx) +
                                                 ", position " + std::to_string(draw.position) +
                                                 ": " + std::string(kLogitsNotFinite));
  }
  const std::size_t best = index_of_largest(logits);
  if (params.temperature == 0.0) {
    return static_cast<std::int32_t>(best);
  }
  // In double and in id order. The two passes compute the same terms, so that the walk ends.
  const double largest = logits[best];
  const auto weight = [&](std::size_t id) {
    return std::exp((static_cast<double>(logits[id]) - largest) / params.temperature);
  };
  double sum = 0.0;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    sum += weight(id);
  }
  const double target = uniform(params.seed, draw) * sum;
  double reached = 0.0;
  std::size_t last_possible = best;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const double term = weight(id);
    reached += term;
    if (term > 0.0) {
      last_possible = id;
      if (reached > target) {
        return static_cast<std::int32_t>(id);
      }
    }
  }
  return static_cast<std::int32_t>(last_possible);  // target rounded up to the sum
}

}  // namespace afd::runtime
