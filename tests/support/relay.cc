#include "tests/support/relay.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <future>
#include <list>
#include <random>
#include <utility>
#include <vector>

namespace afd::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

/// What may wait in one direction before the relay reads no more.
constexpr std::size_t kWaitingBytesMax = std::size_t{4} << 20;

[[noreturn]] void end_process(const char* what) {
  std::perror(what);
  std::abort();
}

sockaddr_in socket_address(const std::string& address, std::uint16_t port) {
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &there.sin_addr) != 1) {
    end_process("the relay's address");
  }
  return there;
}

/// Closes with a RST.
void reset(int fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  ::close(fd);
}

void send_at_once(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Something read, and when it may go on. Without bytes: the end of the stream.
struct Chunk {
  Clock::time_point due;
  std::string bytes;
};

/// One direction of a connection.
struct Stream {
  int from = -1;
  int to = -1;
  std::deque<Chunk> chunks;
  std::size_t waiting_bytes = 0;
  bool read_all = false;
  bool handed_all = false;
};

struct Connection {
  std::array<Stream, 2> streams;
};

}  // namespace

class Relay::Loop {
 public:
  Loop(Relay& relay, int listener) : relay_(relay), listener_(listener) {}
  ~Loop() {
    for (const Connection& connection : connections_) {
      close(connection);
    }
    ::close(listener_);
  }

  void run() {
    for (;;) {
      const std::uint64_t changes = relay_.changes_.load();
      std::vector<pollfd> fds = {{.fd = relay_.wake_fd_, .events = POLLIN, .revents = 0}};
      const Clock::time_point next =
          relay_.stalled_.load() ? Clock::time_point::max() : serve(&fds);
      relay_.changes_seen_.store(changes);
      relay_.changes_seen_.notify_all();
      if (relay_.stopped_.load()) {
        return;
      }
      timespec time{};
      const bool has_next = next != Clock::time_point::max();
      if (has_next) {
        const auto left = std::max(next - Clock::now(), Clock::duration::zero());
        time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(left).count();
        time.tv_nsec = (left % std::chrono::seconds(1)).count();
      }
      ::ppoll(fds.data(), fds.size(), has_next ? &time : nullptr, nullptr);
      if (fds[0].revents != 0) {
        std::uint64_t count = 0;
        static_cast<void>(!::read(relay_.wake_fd_, &count, sizeof count));
      }
    }
  }

 private:
  /// Does all that can be done now. @return when there is more; *fds: what else to wait for
  Clock::time_point serve(std::vector<pollfd>* fds) {
    if (relay_.cut_.load()) {
      for (const Connection& connection : connections_) {
        close(connection);
      }
      connections_.clear();
    }
    accept_all();
    Clock::time_point next = Clock::time_point::max();
    for (auto it = connections_.begin(); it != connections_.end();) {
      bool open = true;
      for (Stream& stream : it->streams) {
        open = open && read_all(stream) && hand_on(stream, &next, fds);
      }
      if (!open || (it->streams[0].handed_all && it->streams[1].handed_all)) {
        close(*it);
        it = connections_.erase(it);
        continue;
      }
      for (const Stream& stream : it->streams) {
        if (!stream.read_all && stream.waiting_bytes < kWaitingBytesMax) {
          fds->push_back({.fd = stream.from, .events = POLLIN, .revents = 0});
        }
      }
      ++it;
    }
    fds->push_back({.fd = listener_, .events = POLLIN, .revents = 0});
    return next;
  }

  void accept_all() {
    for (;;) {
      const int client = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (client < 0) {
        return;
      }
      const int target = relay_.cut_.load() ? -1 : connect_to_target();
      if (target < 0) {
        reset(client);
        continue;
      }
      send_at_once(client);
      send_at_once(target);
      Connection& connection = connections_.emplace_back();
      connection.streams[0].from = connection.streams[1].to = client;
      connection.streams[0].to = connection.streams[1].from = target;
      ++relay_.num_connections_;
    }
  }

