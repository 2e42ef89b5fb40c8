// Turns SIGTERM, SIGINT and the launcher's death into a call, on a thread of its own.
#pragma once

#include <csignal>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <afd/result.h>

#include "base/fd.h"

namespace afd::runtime {

class StopWatcher {
 public:
  /// Blocks the signals in the calling thread, and so in the threads that it starts from now on:
  /// make this object before any. On failure they are as they were.
  ///
  /// @param signals     which ones
  /// @param launcher_fd a socket whose end means that the launcher died; -1: none
  /// @param on_stop     called once, on a thread of the watcher. When the process still runs 1 s
  ///                    after the signal, it exits with status 1, also where on_stop has not
  ///                    returned: nothing may keep a stopped rank alive.
  /// @return kUnavailable  no file descriptor or thread left
  static Result<std::unique_ptr<StopWatcher>> start(const std::vector<int>& signals,
                                                    int launcher_fd, std::function<void()> on_stop);
  ~StopWatcher();
  StopWatcher(const StopWatcher&) = delete;
  StopWatcher& operator=(const StopWatcher&) = delete;

 private:
  StopWatcher(int launcher_fd, std::function<void()> on_stop);
  Result<void> begin(const sigset_t& signals);
  void watch();
  void call();

  base::Fd signal_fd_;
  base::Fd quit_fd_;
  int launcher_fd_;
  std::function<void()> on_stop_;
  std::promise<bool> stops_;    ///< Whether on_stop_ has to be called.
  std::promise<void> stopped_;  ///< It was, and has returned.
  std::thread calling_thread_;
  std::thread thread_;
};

}  // namespace afd::runtime
