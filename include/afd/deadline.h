// A point in time by which a call has to be done. Every call that can wait takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace afd {

/// A point on the monotonic clock, or never. Plain value, 8 bytes.
///
/// A deadline that already lies in the past makes a call try once and return kDeadlineExceeded
/// instead of waiting, so `Deadline::now()` is a poll.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// Never expires. The default of every options struct: waiting is then ended by data, by close()
  /// or by the loss of the peer.
  constexpr Deadline() = default;

  constexpr explicit Deadline(Clock::time_point when) : when_(when) {}

  static constexpr Deadline never() { return Deadline(); }
  static Deadline now() { return Deadline(Clock::now()); }

  /// Negative durations and NaN count as zero; those too large for the clock count as never.
  template <typename Rep, typename Period>
  static Deadline after(std::chrono::duration<Rep, Period> duration) {
    const Clock::time_point start = Clock::now();
    if (!(duration > duration.zero())) {
      return Deadline(start);
    }
    if (std::chrono::duration<double>(duration) >= Clock::time_point::max() - start) {
      return never();
    }
    return Deadline(start + std::chrono::duration_cast<Clock::duration>(duration));
  }

  bool is_never() const { return when_ == Clock::time_point::max(); }
  bool expired() const { return !is_never() && Clock::now() >= when_; }
  Clock::time_point when() const { return when_; }

  /// Time left, at least zero; Clock::duration::max() for never.
  Clock::duration remaining() const {
    if (is_never()) {
      return Clock::duration::max();
    }
    return std::max(Clock::duration::zero(), when_ - Clock::now());
  }

  friend bool operator==(const Deadline&, const Deadline&) = default;

 private:
  Clock::time_point when_ = Clock::time_point::max();
};

}  // namespace afd
