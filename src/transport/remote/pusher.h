// The thread that goes on sending.
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include <afd/deadline.h>
#include <afd/result.h>

#include "base/futex.h"
#include "base/thread.h"
#include "transport/transport.h"

namespace afd::transport {

/// Pushes out what publishes have left to the wire while no thread waits: a peer may need bytes of
/// this rank long before this rank needs something of a peer. Sleeps otherwise.
class Pusher {
 public:
  /// @param push  makes progress; false: nothing is left to push
  Result<void> start(Condition push) {
    push_ = push;
    Result<std::thread> thread = base::start_thread([this] { run(); });
    if (!thread) {
      return fail(std::move(thread).error());
    }
    thread_ = *std::move(thread);
    return {};
  }
  ~Pusher() { stop(); }
  void stop() noexcept {
    if (thread_.joinable()) {
      word_.fetch_or(kStop, std::memory_order_release);
      base::futex_wake_all(word_);
      thread_.join();
    }
  }

  /// There is something to push. A system call only when it sleeps.
  void kick() noexcept {
    if (word_.fetch_or(kWork, std::memory_order_acq_rel) == kAsleep) {
      base::futex_wake_all(word_);
    }
  }

 private:
  static constexpr std::uint32_t kAsleep = 0;
  static constexpr std::uint32_t kWork = 1;
  static constexpr std::uint32_t kStop = 2;
  static constexpr std::chrono::microseconds kPause{50};

  void run() {
    ::pthread_setname_np(::pthread_self(), "afd-remote");
    while (true) {
      const std::uint32_t word = word_.exchange(kAsleep, std::memory_order_acq_rel);
      if ((word & kStop) != 0) {
        return;
      }
      if ((word & kWork) == 0) {
        base::futex_wait(word_, kAsleep, Deadline::never());
        continue;
      }
      while (push_.holds(push_.argument) && (word_.load(std::memory_order_acquire) & kStop) == 0) {
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  Condition push_;
  // kWork and kStop are set with release by whoever has something to say, taken with acquire by the
  // thread.
  std::atomic<std::uint32_t> word_{kAsleep};
  std::thread thread_;
};

}  // namespace afd::transport
