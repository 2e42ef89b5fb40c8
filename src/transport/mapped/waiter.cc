#include "transport/mapped/waiter.h"

#include <sched.h>

#include "base/clock.h"
#include "base/fence.h"
#include "base/futex.h"

namespace afd::transport {

void ring_unfenced(Doorbell& doorbell) noexcept {
  std::uint32_t word = doorbell.word.load(std::memory_order_relaxed);
  if ((word & 1) == 0) {
    return;
  }
  // If this fails, somebody else rang at this value, or a sleeper arrived after that; both look at
  // their condition after our fence, so they see what we published.
  if (doorbell.word.compare_exchange_strong(word, word + 1, std::memory_order_relaxed)) {
    base::futex_wake_all(doorbell.word);
  }
}

void ring(Doorbell& doorbell) noexcept {
  // Pairs with the fence in Waiter::sleep(). Of two full fences one is first. If ours is, the
  // sleeper's last look sees what we published. If the sleeper's is, our load sees the odd word.
  base::full_fence();
  ring_unfenced(doorbell);
}

void Waiter::wake(Doorbell& doorbell) noexcept {
  wakes_.fetch_add(1, std::memory_order_release);
  ring(doorbell);
}

WaitStats Waiter::stats() const noexcept {
  return {.spins_won = spins_won_.load(std::memory_order_relaxed),
          .yields_won = yields_won_.load(std::memory_order_relaxed),
          .sleeps = sleeps_.load(std::memory_order_relaxed)};
}

Waiter::End Waiter::look(Condition condition, std::uint32_t wakes_seen) const noexcept {
  if (condition.holds(condition.argument)) {
    return End::kHolds;
  }
  return wakes_.load(std::memory_order_acquire) == wakes_seen ? End::kGoOn : End::kWoken;
}

Waiter::End Waiter::spin(Condition condition, Deadline deadline,
                         std::uint32_t wakes_seen) noexcept {
  constexpr int kLooksPerClock = 8;
  const std::uint64_t start = base::ticks();
  const std::uint64_t budget = base::ticks_of_ns(policy_.spin_ns_max);
  while (base::ticks() - start < budget) {
    for (int i = 0; i < kLooksPerClock; ++i) {
      if (const End end = look(condition, wakes_seen); end != End::kGoOn) {
        return end;
      }
      base::spin_pause();
    }
    if (deadline.expired()) {
      return End::kExpired;
    }
  }
  return End::kGoOn;
}

Waiter::End Waiter::yield(Condition condition, Deadline deadline,
                          std::uint32_t wakes_seen) noexcept {
  const std::uint64_t start = base::ticks();
  const std::uint64_t budget = base::ticks_of_ns(policy_.yield_ns_max);
  while (base::ticks() - start < budget) {
    ::sched_yield();
    if (const End end = look(condition, wakes_seen); end != End::kGoOn) {
      return end;
    }
    if (deadline.expired()) {
      return End::kExpired;
    }
  }
  return End::kGoOn;
}

Waiter::End Waiter::sleep(Doorbell& doorbell, Condition condition, Deadline deadline,
                          std::uint32_t wakes_seen) noexcept {
  while (true) {
    const std::uint32_t word = doorbell.word.fetch_or(1, std::memory_order_relaxed) | 1;
    base::full_fence();  // Pairs with the fence in ring().
    if (const End end = look(condition, wakes_seen); end != End::kGoOn) {
      return end;  // The word may stay odd: the next ring() then makes one needless system call.
    }
    if (deadline.expired()) {
      return End::kExpired;
    }
    base::futex_wait(doorbell.word, word, deadline);
  }
}

bool Waiter::wait(Doorbell& doorbell, Condition condition, Deadline deadline) noexcept {
  const std::uint32_t wakes_seen = wakes_seen_.load(std::memory_order_relaxed);
  End end = look(condition, wakes_seen);
  if (end == End::kGoOn && deadline.expired()) {
    return false;
  }
  if (end == End::kGoOn && policy_.spin_ns_max > 0) {
    end = spin(condition, deadline, wakes_seen);
    if (end == End::kHolds) {
      spins_won_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (end == End::kGoOn && policy_.yield_ns_max > 0) {
    end = yield(condition, deadline, wakes_seen);
    if (end == End::kHolds) {
      yields_won_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (end == End::kGoOn) {
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    end = sleep(doorbell, condition, deadline, wakes_seen);
  }
  if (end == End::kWoken) {
    wakes_seen_.store(wakes_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return condition.holds(condition.argument);
  }
  return end == End::kHolds;
}

}  // namespace afd::transport
