#include "cli/background_output.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "cli/text_output.h"

namespace afd::cli {
namespace {

struct Piece {
  int fd;
  std::string text;
};

/// @return 0, or the errno of what failed
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote >= 0) {
      text.remove_prefix(static_cast<std::size_t>(wrote));
    } else if (errno == EAGAIN) {
      // Somebody who shares the descriptor made it so; it still has to be written.
      pollfd room = {.fd = fd, .events = POLLOUT, .revents = 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void write_piece(const Piece& piece) {
  const int error = write_all(piece.fd, piece.text);
  if (error != 0 && piece.fd == STDOUT_FILENO) {
    note_stdout_error(error);
  }
}

bool same_file(int a, int b) {
  struct stat first;
  struct stat second;
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// A thread that gets none of the process's signals, as long as others do not block them. SIGPIPE
/// comes to who writes, and ends the program as it does every other.
template <typename Body>
Result<std::thread> start_undisturbed(Body body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::sigdelset(&all, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  Result<std::thread> started = base::start_thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return started;
}

}  // namespace

/// Owned by the BackgroundOutput and by the thread, which may outlive it.
class BackgroundOutput::Writer : public std::enable_shared_from_this<Writer> {
 public:
  void push(Piece piece) {
    if (!started_) {
      started_ = true;
      Result<std::thread> thread = start_undisturbed([self = shared_from_this()] { self->run(); });
      has_thread_ = thread.has_value();
      if (has_thread_) {
        thread_ = *std::move(thread);
      }
    }
    if (!has_thread_) {
      write_piece(piece);  // Late is better than never.
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      pieces_.push_back(std::move(piece));
    }
    changed_.notify_all();
  }

  bool drain(std::optional<std::chrono::steady_clock::time_point> until) {
    std::unique_lock lock(mutex_);
    const auto written = [this] { return pieces_.empty(); };
    if (until) {
      return changed_.wait_until(lock, *until, written);
    }
    changed_.wait(lock, written);
    return true;
  }

  void end() {
    bool idle = false;
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      idle = pieces_.empty();
    }
    changed_.notify_all();
    if (!thread_.joinable()) {
      return;
    }
    if (idle) {
      thread_.join();
    } else {
      thread_.detach();
    }
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !pieces_.empty(); });
      if (pieces_.empty()) {
        return;
      }
      // It stays in the queue, and where it is, until it is written: an empty queue is a drained
      // one.
      const Piece& piece = pieces_.front();
      lock.unlock();
      write_piece(piece);
      lock.lock();
      pieces_.pop_front();
      changed_.notify_all();
    }
  }

  std::thread thread_;
  bool started_ = false;
  bool has_thread_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;  // guarded by mutex_
  bool ending_ = false;       // guarded by mutex_
};

BackgroundOutput::BackgroundOutput() {
  writers_[0] = std::make_shared<Writer>();
  writers_[1] = same_file(STDOUT_FILENO, STDERR_FILENO) ? writers_[0] : std::make_shared<Writer>();
}

BackgroundOutput::~BackgroundOutput() {
  for (const std::shared_ptr<Writer>& writer : writers_) {
    writer->end();
  }
}

void BackgroundOutput::out(std::string text) {
  writers_[0]->push({STDOUT_FILENO, std::move(text)});
}

void BackgroundOutput::err(std::string text) {
  writers_[1]->push({STDERR_FILENO, std::move(text)});
}

bool BackgroundOutput::drain(std::optional<std::chrono::milliseconds> limit) {
  std::optional<std::chrono::steady_clock::time_point> until;
  if (limit) {
    until = std::chrono::steady_clock::now() + *limit;
  }
  bool drained = true;
  for (const std::shared_ptr<Writer>& writer : writers_) {
    drained = writer->drain(until) && drained;
  }
  return drained;
}

}  // namespace afd::cli
