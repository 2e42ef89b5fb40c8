#include "tests/support/network.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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
