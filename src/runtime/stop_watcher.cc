#include "runtime/stop_watcher.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "base/check.h"

namespace afd::runtime {
namespace {

constexpr int kGraceMs = 1500;

}  // namespace

StopWatcher::StopWatcher(const std::vector<int>& signals, int launcher_fd,
                         std::function<void()> on_stop)
    : launcher_fd_(launcher_fd), on_stop_(std::move(on_stop)) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) {
    ::sigaddset(&set, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signal_fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC));
  quit_fd_.reset(::eventfd(0, EFD_CLOEXEC));
  AFD_CHECK(signal_fd_ && quit_fd_, errno);
  thread_ = std::thread([this] { watch(); });
}

StopWatcher::~StopWatcher() {
  const std::uint64_t one = 1;
  AFD_CHECK(::write(quit_fd_.get(), &one, sizeof(one)) == sizeof(one), errno);
  thread_.join();
}

void StopWatcher::watch() {
  pollfd fds[] = {{.fd = quit_fd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = signal_fd_.get(), .events = POLLIN, .revents = 0},
                  {.fd = launcher_fd_, .events = POLLRDHUP, .revents = 0}};
  while (::poll(fds, 3, -1) < 0) {
  }
  if (fds[0].revents != 0) {
    return;
  }
  on_stop_();
  while (::poll(fds, 1, kGraceMs) < 0) {
  }
  if (fds[0].revents == 0) {
    ::_exit(1);
  }
}

}  // namespace afd::runtime
