#include "session/address.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "base/errno_text.h"
#include "base/thread.h"
#include "session/session_frame.h"

namespace afd::session {
namespace {

// Connections that wait to be accepted: all ranks at once.
constexpr int kBacklog = 1024;

const sockaddr* generic(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

base::Fd open_socket(const Address& address) {
  return base::Fd(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Small frames matter here, not throughput.
void set_no_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// A connect to a local port that nobody listens on can, by the choice of its own port, meet itself.
bool is_connected_to_itself(int fd) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t here_bytes = sizeof(here);
  socklen_t there_bytes = sizeof(there);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_bytes) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_bytes) != 0) {
    return false;
  }
  return here_bytes == there_bytes && std::memcmp(&here, &there, here_bytes) == 0;
}

std::string host_of(const sockaddr_storage& storage) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
  } else if (storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {  // of a listener for both families
      ::inet_ntop(AF_INET, v6.sin6_addr.s6_addr + 12, text, sizeof(text));
    } else {
      ::inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    }
  }
  return text;
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

std::string host_at(int fd, NameOf name_of) {
  sockaddr_storage storage{};
  socklen_t size_bytes = sizeof(storage);
  return name_of(fd, reinterpret_cast<sockaddr*>(&storage), &size_bytes) == 0 ? host_of(storage)
                                                                              : "?";
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

/// What getaddrinfo() says. Blocks, for a name, as long as the resolver likes.
Result<std::vector<Address>> ask_resolver(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, FreeAddresses> owner(list);
  if (status != 0) {
    return fail(ErrorCode::kUnavailable,
                "host " + host + " has no address: " + ::gai_strerror(status));
  }
  std::vector<Address> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    Address address;
    if (entry->ai_addrlen > sizeof(address.storage)) {
      continue;
    }
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size_bytes = entry->ai_addrlen;
    address.host = host;
    address.port = port;
    address.text = text_of(host, port);
    addresses.push_back(std::move(address));
  }
  if (addresses.empty()) {
    return fail(ErrorCode::kUnavailable, "host " + host + " has no address");
  }
  return addresses;
}

// Between resolve() and its thread; whichever ends last frees it.
struct Question {
  std::mutex mutex;
  std::condition_variable_any changed;
  std::optional<Result<std::vector<Address>>> answer;
};

Result<std::vector<Address>> resolve_name(const std::string& host, std::uint16_t port,
                                          Deadline deadline, const std::stop_token& stop) {
  const auto question = std::make_shared<Question>();
  Result<std::thread> asking = base::start_thread([question, host, port] {
    Result<std::vector<Address>> answer = ask_resolver(host, port, AI_ADDRCONFIG);
    const std::lock_guard lock(question->mutex);
    question->answer = std::move(answer);
    question->changed.notify_all();
  });
  if (!asking) {
    return fail(std::move(asking).error());
  }
  asking->detach();
  std::unique_lock lock(question->mutex);
  const auto answered = [&] { return question->answer.has_value(); };
  if (deadline.is_never()) {
    question->changed.wait(lock, stop, answered);
  } else {
    question->changed.wait_until(lock, stop, deadline.when(), answered);
  }
  if (answered()) {
    return *std::move(question->answer);
  }
  if (stop.stop_requested()) {
    return fail(ErrorCode::kFailedPrecondition, "closed");
  }
  return fail(ErrorCode::kDeadlineExceeded, "the resolver does not answer for host " + host);
}

}  // namespace

std::string text_of(std::string_view host, std::uint16_t port) {
  const bool colons = host.find(':') != std::string_view::npos;
  return (colons ? "[" + std::string(host) + "]" : std::string(host)) + ":" + std::to_string(port);
}

