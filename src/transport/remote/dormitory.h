// Where a transport's threads sleep beside a wire.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>

#include <afd/result.h>

#include "base/errno_text.h"
#include "base/fd.h"
#include "base/fence.h"

namespace afd::transport {

/// Where threads sleep: each in a slot of its own, so that one which drains its event takes none
/// from another.
class Dormitory {
 public:
  Result<void> create() {
    for (Slot& slot : slots_) {
      slot.fd.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!slot.fd) {
        return fail(ErrorCode::kUnavailable, "eventfd: " + base::errno_text(errno));
      }
    }
    return {};
  }

  /// A free slot, taken; null where more threads sleep than there are slots.
  base::Fd* enter() noexcept {
    for (Slot& slot : slots_) {
      bool free = false;
      if (slot.taken.compare_exchange_strong(free, true, std::memory_order_seq_cst)) {
        return &slot.fd;
      }
    }
    return nullptr;
  }
  void leave(base::Fd* fd) noexcept {
    for (Slot& slot : slots_) {
      if (&slot.fd == fd) {
        drain(fd);
        slot.taken.store(false, std::memory_order_release);
      }
    }
  }
  static void drain(base::Fd* fd) noexcept {
    std::uint64_t count = 0;
    static_cast<void>(::read(fd->get(), &count, sizeof(count)));
  }

  /// Wakes whoever sleeps, or has entered and is about to. Async-signal-safe.
  void ring() noexcept {
    base::full_fence();  // pairs with the one in Sleepers::arm()
    ring_unfenced();
  }
  /// The same, with a lock held under which the condition came to hold and which every sleeper
  /// takes between its enter() and its last look: of the two, one sees the other's.
  void ring_unfenced() noexcept {
    const int saved_errno = errno;
    for (Slot& slot : slots_) {
      if (slot.taken.load(std::memory_order_relaxed)) {
        const std::uint64_t one = 1;
        static_cast<void>(::write(slot.fd.get(), &one, sizeof(one)));
      }
    }
    errno = saved_errno;
  }

 private:
  struct Slot {
    base::Fd fd;
    // Set by the thread that sleeps here before it looks at its condition for the last time; read
    // by ring() after whatever makes a condition hold. A full fence lies between on both sides, or
    // both hold one lock.
    std::atomic<bool> taken{false};
  };
  std::array<Slot, 8> slots_;
};

}  // namespace afd::transport
