// Two-step shutdown: refuse new work, then wait until the work under way has left (after Seastar's
// gate).
//
// Threads: enter() and leave() from any thread; open() and close_and_drain() from one at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace afd::base {

class Gate {
 public:
  /// Lets work in. What was written before open() is seen by work that entered after it.
  void open() noexcept {
    // Pairs with the acquire in enter(). Only the bit: a caller that was refused a moment ago may
    // be between its fetch_add and its leave().
    word_.fetch_and(~kClosed, std::memory_order_release);
  }

  /// True: the caller is inside until leave(). False: the gate is closed.
  bool enter() noexcept {
    // Acquire pairs with the release in open().
    if ((word_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0) {
      return true;
    }
    leave();
    return false;
  }

  bool is_open() const noexcept { return (word_.load(std::memory_order_acquire) & kClosed) == 0; }

  void leave() noexcept {
    // Release pairs with the acquire in close_and_drain(): what the work did happens before
    // teardown.
    word_.fetch_sub(1, std::memory_order_release);
  }

  /// Closes and returns when nobody is inside, calling `wake` until then, for those who sleep.
  template <typename Wake>
  void close_and_drain(Wake wake) noexcept {
    word_.fetch_or(kClosed, std::memory_order_acq_rel);
    while ((word_.load(std::memory_order_acquire) & ~kClosed) != 0) {
      wake();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  static constexpr std::uint32_t kClosed = 1u << 31;
  std::atomic<std::uint32_t> word_{kClosed};
};

/// Leaves the gate at the end of a scope that entered it.
class GateScope {
 public:
  explicit GateScope(Gate& gate) noexcept : gate_(gate.enter() ? &gate : nullptr) {}
  ~GateScope() {
    if (gate_ != nullptr) {
      gate_->leave();
    }
  }
  GateScope(const GateScope&) = delete;
  GateScope& operator=(const GateScope&) = delete;
  bool entered() const noexcept { return gate_ != nullptr; }

 private:
  Gate* gate_;
};

}  // namespace afd::base
