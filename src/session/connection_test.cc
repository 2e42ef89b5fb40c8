// One connection, without a session around it.
#include "session/connection.h"

#include <cstddef>
#include <mutex>
#include <string>

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers

std::size_t bytes_left(const Connection& connection) {
  std::size_t total = 0;
  std::string scratch(std::size_t{1} << 20, '\0');
  while (true) {
    const ssize_t count = ::recv(connection.fd(), scratch.data(), scratch.size(), MSG_DONTWAIT);
    if (count <= 0) {
      return total;
    }
    total += static_cast<std::size_t>(count);
  }
}

TEST(ConnectionTest, FinishesAlthoughItsPeerGoesOnSending) {
  constexpr std::size_t kQueuedBytes = std::size_t{12} << 20;
  constexpr int kBufferBytes = 64 << 20;  // with what the kernel counts on top
  std::mutex mutex;
  auto loop = EventLoop::create(mutex, [](std::unique_lock<std::mutex>&) {});
  ASSERT_TRUE(loop);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const base::Fd peer(ends[0]);
  Connection connection(**loop, base::Fd(ends[1]), 0);
  // More than finish() may read is there at once: as good as a peer that is always faster.
  if (::setsockopt(peer.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kBufferBytes, sizeof(int)) != 0) {
    GTEST_SKIP() << "needs the right to give a socket a large buffer (CAP_NET_ADMIN)";
  }
  send_raw(peer, std::string(kQueuedBytes, 'x'));

  connection.finish(Deadline::never());

  EXPECT_GT(bytes_left(connection), kQueuedBytes / 2);
}

TEST(ConnectionTest, FinishesAtOnceBeyondItsDeadline) {
  constexpr std::size_t kQueuedBytes = std::size_t{128} << 10;
  std::mutex mutex;
  auto loop = EventLoop::create(mutex, [](std::unique_lock<std::mutex>&) {});
  ASSERT_TRUE(loop);
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  const base::Fd peer(ends[0]);
  Connection connection(**loop, base::Fd(ends[1]), 0);
  send_raw(peer, std::string(kQueuedBytes, 'x'));

  connection.finish(Deadline::now());

  const std::size_t left = bytes_left(connection);  // one buffer was read, no more
  EXPECT_GT(left, 0U);
  EXPECT_LT(left, kQueuedBytes);
}

}  // namespace
}  // namespace afd::session
