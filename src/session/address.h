// Where a session meets: loopback addresses only, and the sockets that listen and connect there.
//
// Sessions across hosts need authentication. Until this version has it, nothing here binds or
// connects beyond loopback; the check lives in parse_address() and nowhere else.
//
// Threads: plain functions. Every socket is non-blocking and closed on exec.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <sys/socket.h>

#include <afd/result.h>

#include "base/fd.h"

namespace afd::session {

struct Address {
  sockaddr_storage storage{};
  socklen_t size_bytes = 0;
  std::string text;  ///< "127.0.0.1:1239", "[::1]:1239"
  std::string host;  ///< "127.0.0.1"
  std::uint16_t port = 0;
};

/// 127.0.0.0/8, ::1 and "localhost" (127.0.0.1); asks no name server.
/// @return kInvalidArgument  any other host; port 0
Result<Address> parse_address(std::string_view host, std::uint16_t port);

/// A listening socket. A port that is only waiting out old connections is taken.
/// @return kInvalidArgument  the port is in use, or not this user's
///         kUnavailable      no file descriptors left
Result<base::Fd> listen_at(const Address& address);

/// Takes one waiting connection.
/// @return kWouldBlock   none is waiting
///         kUnavailable  no file descriptors left: try later
Result<base::Fd> accept_from(int listener);

/// Begins to connect: the socket turns writable when connected() can tell.
/// @return kUnavailable  refused at once, or no file descriptors left
Result<base::Fd> start_connecting(const Address& address);

/// Whether the connection stands, once the socket is writable.
/// @return kUnavailable  "Connection refused (errno 111)"
Result<void> connected(int fd);

}  // namespace afd::session
