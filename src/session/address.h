// Where a session meets: addresses, names that stand for them, and the sockets that listen and
// connect there.
//
// Threads: plain functions. Every socket is non-blocking and closed on exec.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include <afd/config.h>
#include <afd/deadline.h>
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

/// "node7:1239", "[::1]:1239".
std::string text_of(std::string_view host, std::uint16_t port);

/// 127.0.0.0/8, ::1 and "localhost"; asks no name server, so that a name of this host is none.
bool is_loopback(std::string_view host);

/// What a host means: numbers and "localhost" (127.0.0.1) at once, a name by asking the system's
/// resolver, on a thread of its own. That one is left to itself, and ends some time, where the
/// deadline passes or `stop` is requested first.
///
/// @return not empty, in the resolver's order
///         kInvalidArgument   a host that cannot be one
///         kUnavailable       the resolver knows no address of it (now), or no thread is left
///         kDeadlineExceeded  it does not answer
///         kFailedPrecondition  `stop` was requested
Result<std::vector<Address>> resolve(std::string_view host, std::uint16_t port, Deadline deadline,
                                     const std::stop_token& stop);

/// A listening socket. A port that is only waiting out old connections is taken; port 0 takes one
/// that is free. At "::" it listens to both families.
/// @return kInvalidArgument  the port is in use, or not this user's
///         kUnavailable      no file descriptors left
Result<base::Fd> listen_at(const Address& address);
/// The port that a listening socket has.
std::uint16_t port_of(int listener);

/// Takes one waiting connection.
/// @return kWouldBlock   none is waiting
///         kUnavailable  no file descriptors left: try later
Result<base::Fd> accept_from(int listener);

/// The other end's host, as numbers: "10.0.0.2". Of a socket that is no longer connected: "?".
std::string remote_host(int fd);
/// This end's.
std::string local_host(int fd);

/// Begins to connect: the socket turns writable when connected() can tell.
/// @return kUnavailable  refused at once, or no file descriptors left
Result<base::Fd> start_connecting(const Address& address);

/// Whether the connection stands, once the socket is writable.
/// @return kUnavailable  "Connection refused (errno 111)"
Result<void> connected(int fd);

/// Lets both kernels show each other that the hosts are there: probes on an idle connection, and a
/// limit for whatever is not acknowledged. A process that does not run is none of it: its kernel
/// answers. Past the limit the connection ends with an error that is_silence() knows. Does nothing
/// on loopback.
void watch_host(int fd, const SessionConfig& config);
/// How long the other host has said nothing while something that this end sent waits for its
/// answer; nothing: no such thing waits, or the system does not tell. The kernel's limit for it
/// begins with the first retransmission only, which comes seconds late where answers have been
/// slow.
std::optional<std::chrono::milliseconds> unanswered_for(int fd);
/// Whether the error means that the other host gave no sign of life.
bool is_silence(int error_number);

}  // namespace afd::session
