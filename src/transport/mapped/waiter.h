// Waiting for another rank: spin, yield, sleep, with budgets that follow experience.
#pragma once

#include <atomic>
#include <cstdint>

#include <afd/deadline.h>

#include "transport/mapped/window_layout.h"
#include "transport/transport.h"

namespace afd::transport {

/// Upper limits of what a wait may spend before it sleeps.
struct WaitPolicy {
  std::int64_t spin_ns_max = 5'000;    ///< 0: never spin
  std::int64_t yield_ns_max = 50'000;  ///< 0: never yield
};

/// Wakes whoever sleeps on `doorbell`, if anybody does; otherwise costs a fence and a load, no
/// system call. Everything this thread stored before is visible to a sleeper that checks its
/// condition. Async-signal-safe.
void ring(Doorbell& doorbell) noexcept;

/// The same without the fence: may miss a sleeper that just lies down, so a ring() has to follow.
void ring_unfenced(Doorbell& doorbell) noexcept;

/// Waits at one doorbell. Any number of threads may wait at the same time.
class Waiter {
 public:
  explicit Waiter(WaitPolicy policy) : policy_(policy) {}

  bool wait(Doorbell& doorbell, Condition condition, Deadline deadline) noexcept;

  /// Ends a wait() under way, or else the next one, early. Async-signal-safe.
  void wake(Doorbell& doorbell) noexcept;

  WaitStats stats() const noexcept;

 private:
  enum class End { kHolds, kWoken, kExpired, kGoOn };

  End look(Condition condition, std::uint32_t wakes_seen) const noexcept;
  End spin(Condition condition, Deadline deadline, std::uint32_t wakes_seen) noexcept;
  End yield(Condition condition, Deadline deadline, std::uint32_t wakes_seen) noexcept;
  End sleep(Doorbell& doorbell, Condition condition, Deadline deadline,
            std::uint32_t wakes_seen) noexcept;

  const WaitPolicy policy_;
  // wake() adds one with release, so that a waiter that sees it (acquire) sees the flags that the
  // caller of wake() had set before.
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<std::uint32_t> wakes_seen_{0};  // Of the last wait that ended by wake().

  // Statistics; relaxed, read by anybody.
  std::atomic<std::uint64_t> spins_won_{0};
  std::atomic<std::uint64_t> yields_won_{0};
  std::atomic<std::uint64_t> sleeps_{0};
};

}  // namespace afd::transport
