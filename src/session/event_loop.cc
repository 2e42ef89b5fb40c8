#include "session/event_loop.h"

#include <csignal>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include <pthread.h>
#include <unistd.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>

#include "base/thread.h"

namespace afd::session {

struct EventLoop::Impl {
  Impl(std::mutex& session_mutex, After after_handler)
      : mutex(session_mutex), after(std::move(after_handler)) {}

  // Runs `handler` unless `open` says that its owner is gone.
  template <typename Handler>
  void dispatch(const bool& open, Handler&& handler) {
    std::unique_lock lock(mutex);
    if (!open) {
      return;
    }
    handler();
    after(lock);
  }

  std::mutex& mutex;
  After after;
  asio::io_context io{1};  // one thread runs it: Asio then wakes no other
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  // Makes Asio's reactor, with its file descriptors, here, where create() can tell the failure.
  asio::steady_timer first_object{io};
  std::thread thread;
};

EventLoop::EventLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

EventLoop::~EventLoop() {
  stop();
}

Result<std::unique_ptr<EventLoop>> EventLoop::create(std::mutex& mutex, After after) {
  try {
    return std::unique_ptr<EventLoop>(
        new EventLoop(std::make_unique<Impl>(mutex, std::move(after))));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kUnavailable, std::string("cannot make an event loop: ") + error.what());
  }
}

Result<void> EventLoop::start() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<std::thread> started = base::start_thread([impl = impl_.get()] {
    pthread_setname_np(pthread_self(), "afd-session");
    impl->io.run();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) {
    return fail(std::move(started).error());
  }
  impl_->thread = *std::move(started);
  return {};
}

void EventLoop::stop() noexcept {
  impl_->io.stop();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

struct LoopSocket::Impl : std::enable_shared_from_this<LoopSocket::Impl> {
  Impl(EventLoop::Impl& event_loop, base::Fd fd) : loop(event_loop), descriptor(event_loop.io) {
    asio::error_code error;
    descriptor.assign(fd.get(), error);
    if (!error) {
      std::ignore = fd.release();  // the descriptor's now
    }                              // else fd() is -1 from now on, and the first read says so
  }

  void read_again() {
    waiting = true;
    descriptor.async_wait(asio::posix::stream_descriptor::wait_read,
                          [self = shared_from_this()](const asio::error_code&) {
                            self->loop.dispatch(self->open, [&] { self->readable(); });
                          });
  }

  // Asio keeps a descriptor registered for writing once it has waited for room, and then every send
  // wakes the loop's thread. Registering anew ends that; a wait for reading ends with an error and
  // begins again in readable().
  void forget_writing() {
    const int fd = descriptor.release();
    asio::error_code error;
    descriptor.assign(fd, error);
    if (error) {
      ::close(fd);
    }
  }

  void readable() {
    waiting = false;
    if (!on_readable) {
      return;  // stopped after this was queued
    }
    // A copy: the handler may destroy the socket, and with it the function that runs.
    const std::function<void()> handler = on_readable;
    handler();
    if (open && on_readable && !waiting) {
      read_again();
    }
  }

  EventLoop::Impl& loop;
  asio::posix::stream_descriptor descriptor;
  bool open = true;
  bool waiting = false;  // a wait is under way
  std::function<void()> on_readable;
};

LoopSocket::LoopSocket(EventLoop& loop, base::Fd fd)
    : impl_(std::make_shared<Impl>(loop.impl(), std::move(fd))) {}

LoopSocket::~LoopSocket() {
  impl_->open = false;
  asio::error_code ignored;
  impl_->descriptor.close(ignored);
}

int LoopSocket::fd() const {
  return impl_->descriptor.native_handle();
}

void LoopSocket::start_reading(std::function<void()> handler) {
  impl_->on_readable = std::move(handler);
  if (!impl_->waiting) {
    impl_->read_again();
  }
}

void LoopSocket::stop_reading() {
  impl_->on_readable = nullptr;
}

void LoopSocket::when_writable(std::function<void()> handler) {
  impl_->descriptor.async_wait(
      asio::posix::stream_descriptor::wait_write,
      [impl = impl_, handler = std::move(handler)](const asio::error_code&) {
        impl->loop.dispatch(impl->open, [&] {
          impl->forget_writing();
          handler();
        });
      });
}

struct LoopTimer::Impl {
  explicit Impl(EventLoop::Impl& event_loop) : loop(event_loop), timer(event_loop.io) {}

  EventLoop::Impl& loop;
  asio::steady_timer timer;
  bool open = true;
  // Of the start that counts: a handler of an earlier one may be queued already.
  std::uint64_t num_started = 0;
};

LoopTimer::LoopTimer(EventLoop& loop) : impl_(std::make_shared<Impl>(loop.impl())) {}

LoopTimer::~LoopTimer() {
  impl_->open = false;
  impl_->timer.cancel();
}

void LoopTimer::start(std::chrono::milliseconds delay, std::function<void()> handler) {
  const std::uint64_t number = ++impl_->num_started;
  impl_->timer.expires_after(delay);
  impl_->timer.async_wait(
      [impl = impl_, number, handler = std::move(handler)](const asio::error_code& error) {
        if (!error) {
          impl->loop.dispatch(impl->open, [&] {
            if (impl->num_started == number) {
              handler();
            }
          });
        }
      });
}

void LoopTimer::stop() {
  ++impl_->num_started;
  impl_->timer.cancel();
}

}  // namespace afd::session
