#include "session/address.h"

#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "base/errno_text.h"

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

}  // namespace

Result<Address> parse_address(std::string_view host, std::uint16_t port) {
  if (port == 0) {
    return fail(ErrorCode::kInvalidArgument, "port must be in 1..65535, got 0");
  }
  Address address;
  address.host = host == "localhost" ? "127.0.0.1" : std::string(host);
  address.port = port;
  sockaddr_in v4{};
  sockaddr_in6 v6{};
  if (::inet_pton(AF_INET, address.host.c_str(), &v4.sin_addr) == 1 &&
      ntohl(v4.sin_addr.s_addr) >> 24 == 127) {
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&address.storage, &v4, sizeof(v4));
    address.size_bytes = sizeof(v4);
    address.text = address.host + ":" + std::to_string(port);
    return address;
  }
  if (::inet_pton(AF_INET6, address.host.c_str(), &v6.sin6_addr) == 1 &&
      IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) {
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    std::memcpy(&address.storage, &v6, sizeof(v6));
    address.size_bytes = sizeof(v6);
    address.text = "[" + address.host + "]:" + std::to_string(port);
    return address;
  }
  return fail(ErrorCode::kInvalidArgument,
              "host " + std::string(host) +
                  " is not a loopback address; sessions across hosts need authentication, which "
                  "this version does not have");
}

Result<base::Fd> listen_at(const Address& address) {
  base::Fd fd = open_socket(address);
  if (!fd) {
    return fail(ErrorCode::kUnavailable, "cannot open a socket: " + base::errno_text(errno));
  }
  // Takes over a port whose connections are in TIME_WAIT, yet not one that somebody listens on.
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
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
