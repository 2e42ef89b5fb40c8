#include "session/session_test_support.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace afd::session::testing {
namespace {

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

base::Fd try_listen(std::uint16_t port) {
  base::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(fd.get(), 16) != 0) {
    fd.reset();
  }
  return fd;
}

std::size_t num_entries(const char* folder) {
  const std::filesystem::directory_iterator entries(folder);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace

std::uint16_t free_port() {
  constexpr std::uint32_t kFirst = 20'000;
  constexpr std::uint32_t kCount = 12'000;
  // Starts somewhere else in every process, so that tests that run side by side do not meet, and
  // goes on from there, so that a test's own jobs do not either.
  static std::atomic<std::uint32_t> next{std::random_device()()};
  while (true) {
    const auto port = static_cast<std::uint16_t>(kFirst + next++ % kCount);
    if (try_listen(port)) {
      return port;
    }
  }
}

JoinOptions rank_options(std::uint32_t world_rank, RankCounts counts, std::uint16_t port) {
  const bool is_ffn = world_rank < counts.num_ffn_ranks;
  JoinOptions options;
  options.port = port;
  options.role = is_ffn ? Role::kFfn : Role::kAttention;
  options.role_rank = is_ffn ? world_rank : world_rank - counts.num_ffn_ranks;
  options.world_rank = world_rank;
  options.counts = counts;
  options.must_match = {{"hidden_size", "2048"}, {"num_layers", "27"}};
  options.blob = "blob of " + rank_name(world_rank, counts);
  return options;
}

void Job::start(JoinOptions options, Deadline deadline) {
  const std::uint32_t rank = options.world_rank;
  threads_[rank] = std::thread([this, rank, deadline, options = std::move(options)]() mutable {
    results_[rank] = std::make_unique<Joined>(Session::join(std::move(options), deadline));
  });
}

void Job::start_all() {
  for (std::uint32_t rank = 0; rank < num_ranks(); ++rank) {
    start(rank);
  }
}

void Job::wait() {
  for (std::thread& thread : threads_) {
    if (thread.joinable()) {
      thread.join();
    }
  }
}

bool eventually(const std::function<bool()>& holds) {
  const Deadline deadline = soon();
  while (!holds()) {
    if (deadline.expired()) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

base::Fd connect_raw(std::uint16_t port, const char* source) {
  const sockaddr_in address = loopback(port);
  sockaddr_in from = loopback(0);
  if (source != nullptr) {
    EXPECT_EQ(::inet_pton(AF_INET, source, &from.sin_addr), 1);
  }
  base::Fd fd;
  const bool connected = eventually([&] {
    fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (source != nullptr) {
      EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)), 0);
    }
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  });
  EXPECT_TRUE(connected);
  return fd;
}

base::Fd connect_raw_to(const std::string& host, std::uint16_t port) {
  sockaddr_in address = loopback(port);
  EXPECT_EQ(::inet_pton(AF_INET, host.c_str(), &address.sin_addr), 1);
  base::Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

void connect_raw_with(const base::Fd& fd, std::uint16_t port) {
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
}

base::Fd listen_raw(std::uint16_t port) {
  base::Fd fd = try_listen(port);
  EXPECT_TRUE(fd);
  return fd;
}

void send_raw(const base::Fd& fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) {
      return;  // the other side has had enough
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

std::string read_to_end(const base::Fd& fd) {
  std::string bytes;
  char scratch[4096];
  while (true) {
    const ssize_t count = ::recv(fd.get(), scratch, sizeof(scratch), 0);
    if (count <= 0) {
      return bytes;
    }
    bytes.append(scratch, static_cast<std::size_t>(count));
  }
}

std::string read_exactly(const base::Fd& fd, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::size_t got = 0;
  while (got < bytes) {
    const ssize_t count = ::recv(fd.get(), text.data() + got, bytes - got, 0);
    if (count <= 0) {
      break;
    }
    got += static_cast<std::size_t>(count);
  }
  text.resize(got);
  return text;
}

std::string read_frame(const base::Fd& fd, std::size_t seal_bytes) {
  const std::string header = read_exactly(fd, kHeaderBytes);
  const Result<FrameHeader> decoded = decode_header(header);
  EXPECT_TRUE(decoded) << "of " << header.size() << " bytes";
  return decoded ? header + read_exactly(fd, decoded->payload_bytes + seal_bytes) : header;
}

void RawProver::exchange_nonces(const Nonce& mine) {
  send_raw(fd_, encode_nonce(mine));
  const Result<Nonce> theirs = decode_nonce(read_frame(fd_).substr(kHeaderBytes));
  ASSERT_TRUE(theirs);
  keys_ = derive_keys(secret_, {.member = mine, .hub = *theirs});
  outgoing_ = FrameSeal(keys_.member_seal_key);
  incoming_ = FrameSeal(keys_.hub_seal_key);
}

bool RawProver::prove() {
  send_raw(fd_, encode_proof(keys_.member_proof));
  return read_frame(fd_) == encode_proof(keys_.hub_proof);
}

std::string RawProver::receive() {
  const std::string all = read_frame(fd_, kProofBytes);
  const std::string frame = all.substr(0, all.size() - std::min(all.size(), kProofBytes));
  EXPECT_TRUE(incoming_.opens(frame, std::string_view(all).substr(frame.size())));
  return frame;
}

std::size_t num_live_connections(std::uint16_t port) {
  constexpr unsigned kEstablished = 1;
  std::ifstream table("/proc/net/tcp");
  std::size_t count = 0;
  for (std::string line; std::getline(table, line);) {
    unsigned local_port = 0;
    unsigned state = 0;
    if (std::sscanf(line.c_str(), " %*u: %*8x:%4x %*8x:%*4x %2x", &local_port, &state) == 2) {
      count += local_port == port && state == kEstablished ? 1 : 0;
    }
  }
  return count;
}

std::size_t num_open_fds() {
  return num_entries("/proc/self/fd");
}

std::size_t num_threads() {
  return num_entries("/proc/self/task");
}

bool has_num_threads(std::size_t wanted) {
  return eventually([wanted] { return num_threads() == wanted; });
}

}  // namespace afd::session::testing
