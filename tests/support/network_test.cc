#include "tests/support/network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace afd::testing {
namespace {

/// Of the folder that the calling thread sees there.
dev_t device_of_shared_memory() {
  struct stat status {};
  return ::stat("/dev/shm", &status) == 0 ? status.st_dev : 0;
}

class NetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    network_ = Network::create(2, &why_not, {.private_shared_memory = true});
    if (!network_) {
      GTEST_SKIP() << why_not;
    }
  }

  std::unique_ptr<Network> network_;
};

TEST_F(NetworkTest, ThreadsOnTwoHostsShareNoMemoryAndKeepTheirWorkingDirectory) {
  std::set<dev_t> devices = {device_of_shared_memory()};
  const std::string folder = std::filesystem::current_path();
  for (const std::uint32_t host : {0, 1}) {
    dev_t device = 0;
    std::string folder_there;
    std::thread([&] {
      network_->enter(host);
      device = device_of_shared_memory();
      folder_there = std::filesystem::current_path();
    }).join();
    EXPECT_TRUE(devices.insert(device).second) << "host " << host;
    EXPECT_EQ(folder_there, folder);
  }
  EXPECT_EQ(devices.count(device_of_shared_memory()), 1u) << "the test itself has moved";
}

TEST_F(NetworkTest, ProcessesOfOneHostShareMemoryAndOthersDoNot) {
  const std::string name = "/dev/shm/afd-network-test-" + std::to_string(::getpid());
  const pid_t child = ::fork();
  if (child == 0) {
    network_->enter(1);
    std::ofstream(name) << "here";
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const std::string folder = std::filesystem::current_path();
  const auto look = [&](std::uint32_t host) {
    return run_program(network_->command(host, {"/bin/sh", "-c", "test -e \"$1\"", "sh", name}))
        .exit_code;
  };
  EXPECT_EQ(look(0), 1);
  EXPECT_EQ(look(1), 0);
  EXPECT_FALSE(std::filesystem::exists(name));
  EXPECT_EQ(run_program(network_->command(1, {"/bin/pwd"})).out, folder + "\n");
}

/// UDP from host 0 to host 1. @return how many of them came
int datagrams_that_arrive(const Network& network, int num_datagrams) {
  const auto bound = [](const std::string& address) {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_port = htons(4000);
    ::inet_pton(AF_INET, address.c_str(), &here.sin_addr);
    EXPECT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&here), sizeof here), 0);
    return fd;
  };
  int target = -1;
  int num_arrived = 0;
  std::thread([&] {
    network.enter(1);
    target = bound(network.address(1));
  }).join();
  std::thread([&] {
    network.enter(0);
    const int source = bound(network.address(0));
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(4000);
    ::inet_pton(AF_INET, network.address(1).c_str(), &there.sin_addr);
    for (int i = 0; i < num_datagrams; ++i) {
      ::sendto(source, &i, sizeof i, 0, reinterpret_cast<const sockaddr*>(&there), sizeof there);
    }
    ::close(source);
  }).join();
  pollfd polled{.fd = target, .events = POLLIN, .revents = 0};
  while (::poll(&polled, 1, 300) == 1) {
    int which = 0;
    num_arrived += ::recv(target, &which, sizeof which, 0) == sizeof which ? 1 : 0;
  }
  ::close(target);
  return num_arrived;
}

TEST_F(NetworkTest, LosesAShareOfThePackets) {
  EXPECT_EQ(datagrams_that_arrive(*network_, 200), 200);
  std::string why_not;
  if (!network_->lose(1, 500, &why_not)) {
    GTEST_SKIP() << why_not;
  }
  const int arrived = datagrams_that_arrive(*network_, 200);
  EXPECT_GT(arrived, 50);  // seven standard deviations
  EXPECT_LT(arrived, 150);
  ASSERT_TRUE(network_->lose(1, 0, &why_not)) << why_not;
  EXPECT_EQ(datagrams_that_arrive(*network_, 200), 200);
}

/// Sends a MiB over TCP from host 0 to host 1.
std::chrono::milliseconds time_of_a_mebibyte(const Network& network) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(4001);
  ::inet_pton(AF_INET, network.address(1).c_str(), &there.sin_addr);
  int listener = -1;
  std::thread([&] {
    network.enter(1);
    listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    EXPECT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
  }).join();
  const auto begin = std::chrono::steady_clock::now();
  std::thread sender([&] {
    network.enter(0);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    const std::string bytes(kBytes, 'x');
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(kBytes));
    ::close(fd);
  });
  const int fd = ::accept(listener, nullptr, nullptr);
  std::string buffer(kBytes, '\0');
  EXPECT_EQ(::recv(fd, buffer.data(), buffer.size(), MSG_WAITALL), static_cast<ssize_t>(kBytes));
  const auto took = std::chrono::steady_clock::now() - begin;
  sender.join();
  ::close(fd);
  ::close(listener);
  return std::chrono::duration_cast<std::chrono::milliseconds>(took);
}

TEST_F(NetworkTest, LimitsTheRateUntilThatIsLifted) {
  std::string why_not;
  if (!network_->limit_rate(0, 20, &why_not)) {
    GTEST_SKIP() << why_not;
  }
  const auto limited = time_of_a_mebibyte(*network_);
  EXPECT_GE(limited.count(), 350);  // 8 Mbit, less what may go at once, at 20 Mbit/s
  network_->lift_limits(0);
  EXPECT_LT(time_of_a_mebibyte(*network_), limited);
}

TEST_F(NetworkTest, DelaysWhereTheKernelHasNetem) {
  std::string why_not;
  if (!network_->delay(0, std::chrono::milliseconds(50), std::chrono::milliseconds(0), &why_not)) {
    GTEST_SKIP() << why_not;
  }
  EXPECT_GE(time_of_a_mebibyte(*network_).count(), 50);
}

TEST(NetworkOptionsTest, HostsSeeTheSharedMemoryOfThisMachineUnlessAskedOtherwise) {
  std::string why_not;
  const auto network = Network::create(1, &why_not);
  if (!network) {
    GTEST_SKIP() << why_not;
  }
  dev_t device = 0;
  std::thread([&] {
    network->enter(0);
    device = device_of_shared_memory();
  }).join();
  EXPECT_EQ(device, device_of_shared_memory());
}

}  // namespace
}  // namespace afd::testing
