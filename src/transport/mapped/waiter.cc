#include "transport/mapped/waiter.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/fence.h"
#include "base/futex.h"

namespace afd::transport {
namespace {

constexpr std::int64_t kSlowYieldNs = 4'000;      // An empty one takes 0.4 to 1.3 us.
constexpr std::int64_t kHoggedYieldNs = 800'000;  // Time slices are about 3 ms.
constexpr std::int64_t kSharedYieldNs = 20'000;   // From the table in the header.
constexpr std::int64_t kYieldNsMin = 50'000;
constexpr std::uint32_t kSlowShare = 256;    // of 1024
constexpr std::uint32_t kHoggedShare = 128;  // of 1024
constexpr std::uint32_t kLookEvery = 32;

/// Moves `share` an eighth of the way to 1024 or to 0.
void follow(std::atomic<std::uint32_t>& share, bool happened) noexcept {
  const std::uint32_t now = share.load(std::memory_order_relaxed);
  share.store(happened ? now + (1024 - now) / 8 : now - now / 8, std::memory_order_relaxed);
}

/// Sleeps on the doorbell's word.
class DoorbellBed final : public Bed {
 public:
  DoorbellBed(Doorbell& doorbell, Sleepers& sleepers) : doorbell_(doorbell), sleepers_(sleepers) {}

  void enter() noexcept override { sleepers_.enter(); }
  std::uint32_t arm() noexcept override { return sleepers_.arm(doorbell_); }
  void lie(std::uint32_t armed, Deadline deadline) noexcept override {
    base::futex_wait(doorbell_.word, armed, deadline);
  }
  void leave() noexcept override {
    if (sleepers_.leave(doorbell_)) {
      base::futex_wake_all(doorbell_.word);
    }
  }

