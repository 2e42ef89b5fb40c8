// Time stamps: the steady clock, and the processor's counter where it can be trusted.
#pragma once

#include <cstdint>
#include <ctime>
#include <string>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace afd::base {

/// Nanoseconds on CLOCK_MONOTONIC, which std::chrono::steady_clock reads too. About 25 ns, no
/// system call.
inline std::int64_t steady_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Raw counter for spin budgets and stamps, about 10 ns. Comparable between cores only if
/// calibrate_ticks() says so. Not ordered with the instructions around it.
inline std::uint64_t ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<std::uint64_t>(steady_ns());
#endif
}

/// Counter read that no later load may pass and that waits for earlier loads: the stamp of a
/// measurement.
inline std::uint64_t stamp() noexcept {
#if defined(__x86_64__)
  _mm_lfence();
  const std::uint64_t value = __rdtsc();
  _mm_lfence();
  return value;
#else
  return ticks();
#endif
}

struct TickRate {
  double ns_per_tick = 1.0;
  /// Whether ticks run evenly against the steady clock and agree between this thread's processors
  /// within 200 ns. If not, one-way times must use steady_ns().
  bool trusted = false;
  std::string why_not;  ///< Empty if trusted.
};

/// The counter against the steady clock over about 20 ms, then on every processor that this thread
/// may use; three times at most, until it is trusted. Moves the calling thread between them and
/// puts its affinity back.
TickRate calibrate_ticks();

/// Nanoseconds per tick, measured once per process over about 1 ms by the first call: for spin
/// budgets, not for measurements.
double ns_per_tick() noexcept;

}  // namespace afd::base
