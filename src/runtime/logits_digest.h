// SHA-256 over the logits vectors that chose a sequence's tokens: equal digests, equal bits.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <span>
#include <string>

namespace afd::runtime {

class LogitsDigest {
 public:
  LogitsDigest();
  ~LogitsDigest();
  LogitsDigest(LogitsDigest&&) noexcept;
  LogitsDigest& operator=(LogitsDigest&&) noexcept;

  /// Appends one vector's float32 little-endian bytes.
  void update(std::span<const float> logits);
  /// Lower-case hex of all so far; starts anew.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace afd::runtime