  int connect_to_target() const {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in there =
        socket_address(relay_.options_.target_address, relay_.options_.target_port);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) {
      ::close(fd);
      return -1;
    }
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
  }

  /// @return false  the connection has broken
  bool read_all(Stream& stream) {
    while (!stream.read_all && stream.waiting_bytes < kWaitingBytesMax) {
      std::array<char, 65536> buffer;
      const ssize_t size = ::recv(stream.from, buffer.data(), buffer.size(), 0);
      if (size < 0) {
        return errno == EAGAIN;
      }
      const microseconds later =
          relay_.options_.delay +
          microseconds(random_() % static_cast<std::uint64_t>(relay_.options_.jitter.count() + 1));
      const Clock::time_point before =
          stream.chunks.empty() ? Clock::time_point::min() : stream.chunks.back().due;
      stream.chunks.push_back({std::max(before, Clock::now() + later),
                               std::string(buffer.data(), static_cast<std::size_t>(size))});
      stream.waiting_bytes += static_cast<std::size_t>(size);
      stream.read_all = size == 0;
    }
    return true;
  }

  bool hand_on(Stream& stream, Clock::time_point* next, std::vector<pollfd>* fds) {
    while (!stream.chunks.empty()) {
      Chunk& chunk = stream.chunks.front();
      if (chunk.due > Clock::now()) {
        *next = std::min(*next, chunk.due);
        return true;
      }
      if (chunk.bytes.empty()) {
        ::shutdown(stream.to, SHUT_WR);
        stream.handed_all = true;
        stream.chunks.clear();
        return true;
      }
      const ssize_t size = ::send(stream.to, chunk.bytes.data(), chunk.bytes.size(), MSG_NOSIGNAL);
      if (size < 0) {
        if (errno != EAGAIN) {
          return false;
        }
        fds->push_back({.fd = stream.to, .events = POLLOUT, .revents = 0});
        return true;
      }
      relay_.num_bytes_ += static_cast<std::uint64_t>(size);
      stream.waiting_bytes -= static_cast<std::size_t>(size);
      chunk.bytes.erase(0, static_cast<std::size_t>(size));
      if (chunk.bytes.empty()) {
        stream.chunks.pop_front();
      }
    }
    return true;
  }

  /// Both ends handed on in order are past a RST's harm.
  static void close(const Connection& connection) {
    for (const Stream& stream : connection.streams) {
      if (stream.handed_all) {
        ::close(stream.from);
      } else {
        reset(stream.from);
      }
    }
  }

  Relay& relay_;
  const int listener_;
  std::list<Connection> connections_;
  std::mt19937_64 random_{1};
};

Relay::Relay(RelayOptions options)
    : options_(std::move(options)), wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  std::promise<void> listening;
  thread_ = std::thread([this, &listening] {
    if (options_.enter) {
      options_.enter();
    }
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    sockaddr_in here = socket_address(options_.address, options_.port);
    socklen_t size = sizeof here;
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&here), sizeof here) != 0 ||
        ::listen(listener, 100) != 0 ||
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &size) != 0) {
      end_process("the relay cannot listen");
    }
    port_.store(ntohs(here.sin_port));
    Loop loop(*this, listener);
    listening.set_value();
    loop.run();
  });
  listening.get_future().wait();
}

Relay::~Relay() {
  stopped_.store(true);
  wake();
  thread_.join();
  ::close(wake_fd_);
}

void Relay::wake() const {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(wake_fd_, &one, sizeof one));
}

void Relay::apply() {
  const std::uint64_t change = ++changes_;
  wake();
  for (std::uint64_t seen = changes_seen_.load(); seen < change; seen = changes_seen_.load()) {
    changes_seen_.wait(seen);
  }
}

void Relay::stall() {
  stalled_.store(true);
  apply();
}

void Relay::go_on() {
  stalled_.store(false);
  apply();
}

void Relay::cut() {
  cut_.store(true);
  apply();
}

void Relay::mend() {
  cut_.store(false);
  apply();
}

}  // namespace afd::testing
