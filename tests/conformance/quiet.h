// Counts what a thread does besides computing: allocations, locks, system calls, page faults.
//
// Allocations and locks are counted by functions of this binary that take the place of the C and
// C++ libraries' (operator new, malloc, pthread_mutex_lock, ...). System calls are counted by a
// seccomp filter that turns each one into SIGSYS, whose handler counts it and makes it, from the
// one place that the filter lets through. All of it is per thread, and counts only between arm()
// and disarm().
//
// Instrumented builds (AddressSanitizer, ThreadSanitizer) have their own such functions: there the
// counts stay at 0, and quiet_counters_work() says so.
#pragma once

#include <cstdint>
#include <string>

namespace afd::conformance {

struct QuietCounts {
  std::uint64_t allocations = 0;
  std::uint64_t locks = 0;
  std::uint64_t system_calls = 0;
  std::uint64_t minor_faults = 0;
  std::int64_t last_system_call = -1;  ///< Its number.

  QuietCounts& operator+=(const QuietCounts& other);
  bool zero() const {
    return allocations == 0 && locks == 0 && system_calls == 0 && minor_faults == 0;
  }
};

/// "2 allocations, 1 system call (last number 202)".
std::string to_string(const QuietCounts& counts);

/// Whether this build counts allocations and locks.
bool quiet_counters_work();

/// From now on this thread's system calls can be counted. For good: the filter cannot be taken off,
/// so only threads that end with the test call it. @return false  where the kernel or the processor
/// cannot do it (then system calls stay at 0)
bool count_system_calls_of_this_thread();

/// Counting of this thread. Not nested.
class QuietWatch {
 public:
  void arm();
  /// Adds what happened since arm().
  void disarm();
  const QuietCounts& counts() const { return counts_; }
  void reset() { counts_ = {}; }

 private:
  QuietCounts counts_;
  std::int64_t faults_at_start_ = 0;
};

}  // namespace afd::conformance
