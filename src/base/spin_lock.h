// A lock for a few hundred nanoseconds.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/fence.h"

namespace afd::base {

/// Spins, then yields. For std::scoped_lock.
class SpinLock {
 public:
  void lock() noexcept {
    constexpr int kSpins = 1000;  // some 20 us: a holder that runs is long done
    for (int i = 0; !try_lock(); ++i) {
      if (i < kSpins) {
        spin_pause();
      } else {
        ::sched_yield();
      }
    }
  }
  bool try_lock() noexcept {
    return !taken_.load(std::memory_order_relaxed) &&
           !taken_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  // Set with acquire by the thread that takes it, cleared with release: who takes it sees what its
  // last holder did.
  std::atomic<bool> taken_{false};
};

}  // namespace afd::base
