#include "runtime/stop_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/errno_text.h"
#include "base/thread.h"

namespace afd::runtime {
namespace {

constexpr std::chrono::milliseconds kGrace{1000};

}  // namespace

StopWatcher::StopWatcher(int launcher_fd, std::function<void()> on_stop)
    : launcher_fd_(launcher_fd), on_stop_(std::move(on_stop)) {}

Result<std::unique_ptr<StopWatcher>> StopWatcher::start(const std::vector<int>& signals,
                                                        int launcher_fd,
                                                        std::function<void()> on_stop) {
  std::unique_ptr<StopWatcher> watcher(new StopWatcher(launcher_fd, std::move(on_stop)));
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) {
    ::sigaddset(&set, signal);
  }
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &set, &before);
  if (Result<void> begun = watcher->begin(set); !begun) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return fail(std::move(begun).error().with_context("watch for signals"));
  }
  return watcher;
}

Result<void> StopWatcher::begin(const sigset_t& signals) {
  signal_fd_.reset(::signalfd(-1, &signals, SFD_CLOEXEC));
  if (!signal_fd_) {
    return fail(ErrorCode::kUnavailable, "signalfd: " + base::errno_text(errno));
  }
  quit_fd_.reset(::eventfd(0, EFD_CLOEXEC));
  if (!quit_fd_) {
    return fail(ErrorCode::kUnavailable, "eventfd: " + base::errno_text(errno));
  }
  Result<std::thread> calling = base::start_thread([this] { call(); });
  if (!calling) {
    return fail(std::move(calling).error());
  }
  calling_thread_ = *std::move(calling);
  Result<std::thread> watching = base::start_thread([this] { watch(); });
  if (!watching) {
    stops_.set_value(false);
    calling_thread_.join();
    return fail(std::move(watching).error());
  }
  thread_ = *std::move(watching);
  return {};
}

StopWatcher::~StopWatcher() {
  if (!thread_.joinable()) {
    return;  // begin() failed
  }
  const std::uint64_t one = 1;
  AFD_CHECK(::write(quit_fd_.get(), &one, sizeof(one)) == sizeof(one), errno);
  thread_.join();
  calling_thread_.join();
}

void StopWatcher::call() {
  if (stops_.get_future().get()) {
    on_stop_();
    stopped_.set_value();
  }
}

void StopWatcher::watch() {
  pollfd fds[] = {{.fd = quit_fd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = signal_fd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = launcher_fd_, .events = POLLRDHUP, .revents = 0}};
  while (::poll(fds, 3, -1) < 0) {
  }
  const bool stops = fds[0].revents == 0;
  const auto until = std::chrono::steady_clock::now() + kGrace;
  stops_.set_value(stops);
  if (!stops) {
    return;
  }
  while (::poll(fds, 1, static_cast<int>(kGrace.count())) < 0) {
  }
  // The destructor waits for on_stop_ too.
  if (fds[0].revents == 0 || stopped_.get_future().wait_until(until) != std::future_status::ready) {
    ::_exit(1);
  }
}

}  // namespace afd::runtime
