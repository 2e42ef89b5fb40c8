#include "session/connection.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include <poll.h>
#include <sys/socket.h>

namespace afd::session {
namespace {

constexpr std::size_t kReadBytes = std::size_t{16} << 10;  // on the stack
// Of one peer at once, so that a flood of one does not keep the loop from the others.
constexpr std::size_t kReadBytesMax = std::size_t{4} << 20;

}  // namespace

Connection::Connection(EventLoop& loop, base::Fd fd, std::uint32_t accepted)
    : socket_(loop, std::move(fd)), buffer_(accepted) {}

void Connection::start_reading(std::function<void()> handler) {
  socket_.start_reading(std::move(handler));
}

void Connection::read(ReadUntil until) {
  std::array<char, kReadBytes> scratch;
  std::size_t total = 0;
  while (!ended_ && total < kReadBytesMax) {
    const ssize_t count = ::recv(socket_.fd(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (count > 0) {
      buffer_.append({scratch.data(), static_cast<std::size_t>(count)});
      total += static_cast<std::size_t>(count);
      if (until == ReadUntil::kOneRead) {
        return;
      }
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    } else {
      // End of stream, or a reset: what arrived before it has been read.
      ended_ = true;
      socket_.stop_reading();
    }
  }
}

void Connection::discard() {
  read(ReadUntil::kDrained);
  buffer_ = FrameBuffer(0);
}

void Connection::send(SharedFrame frame) {
  if (broken_) {
    return;
  }
  queue_.push_back(std::move(frame));
  if (waits_for_room_) {
    return;  // behind what already waits
  }
  continue_sending();
}

void Connection::continue_sending() {
  waits_for_room_ = false;
  if (!send_queued()) {
    waits_for_room_ = true;
    socket_.when_writable([this] { continue_sending(); });
  }
}

bool Connection::send_queued() noexcept {
  while (!queue_.empty()) {
    const std::string& front = *queue_.front();
    const ssize_t count = ::send(socket_.fd(), front.data() + sent_of_front_,
                                 front.size() - sent_of_front_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    }
    if (count < 0) {
      broken_ = true;
      queue_.clear();
      return true;
    }
    sent_of_front_ += static_cast<std::size_t>(count);
    if (sent_of_front_ == front.size()) {
      queue_.pop_front();
      sent_of_front_ = 0;
    }
  }
  return true;
}

void Connection::finish(Deadline deadline) noexcept {
  while (!send_queued() && !deadline.expired()) {
    pollfd room{.fd = socket_.fd(), .events = POLLOUT, .revents = 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    ::poll(&room, 1, static_cast<int>(left.count()));
  }
  queue_.clear();
  broken_ = true;
  ::shutdown(socket_.fd(), SHUT_WR);
  // Closing a socket with unread bytes resets the connection, which could overtake what was sent.
  // A peer that goes on sending meets that reset: it must not keep us here.
  std::array<char, kReadBytes> scratch;
  std::size_t total = 0;
  while (total < kReadBytesMax && (total == 0 || !deadline.expired())) {
    const ssize_t count = ::recv(socket_.fd(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      break;
    }
    total += static_cast<std::size_t>(count);
  }
}

}  // namespace afd::session
