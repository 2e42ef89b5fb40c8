// Turns SIGTERM, SIGINT and the launcher's death into a call, on a thread of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include <afd/result.h>

#include "base/fd.h"

namespace afd::runtime {

class StopWatcher {
 public:
  /// A signal that asks for an end in order first.
  struct Drain {
    int signal = SIGTERM;
    /// How long that may take. Past it, and at a second signal of any kind, follows the stop.
    std::chrono::milliseconds limit{0};
    /// Called once, on a thread of the watcher: returns at once. @return false: there is nothing to
    /// drain, so the stop follows at once
    std::function<bool()> on_drain;
  };
  /// What stopped_by() says besides a signal's number.
  static constexpr int kNotStopped = 0;
  static constexpr int kDrainTooLong = -1;
  static constexpr int kLauncherDied = -2;
  static constexpr int kNothingToDrain = -3;

  /// Blocks the signals in the calling thread, and so in the threads that it starts from now on:
  /// make this object before any. On failure they are as they were.
  ///
  /// @param signals     which ones
  /// @param launcher_fd a socket whose end means that the launcher died; -1: none
  /// @param on_stop     called once, on a thread of the watcher. When the process still runs 1 s
  ///                    after the signal, it exits with status 1, also where on_stop has not
  ///                    returned: nothing may keep a stopped rank alive.
  /// @param drain       one of the signals that is no stop the first time
  /// @return kUnavailable  no file descriptor or thread left
  static Result<std::unique_ptr<StopWatcher>> start(const std::vector<int>& signals,
                                                    int launcher_fd, std::function<void()> on_stop,
                                                    std::optional<Drain> drain = std::nullopt);
  ~StopWatcher();
  StopWatcher(const StopWatcher&) = delete;
  StopWatcher& operator=(const StopWatcher&) = delete;

  /// Why on_stop was called, or will be at once. From any thread.
  int stopped_by() const noexcept { return stopped_by_.load(std::memory_order_acquire); }

 private:
  StopWatcher(int launcher_fd, std::function<void()> on_stop, std::optional<Drain> drain);
  Result<void> begin(const sigset_t& signals);
  void watch();
  /// Waits for what stops this process. @return it; kNotStopped: the watcher is to end
  int await_stop();
  int read_signal() const;
  void call();

  base::Fd signal_fd_;
  base::Fd quit_fd_;
  int launcher_fd_;
  std::function<void()> on_stop_;
  std::optional<Drain> drain_;
  // Stored with release by the watching thread; whoever loads it acquires nothing else with it.
  std::atomic<int> stopped_by_{kNotStopped};
  std::promise<bool> stops_;    ///< Whether on_stop_ has to be called.
  std::promise<void> stopped_;  ///< It was, and has returned.
  std::thread calling_thread_;
  std::thread thread_;
};

}  // namespace afd::runtime
