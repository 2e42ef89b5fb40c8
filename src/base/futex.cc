#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <ctime>

namespace afd::base {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t));

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected,
                Deadline deadline) noexcept {
  const int saved_errno = errno;
  timespec when{};
  if (!deadline.is_never()) {
    const auto since_boot = std::chrono::nanoseconds(deadline.when().time_since_epoch()).count();
    when.tv_sec = since_boot / 1'000'000'000;
    when.tv_nsec = since_boot % 1'000'000'000;
  }
  // The BITSET form takes an absolute time on CLOCK_MONOTONIC, so that early returns do not make
  // the wait longer. Not FUTEX_PRIVATE: the word can be shared between processes.
  ::syscall(SYS_futex, &word, FUTEX_WAIT_BITSET, expected, deadline.is_never() ? nullptr : &when,
            nullptr, FUTEX_BITSET_MATCH_ANY);
  errno = saved_errno;
}

void futex_wake_all(std::atomic<std::uint32_t>& word) noexcept {
  const int saved_errno = errno;
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  errno = saved_errno;
}

}  // namespace afd::base
