#include "tests/support/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPatience{20'000};

/// A socket that is closed in the end.
struct Socket {
  int fd = -1;
  Socket() = default;
  explicit Socket(int which) : fd(which) {}
  Socket(Socket&& other) noexcept : fd(std::exchange(other.fd, -1)) {}
  ~Socket() { ::close(fd); }

  void send(const std::string& bytes) const {
    ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  bool is_readable(milliseconds limit) const {
    pollfd polled{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&polled, 1, static_cast<int>(limit.count())) == 1;
  }
  /// So many bytes, fewer at the end of the stream or of the patience.
  std::string receive(std::size_t size) const {
    std::string bytes(size, '\0');
    std::size_t done = 0;
    while (done < size && is_readable(kPatience)) {
      const ssize_t got = ::recv(fd, bytes.data() + done, size - done, 0);
      if (got <= 0) {
        break;
      }
      done += static_cast<std::size_t>(got);
    }
    bytes.resize(done);
    return bytes;
  }
  /// Whether the stream ends, and how: 0 in order, an errno.
  int end() const {
    char c = 0;
    if (!is_readable(kPatience)) {
      return -1;
    }
    return ::recv(fd, &c, 1, 0) == 0 ? 0 : errno;
  }
};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class RelayTest : public ::testing::Test {
 protected:
  RelayTest() {
    sockaddr_in here = loopback(0);
    socklen_t size = sizeof here;
    EXPECT_EQ(::bind(listener_.fd, reinterpret_cast<sockaddr*>(&here), sizeof here), 0);
    EXPECT_EQ(::listen(listener_.fd, 10), 0);
    EXPECT_EQ(::getsockname(listener_.fd, reinterpret_cast<sockaddr*>(&here), &size), 0);
    options_.target_port = ntohs(here.sin_port);
  }

  static Socket connect_to(const Relay& relay) {
    Socket client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in there = loopback(relay.port());
    EXPECT_EQ(::connect(client.fd, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    return client;
  }
  Socket accept() const {
    return listener_.is_readable(kPatience) ? Socket(::accept(listener_.fd, nullptr, nullptr))
                                            : Socket();
  }

  Socket listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  RelayOptions options_;
};

TEST_F(RelayTest, HandsOnBytesAndEndsInBothDirections) {
  const Relay relay(options_);
  const Socket client = connect_to(relay);
  const Socket server = accept();
  client.send("there");
  EXPECT_EQ(server.receive(5), "there");
  ::shutdown(client.fd, SHUT_WR);
  EXPECT_EQ(server.end(), 0);
  server.send("and back");
  EXPECT_EQ(client.receive(8), "and back");
  ::shutdown(server.fd, SHUT_WR);
  EXPECT_EQ(client.end(), 0);
  EXPECT_EQ(relay.num_connections(), 1u);
  EXPECT_EQ(relay.num_bytes(), 13u);
}

TEST_F(RelayTest, DelaysWithoutChangingTheOrder) {
  options_.delay = milliseconds(30);
  options_.jitter = milliseconds(5);
  const Relay relay(options_);
  const Socket client = connect_to(relay);
  const Socket server = accept();
  const auto begin = Clock::now();
  client.send("!");
  EXPECT_EQ(server.receive(1), "!");
  EXPECT_GE(Clock::now() - begin, options_.delay);
  std::string all;
  for (int i = 0; i < 200; ++i) {
    const std::string line = std::to_string(i) + "\n";
    client.send(line);
    all += line;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  EXPECT_EQ(server.receive(all.size()), all);
}

TEST_F(RelayTest, HoldsEverythingBackWhileItIsStalled) {
  Relay relay(options_);
  const Socket client = connect_to(relay);
  const Socket server = accept();
  client.send("a");
  EXPECT_EQ(server.receive(1), "a");
  relay.stall();
  client.send("b");
  EXPECT_FALSE(server.is_readable(milliseconds(100)));
  relay.go_on();
  EXPECT_EQ(server.receive(1), "b");
}

TEST_F(RelayTest, CutsBothSidesAndRefusesOthersUntilItIsMended) {
  Relay relay(options_);
  const Socket client = connect_to(relay);
  const Socket server = accept();
  client.send("a");
  EXPECT_EQ(server.receive(1), "a");
  relay.cut();
  EXPECT_EQ(client.end(), ECONNRESET);
  EXPECT_EQ(server.end(), ECONNRESET);
  EXPECT_EQ(connect_to(relay).end(), ECONNRESET);
  relay.mend();
  const Socket again = connect_to(relay);
  const Socket server_again = accept();
  again.send("c");
  EXPECT_EQ(server_again.receive(1), "c");
}

TEST_F(RelayTest, TheEndOfTheTargetIsTheEndOfTheClient) {
  const Relay relay(options_);
  const Socket client = connect_to(relay);
  {
    const Socket server = accept();
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(server.fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  EXPECT_EQ(client.end(), ECONNRESET);
}

}  // namespace
}  // namespace afd::testing
