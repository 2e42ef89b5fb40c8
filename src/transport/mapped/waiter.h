// Waiting for another rank: spin, yield, sleep, with budgets that follow experience.
//
// What decides (us per step; four attention and two FFN processes on two cores, two stages, 16 KiB
// rows; three lines of work per rank and stage; an ideal scheduler would need 30, 120 and 600):
//
//                              work 5 us   20 us   100 us
//   sleep at once                 63-93     174      701
//   spin 5 us, then sleep        83-114     188      848
//   yield 20 us, then sleep       42-48     140      674
//   yield 500 us, then sleep      49-53     150      760
//   spin 1, yield 50, sleep       46-51     149      670
//   spin 5, yield 50, sleep       54-63     178      740
//
// With one rank per core it is the other way about: a sleeper is back 15 us late, or 100 us if its
// processor had halted, a yielding one 1 us late, a spinning one at once. And beside foreign
// processes that compute all the time a yield costs their whole time slice, 3 ms, while a sleeper
// is scheduled soon after its wake-up. So a waiter watches how long its yields take: at once,
// nobody else wants the processor (kFree); a while, other ranks do (kShared); milliseconds,
// strangers do (kHogged).
#pragma once

#include <atomic>
#include <cstdint>

#include <afd/deadline.h>

#include "transport/mapped/window_layout.h"
#include "transport/transport.h"

namespace afd::transport {

/// Upper limits of what a wait may spend before it sleeps. A processor that is wanted by others
/// gets less (see above).
struct WaitPolicy {
  std::int64_t spin_ns_max = 5'000;       ///< 0: never spin
  std::int64_t yield_ns_max = 1'000'000;  ///< 0: never yield
};

/// A peer's doorbell, as those who ring it know it.
struct Bell {
  Doorbell* doorbell = nullptr;  ///< null: nobody's
  int fifo = -1;  ///< where a byte wakes its owner while Doorbell::polled; -1: it has none
};

/// Wakes whoever sleeps at the bell, if anybody does; otherwise costs a fence and a load, no
/// system call. Everything this thread stored before is visible to a sleeper that checks its
/// condition. Async-signal-safe.
void ring(Bell bell) noexcept;

/// The same without the fence: may miss a sleeper that just lies down, so a ring() has to follow.
void ring_unfenced(Bell bell) noexcept;

/// What the budgets of one waiting thread follow.
///
/// Threads: counters are relaxed atomics, so that several waiting threads may share one; they then
/// learn together.
class WaitBudget {
 public:
  enum class Processor { kFree, kShared, kHogged };

  /// @param num_cpus  that the ranks may use; 1: there is no use in spinning
  WaitBudget(WaitPolicy policy, std::size_t num_cpus);

  Processor processor() const noexcept;
  /// How long to spin and to yield in the next wait.
  std::int64_t spin_ns() const noexcept;
  std::int64_t yield_ns() noexcept;

  /// One yield took this long.
  void yielded(std::int64_t took_ns) noexcept;
  /// A wait that had not ended while spinning took this long in all.
  void waited(std::int64_t took_ns) noexcept;

 private:
  /// In 1/1024: the share of late yields that let somebody else run, and of those that cost a
  /// slice.
  std::atomic<std::uint32_t> slow_{0};
  std::atomic<std::uint32_t> hogged_{0};
  std::atomic<std::uint32_t> num_waits_hogged_{0};
  std::atomic<std::int64_t> yield_ns_;
  const WaitPolicy policy_;
};

/// Where a wait sleeps once spinning and yielding have not helped.
class Bed {
 public:
  virtual ~Bed() = default;
  /// Once per sleep, before the first arm(), and after the last lie().
  virtual void enter() noexcept = 0;
  virtual void leave() noexcept = 0;
  /// Whatever makes the condition hold after this ends the lie() that follows. The condition is
  /// looked at in between. @return what lie() is to be told
  virtual std::uint32_t arm() noexcept = 0;
  /// Sleeps. May end early.
  virtual void lie(std::uint32_t armed, Deadline deadline) noexcept = 0;
};

/// Counts the threads that sleep at one doorbell, and keeps its word.
class Sleepers {
 public:
  void enter() noexcept { num_.fetch_add(1, std::memory_order_relaxed); }
  /// From now on a ring() wakes. The condition has to be looked at once more after this.
  /// @return the word that stands as long as nobody has rung
  std::uint32_t arm(Doorbell& doorbell) noexcept;
  /// @return another thread may sleep on, unrung: it has to be woken
  bool leave(Doorbell& doorbell) noexcept;

 private:
  // Counted up before the doorbell's word is made odd (fetch_or with release), read after it was
  // made even (compare_exchange with acquire).
  std::atomic<std::uint32_t> num_{0};
};

/// Waits at one doorbell, or in one bed. Any number of threads may wait at the same time.
class Waiter {
 public:
  explicit Waiter(WaitPolicy policy);

  bool wait(Doorbell& doorbell, Condition condition, Deadline deadline) noexcept;
  bool wait(Bed& bed, Condition condition, Deadline deadline) noexcept;

  /// Ends every wait() under way, or else the next one, early. Async-signal-safe.
  void wake(Doorbell& doorbell) noexcept;
  /// The same for waits in a bed, whose owner then has to end their lie().
  void note_wake() noexcept { wakes_.fetch_add(1, std::memory_order_release); }

  WaitStats stats() const noexcept;

 private:
  enum class End { kHolds, kWoken, kExpired, kGoOn };

  End look(Condition condition, std::uint32_t wakes_seen) const noexcept;
  End spin(Condition condition, Deadline deadline, std::uint32_t wakes_seen) noexcept;
  End yield(Condition condition, Deadline deadline, std::uint32_t wakes_seen) noexcept;
  End sleep(Bed& bed, Condition condition, Deadline deadline, std::uint32_t wakes_seen) noexcept;

  WaitBudget budget_;
  const double ns_per_tick_;
  // wake() adds one with release, so that a waiter that sees it (acquire) sees the flags that the
  // caller of wake() had set before.
  std::atomic<std::uint32_t> wakes_{0};
  std::atomic<std::uint32_t> wakes_seen_{0};  // Of the last wait that ended by wake().
  Sleepers sleepers_;                         ///< at a doorbell

  // Statistics; relaxed, read by anybody.
  std::atomic<std::uint64_t> spins_won_{0};
  std::atomic<std::uint64_t> yields_won_{0};
  std::atomic<std::uint64_t> sleeps_{0};
};

}  // namespace afd::transport
