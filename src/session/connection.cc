#include "session/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "session/address.h"
#include "session/wording.h"

namespace afd::session {
namespace {

constexpr std::size_t kReadBytes = std::size_t{16} << 10;  // on the stack
// Of one peer at once, so that a flood of one does not keep the loop from the others.
constexpr std::size_t kReadBytesMax = std::size_t{4} << 20;

}  // namespace

Connection::Connection(EventLoop& loop, base::Fd fd, FrameSet accepted)
    : loop_(loop), socket_(loop, std::move(fd)), buffer_(accepted) {}

void Connection::start_reading(std::function<void()> handler) {
  socket_.start_reading(std::move(handler));
}

void Connection::protect(FrameSeal outgoing, FrameSeal incoming) {
  seals_.emplace(Seals{.outgoing = std::move(outgoing), .incoming = std::move(incoming)});
  buffer_.expect_seals(kProofBytes);
}

void Connection::encrypt(std::unique_ptr<TlsStream> tls) {
  tls_ = std::move(tls);
  queue_output();
}

void Connection::queue_output() {
  std::string bytes = tls_->take_output();
  if (bytes.empty() || broken_) {
    return;
  }
  queue_.push_back({.frame = share(std::move(bytes)), .seal = {}});
  if (!waits_for_room_) {
    continue_sending();
  }
}

void Connection::take_in(std::string_view bytes) {
  if (!tls_) {
    buffer_.append(bytes);
    return;
  }
  if (tls_error_) {
    return;
  }
  std::string plain;
  if (Result<void> received = tls_->receive(bytes, plain); !received) {
    tls_error_ = received.error();
  }
  queue_output();
  buffer_.append(plain);
}

Result<std::optional<FrameBuffer::Frame>> Connection::next() {
  Result<std::optional<FrameBuffer::Frame>> frame = buffer_.next();
  if (frame && !*frame && tls_error_) {
    return fail(*tls_error_);
  }
  if (frame && *frame && seals_ && !seals_->incoming.opens((*frame)->sealed, (*frame)->seal)) {
    return fail(ErrorCode::kProtocolMismatch,
                "a " + std::string(to_string((*frame)->header.type)) + " frame with a wrong seal");
  }
  return frame;
}

void Connection::read(ReadUntil until) {
  std::array<char, kReadBytes> scratch;
  std::size_t total = 0;
  while (!ended_ && total < kReadBytesMax) {
    const ssize_t count = ::recv(socket_.fd(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (count > 0) {
      take_in({scratch.data(), static_cast<std::size_t>(count)});
      total += static_cast<std::size_t>(count);
      if (until == ReadUntil::kOneRead) {
        return;
      }
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    } else {
      // End of stream, a reset, or silence: what arrived before it has been read.
      error_number_ = count < 0 && error_number_ == 0 ? errno : error_number_;
      ended_ = true;
      socket_.stop_reading();
    }
  }
}

void Connection::watch(const SessionConfig& config) {
  watch_host(socket_.fd(), config);
  limit_ = config.heartbeat_limit;
  silence_max_ = config.heartbeat_limit - config.heartbeat_interval;
  if (!is_loopback(remote_host(socket_.fd()))) {
    answer_timer_.emplace(loop_);
  }
}

void Connection::expect_answer() {
  if (!answer_timer_ || expects_answer_ || ended_) {
    return;
  }
  expects_answer_ = true;
  answer_timer_->start(silence_max_, [this] { look_for_answer(); });
}

void Connection::look_for_answer() {
  expects_answer_ = false;
  const std::optional<std::chrono::milliseconds> silence = unanswered_for(socket_.fd());
  if (!silence || ended_) {
    return;  // The kernel's probes take over, until something is sent again.
  }
  if (*silence < silence_max_) {
    expects_answer_ = true;
    answer_timer_->start(silence_max_ - *silence, [this] { look_for_answer(); });
    return;
  }
  error_number_ = ETIMEDOUT;
  ::shutdown(socket_.fd(), SHUT_RDWR);  // The reader hears of it like of the kernel's own end.
}

std::string Connection::why_ended() const {
  return is_silence(error_number_) ? "no sign of life for " + duration_text(limit_)
                                   : "its connection ended";
}

void Connection::discard() {
  read(ReadUntil::kDrained);
  buffer_ = FrameBuffer(0);
}

void Connection::send(SharedFrame frame) {
  if (broken_) {
    return;
  }
  std::string seal = seals_ ? seals_->outgoing.seal(*frame) : std::string();
  if (tls_) {
    tls_->send(*frame + seal);
    queue_output();
    return;
  }
  queue_.push_back({.frame = std::move(frame), .seal = std::move(seal)});
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
  expect_answer();
}

bool Connection::send_queued() noexcept {
  while (!queue_.empty()) {
    const Outgoing& front = queue_.front();
    const auto rest_of = [](const std::string& bytes, std::size_t sent) {
      const std::size_t begin = std::min(bytes.size(), sent);
      // sendmsg() takes what it only reads as not const.
      return iovec{.iov_base = const_cast<char*>(bytes.data()) + begin,
                   .iov_len = bytes.size() - begin};
    };
    const std::size_t frame_bytes = front.frame->size();
    iovec parts[] = {rest_of(*front.frame, sent_of_front_),
                     rest_of(front.seal, sent_of_front_ - std::min(sent_of_front_, frame_bytes))};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = std::size(parts);
    const ssize_t count = ::sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return false;
    }
    if (count < 0) {
      error_number_ = error_number_ == 0 ? errno : error_number_;  // the kernel tells it once
      broken_ = true;
      queue_.clear();
      return true;
    }
    sent_of_front_ += static_cast<std::size_t>(count);
    if (sent_of_front_ == frame_bytes + front.seal.size()) {
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
