#include "conformance/process_state.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

namespace afd::conformance {
namespace {

std::chrono::nanoseconds read_clock(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::set<std::string> names_in(const char* folder) {
  std::set<std::string> names;
  std::error_code ignored;  // an entry may vanish while we look
  for (auto entry = std::filesystem::directory_iterator(folder, ignored);
       entry != std::filesystem::directory_iterator(); entry.increment(ignored)) {
    names.insert(entry->path().filename().string());
  }
  return names;
}

}  // namespace

std::set<std::string> open_descriptors() {
  std::set<std::string> descriptors;
  for (const std::string& name : names_in("/proc/self/fd")) {
    char target[512] = {};
    const std::string path = "/proc/self/fd/" + name;
    // The descriptor of the listing itself is closed by now and has no target.
    if (readlink(path.c_str(), target, sizeof target - 1) > 0) {
      descriptors.insert(name + " -> " + target);
    }
  }
  return descriptors;
}

std::size_t num_threads() {
  return names_in("/proc/self/task").size();
}

std::set<std::string> shared_memory_names() {
  return names_in("/dev/shm");
}

std::multiset<std::string> shared_mappings() {
  std::multiset<std::string> mappings;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // "address perms offset dev inode path": shared ones have an 's' in fourth place of perms.
    const std::size_t perms = line.find(' ');
    const std::size_t path = line.find('/');
    if (perms == std::string::npos || path == std::string::npos || line[perms + 4] != 's') {
      continue;
    }
    const std::string name = line.substr(path);
    if (name.rfind("/dev/zero", 0) != 0) {
      mappings.insert(name);
    }
  }
  return mappings;
}

bool is_listening(const std::string& address, std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(port);
  if (inet_pton(AF_INET, address.c_str(), &there.sin_addr) != 1) {
    std::fprintf(stderr, "'%s' is no IPv4 address\n", address.c_str());
    std::abort();
  }
  const bool connected = connect(fd, reinterpret_cast<sockaddr*>(&there), sizeof there) == 0;
  close(fd);
  return connected;
}

std::chrono::nanoseconds thread_cpu_time() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID);
}
std::chrono::nanoseconds process_cpu_time() {
  return read_clock(CLOCK_PROCESS_CPUTIME_ID);
}

}  // namespace afd::conformance
