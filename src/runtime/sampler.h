// From a logits vector to a token.
//
// A choice depends on the logits, the parameters, the request's place in the job and the position
// alone: never on the layout, the batch or how many tokens other requests drew.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include <afd/result.h>

#include "runtime/request.h"

namespace afd::runtime {

/// Where in the job a token is drawn.
struct DrawId {
  std::uint32_t request_idx = 0;
  std::uint32_t position = 0;  ///< Of the new token in its sequence, prompt included.
};

inline constexpr std::string_view kLogitsNotFinite = "the logits are not finite";

/// The lowest id among those with the largest logit (temperature 0), or one drawn from
/// softmax(logits / temperature).
///
/// @param logits  [vocab_size], at least one
/// @return kInvalidArgument  a logit is NaN or infinite upwards, as damaged weights make them:
///                           request and position are named, and kLogitsNotFinite
Result<std::int32_t> choose_token(std::span<const float> logits, const SamplingParams& params,
                                  DrawId draw);

/// Philox 4x32 with 10 rounds: 128 random bits for each (key, counter), no state.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// A number in [0, 1) with 53 random bits for this draw.
double uniform(std::uint64_t seed, DrawId draw);

}  // namespace afd::runtime