 private:
  Doorbell& doorbell_;
  Sleepers& sleepers_;
};

/// One byte into a FIFO that this process has open for both ways, so that it never ends. A full one
/// wakes as well.
void wake_by(int fifo) noexcept {
  const int saved_errno = errno;
  const char byte = 0;
  static_cast<void>(::write(fifo, &byte, sizeof(byte)));
  errno = saved_errno;
}

}  // namespace

void ring_unfenced(Bell bell) noexcept {
  Doorbell& doorbell = *bell.doorbell;
  std::uint32_t word = doorbell.word.load(std::memory_order_relaxed);
  if ((word & 1) == 0) {
    return;
  }
  // If this fails, somebody else rang at this value, or a sleeper arrived after that; both look at
  // their condition after our fence, so they see what we published. Acquire: see Doorbell::polled.
  if (!doorbell.word.compare_exchange_strong(word, word + 1, std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
    return;
  }
  if (bell.fifo >= 0 && doorbell.polled.load(std::memory_order_relaxed) != 0) {
    wake_by(bell.fifo);
  } else {
    base::futex_wake_all(doorbell.word);
  }
}

void ring(Bell bell) noexcept {
  // Pairs with the fence in Sleepers::arm(). Of two full fences one is first. If ours is, the
  // sleeper's last look sees what we published. If the sleeper's is, our load sees the odd word.
  base::full_fence();
  ring_unfenced(bell);
}

std::uint32_t Sleepers::arm(Doorbell& doorbell) noexcept {
  // Release: see leave().
  const std::uint32_t word = doorbell.word.fetch_or(1, std::memory_order_release) | 1;
  base::full_fence();  // Pairs with the fence in ring().
  return word;
}

bool Sleepers::leave(Doorbell& doorbell) noexcept {
  // Whoever was not rung up leaves the word odd. The last one makes it even, or the next
  // publisher would make a system call although the receiver spins (R11).
  if (num_.fetch_sub(1, std::memory_order_relaxed) > 1) {
    return false;
  }
  std::uint32_t word = doorbell.word.load(std::memory_order_relaxed);
  // Acquire: if another thread found the word odd in between, and sleeps on it, we see it
  // counted. One that comes later makes the word odd again.
  return (word & 1) != 0 &&
         doorbell.word.compare_exchange_strong(word, word + 1, std::memory_order_acquire,
                                               std::memory_order_relaxed) &&
         num_.load(std::memory_order_relaxed) != 0;
}

WaitBudget::WaitBudget(WaitPolicy policy, std::size_t num_cpus)
    : slow_(num_cpus > 1 ? 0 : 1024), yield_ns_(policy.yield_ns_max), policy_(policy) {}

WaitBudget::Processor WaitBudget::processor() const noexcept {
  if (hogged_.load(std::memory_order_relaxed) > kHoggedShare) {
    return Processor::kHogged;
  }
  return slow_.load(std::memory_order_relaxed) > kSlowShare ? Processor::kShared : Processor::kFree;
}

std::int64_t WaitBudget::spin_ns() const noexcept {
  return processor() == Processor::kFree ? policy_.spin_ns_max : 0;
}

std::int64_t WaitBudget::yield_ns() noexcept {
  switch (processor()) {
    case Processor::kFree:
      return yield_ns_.load(std::memory_order_relaxed);
    case Processor::kShared:
      return std::min(policy_.yield_ns_max, kSharedYieldNs);
    case Processor::kHogged:
      break;
  }
  // Now and then one yield, to see whether the strangers have gone.
  const bool look = num_waits_hogged_.fetch_add(1, std::memory_order_relaxed) % kLookEvery == 0;
  return look ? std::min<std::int64_t>(policy_.yield_ns_max, 1) : 0;
}

void WaitBudget::yielded(std::int64_t took_ns) noexcept {
  follow(slow_, took_ns > kSlowYieldNs);
  follow(hogged_, took_ns > kHoggedYieldNs);
}

void WaitBudget::waited(std::int64_t took_ns) noexcept {
  // Yielding pays if it sees the end of the wait. If waits are too long for that, less and less of
  // it; as soon as one would have been short enough, all of it.
  const std::int64_t yield_ns = yield_ns_.load(std::memory_order_relaxed);
  yield_ns_.store(took_ns <= policy_.yield_ns_max
                      ? policy_.yield_ns_max
                      : std::max(std::min(kYieldNsMin, policy_.yield_ns_max), yield_ns / 2),
                  std::memory_order_relaxed);
}

Waiter::Waiter(WaitPolicy policy)
    : budget_(policy, base::allowed_cpus().size()), ns_per_tick_(base::ns_per_tick()) {}

void Waiter::wake(Doorbell& doorbell) noexcept {
  wakes_.fetch_add(1, std::memory_order_release);
  ring({&doorbell});
  // Whatever the word says: a peer that rang may have died after it made the word even and before
  // it woke anybody. A waiter that has not gone to sleep yet finds the word changed.
  base::futex_wake_all(doorbell.word);
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
  constexpr int kLooksPerClock = 8;  // Some 0.3 us.
  const std::int64_t spin_ns = budget_.spin_ns();
  const auto budget = static_cast<std::uint64_t>(static_cast<double>(spin_ns) / ns_per_tick_);
  const std::uint64_t start = base::ticks();
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
  const std::int64_t yield_ns = budget_.yield_ns();
  const std::int64_t start = base::steady_ns();
  for (std::int64_t now = start; now - start < yield_ns;) {
    ::sched_yield();
    const End end = look(condition, wakes_seen);
    const std::int64_t after = base::steady_ns();
    budget_.yielded(after - now);
    now = after;
    if (end != End::kGoOn) {
      return end;
    }
    if (deadline.expired()) {
      return End::kExpired;
    }
  }
  return End::kGoOn;
}

Waiter::End Waiter::sleep(Bed& bed, Condition condition, Deadline deadline,
                          std::uint32_t wakes_seen) noexcept {
  bed.enter();
  End end = End::kGoOn;
  while (end == End::kGoOn) {
    const std::uint32_t armed = bed.arm();
    end = look(condition, wakes_seen);
    if (end == End::kGoOn && deadline.expired()) {
      end = End::kExpired;
    }
    if (end == End::kGoOn) {
      bed.lie(armed, deadline);
    }
  }
  bed.leave();
  return end;
}

bool Waiter::wait(Doorbell& doorbell, Condition condition, Deadline deadline) noexcept {
  DoorbellBed bed(doorbell, sleepers_);
  return wait(bed, condition, deadline);
}

bool Waiter::wait(Bed& bed, Condition condition, Deadline deadline) noexcept {
  const std::uint32_t wakes_seen = wakes_seen_.load(std::memory_order_relaxed);
  End end = look(condition, wakes_seen);
  if (end == End::kGoOn) {
    end = deadline.expired() ? End::kExpired : spin(condition, deadline, wakes_seen);
    if (end == End::kHolds) {
      spins_won_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (end == End::kGoOn) {
    const std::int64_t start = base::steady_ns();
    end = yield(condition, deadline, wakes_seen);
    if (end == End::kHolds) {
      yields_won_.fetch_add(1, std::memory_order_relaxed);
    } else if (end == End::kGoOn) {
      sleeps_.fetch_add(1, std::memory_order_relaxed);
      end = sleep(bed, condition, deadline, wakes_seen);
    }
    budget_.waited(base::steady_ns() - start);
  }
  if (end == End::kWoken) {
    // Acquire, as in look(): a later wake() that is counted here has to be seen by the condition.
    wakes_seen_.store(wakes_.load(std::memory_order_acquire), std::memory_order_relaxed);
    return condition.holds(condition.argument);
  }
  return end == End::kHolds;
}

}  // namespace afd::transport
