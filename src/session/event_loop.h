// One background thread that waits for sockets and timers: Asio, kept out of every header.
//
// Every handler runs on the loop's thread with the session's mutex held, so that handlers and the
// session's callers see one consistent state. After each handler the loop calls `after` with the
// lock, which may release it to wake callers.
//
// Threads: EventLoop's methods from any thread; LoopSocket and LoopTimer with the session's mutex
// held, or with the loop stopped. A handler that was queued before its socket or timer went away
// does not run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

#include <afd/result.h>

#include "base/fd.h"

namespace afd::session {

class EventLoop {
 public:
  using After = std::function<void(std::unique_lock<std::mutex>& lock)>;

  /// @return kUnavailable  no file descriptors left
  static Result<std::unique_ptr<EventLoop>> create(std::mutex& mutex, After after);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Starts the thread, with all signals blocked: they are the application's.
  /// @return kUnavailable  the system has no thread left
  Result<void> start();
  /// Ends and joins it. Handlers that have not begun do not run. Repeatable; not from a handler,
  /// not with the session's mutex held.
  void stop() noexcept;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit EventLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Owns a non-blocking socket and watches it.
class LoopSocket {
 public:
  LoopSocket(EventLoop& loop, base::Fd fd);
  ~LoopSocket();
  LoopSocket(const LoopSocket&) = delete;
  LoopSocket& operator=(const LoopSocket&) = delete;

  int fd() const;
  /// Calls `handler` whenever there is something to read, or the connection ended, until
  /// stop_reading().
  void start_reading(std::function<void()> handler);
  void stop_reading();
  /// Calls `handler` once, when there is room to write or the connection failed.
  void when_writable(std::function<void()> handler);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;  // shared with the handlers under way
};

class LoopTimer {
 public:
  explicit LoopTimer(EventLoop& loop);
  ~LoopTimer();
  LoopTimer(const LoopTimer&) = delete;
  LoopTimer& operator=(const LoopTimer&) = delete;

  /// Calls `handler` once; an earlier start is forgotten.
  void start(std::chrono::milliseconds delay, std::function<void()> handler);
  /// Forgets what was started.
  void stop();

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;  // shared with the handler under way
};

}  // namespace afd::session
