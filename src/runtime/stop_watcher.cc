#include "runtime/stop_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
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
constexpr std::int64_t kPollMaxMs = 3'600'000;

}  // namespace

StopWatcher::StopWatcher(int launcher_fd, std::function<void()> on_stop, std::optional<Drain> drain)
    : launcher_fd_(launcher_fd), on_stop_(std::move(on_stop)), drain_(std::move(drain)) {}

Result<std::unique_ptr<StopWatcher>> StopWatcher::start(const std::vector<int>& signals,
                                                        int launcher_fd,
                                                        std::function<void()> on_stop,
                                                        std::optional<Drain> drain) {
  std::unique_ptr<StopWatcher> watcher(
      new StopWatcher(launcher_fd, std::move(on_stop), std::move(drain)));
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

int StopWatcher::read_signal() const {
  signalfd_siginfo info{};
  return ::read(signal_fd_.get(), &info, sizeof(info)) == sizeof(info)
             ? static_cast<int>(info.ssi_signo)
             : SIGTERM;
}

int StopWatcher::await_stop() {
  using std::chrono::steady_clock;
  pollfd fds[] = {{.fd = quit_fd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = signal_fd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = launcher_fd_, .events = POLLRDHUP, .revents = 0}};
  std::optional<steady_clock::time_point> drained_until;
  while (true) {
    int wait_ms = -1;
    if (drained_until) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(*drained_until - steady_clock::now());
      if (left.count() <= 0) {
        return kDrainTooLong;
      }
      wait_ms = static_cast<int>(std::min<std::int64_t>(left.count(), kPollMaxMs));
    }
    if (::poll(fds, 3, wait_ms) <= 0) {
      continue;
    }
    if (fds[0].revents != 0) {
      return kNotStopped;
    }
    if (fds[1].revents == 0) {
      return kLauncherDied;
    }
    const int signal = read_signal();
    if (drained_until || !drain_ || signal != drain_->signal || drain_->limit.count() <= 0) {
      return signal;
    }
    drained_until = steady_clock::now() + drain_->limit;
    if (!drain_->on_drain()) {
      return kNothingToDrain;
    }
  }
}

void StopWatcher::watch() {
  const int reason = await_stop();
  const bool stops = reason != kNotStopped;
  const auto until = std::chrono::steady_clock::now() + kGrace;
  stopped_by_.store(reason, std::memory_order_release);
  stops_.set_value(stops);
  if (!stops) {
    return;
  }
  pollfd quit = {.fd = quit_fd_.get(), .events = POLLIN, .revents = 0};
  while (::poll(&quit, 1, static_cast<int>(kGrace.count())) < 0) {
  }
  // The destructor waits for on_stop_ too.
  if (quit.revents == 0 || stopped_.get_future().wait_until(until) != std::future_status::ready) {
    ::_exit(1);
  }
}

}  // namespace afd::runtime
