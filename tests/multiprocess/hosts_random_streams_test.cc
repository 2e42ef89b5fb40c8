// Whoever reaches a job's ports can write anything there: at the rendezvous, and at the ports where
// UCX takes its connections. A run goes on as if nobody had.
//
// What a stream would have to begin with to be taken for UCX's own is in docs/gotchas.md.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "hosts_job.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr std::uint32_t kNumHosts = 3;
#if defined(__SANITIZE_ADDRESS__)
constexpr int kStreams = 250;  ///< at each port
constexpr const char* kTokens = "100";
#else
constexpr int kStreams = 1000;
constexpr const char* kTokens = "400";
#endif
constexpr std::size_t kBytesMax = 64 * 1024;
/// Open at once at one port; the oldest gives way.
constexpr std::size_t kOpenMax = 100;
/// How long a connection that says nothing may hold a descriptor: rank 0 drops it after 5 s.
constexpr seconds kHeldMax{20};

struct Listener {
  std::string address;
  std::uint16_t port = 0;
};

/// Where processes of the same host as `pid` listen, IPv4.
std::vector<Listener> listeners_of(pid_t pid) {
  std::vector<Listener> found;
  std::ifstream table("/proc/" + std::to_string(pid) + "/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state != "0A") {
      continue;
    }
    in_addr address{.s_addr =
                        static_cast<std::uint32_t>(std::stoul(local.substr(0, 8), nullptr, 16))};
    char text[INET_ADDRSTRLEN];
    ::inet_ntop(AF_INET, &address, text, sizeof text);
    found.push_back({text, static_cast<std::uint16_t>(std::stoul(local.substr(9), nullptr, 16))});
  }
  return found;
}

std::size_t num_descriptors(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator entries("/proc/" + std::to_string(pid) + "/fd", error);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

/// Throws streams at one port, from the host that the calling thread is on.
class Thrower {
 public:
  Thrower(Listener target, std::uint32_t seed, std::string handshake)
      : target_(std::move(target)), random_(seed), handshake_(std::move(handshake)) {}
  ~Thrower() {
    for (const int fd : open_) {
      ::close(fd);
    }
  }
  Thrower(const Thrower&) = delete;
  Thrower& operator=(const Thrower&) = delete;

  /// @return how many could be begun
  int throw_streams(int num_streams) {
    int begun = 0;
    for (int i = 0; i < num_streams; ++i) {
      begun += throw_one() ? 1 : 0;
    }
    return begun;
  }

 private:
  enum class Kind : std::uint32_t { kCloses, kResets, kStaysOpen, kTrickles };

  bool throw_one() {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(target_.port);
    ::inet_pton(AF_INET, target_.address.c_str(), &there.sin_addr);
    // Nobody may have to read it.
    const timeval patience{.tv_sec = 0, .tv_usec = 50'000};
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&there), sizeof there) != 0) {
      ::close(fd);
      return false;
    }
    const std::string bytes = random_bytes();
    switch (static_cast<Kind>(below(4))) {
      case Kind::kCloses:
        send(fd, bytes);
        ::close(fd);
        break;
      case Kind::kResets: {
        send(fd, bytes);
        const linger at_once{.l_onoff = 1, .l_linger = 0};
        ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        ::close(fd);
        break;
      }
      case Kind::kStaysOpen:
        send(fd, bytes);
        keep(fd);
        break;
      case Kind::kTrickles:
        send(fd, bytes.substr(0, 1));
        keep(fd);
        break;
    }
    // Those that trickle go on, a byte each.
    for (const int open : open_) {
      if (below(8) == 0) {
        send(open, random_bytes().substr(0, 1));
      }
    }
    return true;
  }

  std::uint32_t below(std::uint32_t limit) { return random_() % limit; }

  /// A third each: short, any length, after the beginning of a real handshake.
  std::string random_bytes() {
    const std::uint32_t kind = below(3);
    std::string bytes = kind == 2 ? handshake_.substr(0, below(handshake_.size() + 1)) : "";
    std::size_t length = kind == 0 ? below(20) : below(kBytesMax + 1);
    for (; length > 0; --length) {
      bytes.push_back(static_cast<char>(random_()));
    }
    return bytes;
  }

  static void send(int fd, std::string_view bytes) {
    ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  void keep(int fd) {
    open_.push_back(fd);
    if (open_.size() > kOpenMax) {
      ::close(open_.front());
      open_.erase(open_.begin());
    }
  }

  const Listener target_;
  std::mt19937 random_;
  const std::string handshake_;
  std::vector<int> open_;
};