bool is_loopback(std::string_view host) {
  const std::string text(host == "localhost" ? "127.0.0.1" : host);
  in_addr v4{};
  in6_addr v6{};
  return (::inet_pton(AF_INET, text.c_str(), &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127) ||
         (::inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

Result<std::vector<Address>> resolve(std::string_view host, std::uint16_t port, Deadline deadline,
                                     const std::stop_token& stop) {
  if (!is_address(host)) {
    return fail(ErrorCode::kInvalidArgument,
                host.empty() ? "host is empty" : "host is none: it has spaces, or is too long");
  }
  const std::string text(host == "localhost" ? "127.0.0.1" : host);
  Result<std::vector<Address>> numbers = ask_resolver(text, port, AI_NUMERICHOST);
  return numbers ? numbers : resolve_name(text, port, deadline, stop);
}

std::uint16_t port_of(int listener) {
  sockaddr_storage storage{};
  socklen_t size_bytes = sizeof(storage);
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&storage), &size_bytes) != 0) {
    return 0;
  }
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string remote_host(int fd) {
  return host_at(fd, &::getpeername);
}

std::string local_host(int fd) {
  return host_at(fd, &::getsockname);
}

void watch_host(int fd, const SessionConfig& config) {
  if (is_loopback(remote_host(fd))) {
    return;
  }
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof(value));
  };
  const auto interval = static_cast<int>(config.heartbeat_interval.count());
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  // Looked at whenever a probe is due, so one interval earlier, to be within the limit.
  const std::chrono::milliseconds limit = config.heartbeat_limit - config.heartbeat_interval;
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(limit.count()));
}

std::optional<std::chrono::milliseconds> unanswered_for(int fd) {
  tcp_info info{};
  socklen_t size_bytes = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size_bytes) != 0 || info.tcpi_unacked == 0) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

// The kernel gives up with ETIMEDOUT, or with what the network told it meanwhile.
bool is_silence(int error_number) {
  return error_number == ETIMEDOUT || error_number == EHOSTUNREACH || error_number == ENETUNREACH ||
         error_number == EHOSTDOWN || error_number == ENETDOWN;
}

Result<base::Fd> listen_at(const Address& address) {
  base::Fd fd = open_socket(address);
  if (!fd) {
    return fail(ErrorCode::kUnavailable, "cannot open a socket: " + base::errno_text(errno));
  }
  // Takes over a port whose connections are in TIME_WAIT, yet not one that somebody listens on.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.storage.ss_family == AF_INET6) {
    const int off = 0;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(fd.get(), generic(address), address.size_bytes) != 0 ||
      ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    const std::string port = "port " + std::to_string(address.port) + " on " + address.host;
    if (error == EADDRINUSE) {
      return fail(ErrorCode::kInvalidArgument,
                  port + " is in use: another job? choose another port");
    }
    return fail(ErrorCode::kInvalidArgument,
                "cannot listen at " + port + ": " + base::errno_text(error));
  }
  return fd;
}

Result<base::Fd> accept_from(int listener) {
  while (true) {
    base::Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd) {
      set_no_delay(fd.get());
      return fd;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:
        continue;
      case EAGAIN:
        return fail(ErrorCode::kWouldBlock, "no connection is waiting");
      default:
        return fail(ErrorCode::kUnavailable, "cannot accept: " + base::errno_text(errno));
    }
  }
}

Result<base::Fd> start_connecting(const Address& address) {
  base::Fd fd = open_socket(address);
  if (!fd) {
    return fail(ErrorCode::kUnavailable, "cannot open a socket: " + base::errno_text(errno));
  }
  set_no_delay(fd.get());
  if (::connect(fd.get(), generic(address), address.size_bytes) != 0 && errno != EINPROGRESS) {
    return fail(ErrorCode::kUnavailable, base::errno_text(errno));
  }
  return fd;
}

Result<void> connected(int fd) {
  int error = 0;
  socklen_t error_bytes = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0) {
    error = errno;
  }
  if (error == 0 && is_connected_to_itself(fd)) {
    // Resets: a plain close would keep the port, which rank 0 wants, in TIME_WAIT.
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    error = ECONNREFUSED;
  }
  if (error != 0) {
    return fail(ErrorCode::kUnavailable, base::errno_text(error));
  }
  return {};
}

}  // namespace afd::session
