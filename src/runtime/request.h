// What a user asks of the model, and what comes back. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace afd::runtime {

struct SamplingParams {
  double temperature = 0.0;  ///< 0: the most likely token; else finite and positive.
  std::uint64_t seed = 0;    ///< Of the request's random numbers.
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

struct Request {
  /// Place among all prompts of the job. With the seed it names the request's random numbers, so
  /// that they do not depend on which rank serves it.
  std::uint32_t request_idx = 0;
  std::vector<std::int32_t> prompt_ids;  ///< At least one.
  std::uint32_t max_new_tokens = 1;      ///< At least 1.
  SamplingParams sampling;
  friend bool operator==(const Request&, const Request&) = default;
};

enum class FinishReason : std::uint8_t {
  kLength,  ///< max_new_tokens, or the end of the context.
  kStop,    ///< One of the model's end tokens, which is the last of token_ids.
};

/// "length" or "stop".
constexpr std::string_view to_string(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

struct Output {
  std::uint32_t request_idx = 0;
  std::vector<std::int32_t> token_ids;  ///< Generated ones only.
  FinishReason finish_reason = FinishReason::kLength;
  /// Lower-case hex SHA-256 over the little-endian float32 logits vectors that chose the tokens, in
  /// order. Empty unless it was asked for.
  std::string logits_sha256;
  friend bool operator==(const Output&, const Output&) = default;
};

/// A token that has just been chosen, for streaming.
struct TokenEvent {
  std::uint32_t request_idx = 0;
  std::int32_t token_id = 0;
  friend bool operator==(const TokenEvent&, const TokenEvent&) = default;
};

}  // namespace afd::runtime
