// Turns SIGTERM, SIGINT and the launcher's death into a call, on a thread of its own.
#pragma once

#include <csignal>
#include <functional>
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
  /// @param on_stop     called once, on the watcher's thread. When the process still runs 1 s
  ///                    later, it exits with status 1: nothing may keep a stopped rank alive.
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

  base::Fd signal_fd_;
  base::Fd quit_fd_;
  int launcher_fd_;
  std::function<void()> on_stop_;
  std::thread thread_;
};

}  // namespace afd::runtime