std::string a_whole_handshake() {
  std::ifstream file(std::string(AFD_TEST_DATA) + "/../fuzz/corpus/session_frame/a_whole_handshake",
                     std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(HostsRandomStreamsTest, ARunIsUnaffectedByThousandsOfRandomStreams) {
  std::string why_not;
  const auto network = Network::create(kNumHosts, &why_not, {.private_shared_memory = true});
  if (!network) {
    GTEST_SKIP() << why_not;
  }
  const std::string handshake = a_whole_handshake();
  ASSERT_GT(handshake.size(), 100u);
  HostsJob job(*network, kModel);
  std::string prompts;
  for (int i = 0; i < 60; ++i) {
    prompts += R"({"prompt_ids": [)" + std::to_string(1 + i) + R"(, 7, 9]})" + "\n";
  }
  const std::vector<std::string> work = {"--prompts", job.folder().write("prompts.jsonl", prompts),
                                         "--max-new-tokens", kTokens, "--logits-sha256"};
  std::vector<std::string> colocated = work;
  colocated.push_back("--colocated");
  const std::vector<std::string> expected = logits_hashes(afd_run(kModel, colocated));
  ASSERT_EQ(expected.size(), 60u);

  std::vector<std::string> slowly = work;
  slowly.insert(slowly.end(), {"--max-num-seqs", "2"});
  job.start({{"ffn", 0, 0}, {"attention", 0, 1}, {"attention", 1, 2}}, slowly);
  ASSERT_TRUE(job.await_meeting());
  std::vector<std::size_t> descriptors;
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Thrower>> throwers;
  std::vector<int> begun;
  std::vector<Listener> targets;
  std::vector<std::uint32_t> from;
  for (std::size_t i = 0; i < job.size(); ++i) {
    const std::uint32_t host = job.places()[i].host;
    descriptors.push_back(num_descriptors(job.program(i).pid()));
    const std::vector<Listener> listeners = listeners_of(job.program(i).pid());
    ASSERT_GE(listeners.size(), i == 0 ? 2u : 1u) << job.places()[i].name();
    for (const Listener& listener : listeners) {
      targets.push_back(listener);
      from.push_back(listener.address.starts_with("127.") ? host : (host + 1) % kNumHosts);
    }
  }
  const auto seed = static_cast<std::uint32_t>(std::random_device()());
  std::printf("seed %u\n", seed);
  begun.resize(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    throwers.push_back(
        std::make_unique<Thrower>(targets[i], seed + static_cast<std::uint32_t>(i), handshake));
    threads.emplace_back([&, i] {
      network->enter(from[i]);
      begun[i] = throwers[i]->throw_streams(kStreams);
    });
  }
  const auto start = std::chrono::steady_clock::now();
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::printf("%zu ports, %d streams each, in %lld ms\n", targets.size(), kStreams,
              static_cast<long long>(
                  std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start)
                      .count()));
  for (std::size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(begun[i], kStreams) << targets[i].address << " port " << targets[i].port;
  }
  throwers.clear();
  for (std::size_t i = 0; i < job.size(); ++i) {
    const auto until = std::chrono::steady_clock::now() + kHeldMax;
    std::size_t now = 0;
    do {
      ASSERT_FALSE(job.program(i).has_ended())
          << job.places()[i].name() << " ended among the streams, or the run is too short";
      std::this_thread::sleep_for(milliseconds(5));
      now = num_descriptors(job.program(i).pid());
    } while (now > descriptors[i] && std::chrono::steady_clock::now() < until);
    EXPECT_LE(now, descriptors[i]) << job.places()[i].name() << " keeps descriptors";
  }
  EXPECT_EQ(job.await_hashes(seconds(300)), expected);
  for (std::size_t i = 0; i < job.size(); ++i) {
    const std::string& log = job.ended(i).err;
    EXPECT_LT(std::ranges::count(log, '\n'), 60) << job.places()[i].name() << " logs: " << log;
  }
}

}  // namespace
}  // namespace afd::testing
