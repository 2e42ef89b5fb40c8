#include "tests/support/network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace afd::testing {
namespace {

/// Gives the calling process a network of its own and, if asked, an empty /dev/shm.
bool unshare_here(const NetworkOptions& options) {
  if (!options.private_shared_memory) {
    return ::unshare(CLONE_NEWNET) == 0;
  }
  return ::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") == 0;
}

std::string path_of_descriptor(int fd) {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd);
}

std::string working_directory() {
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

std::vector<char*> pointers_of(std::vector<std::string>& args) {
  std::vector<char*> pointers;
  for (std::string& arg : args) {
    pointers.push_back(arg.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

std::string port_of(std::uint32_t host) {
  return "port" + std::to_string(host);
}

}  // namespace

std::unique_ptr<Network> Network::create(std::uint32_t num_hosts, std::string* why_not,
                                         NetworkOptions options) {
  std::unique_ptr<Network> network(new Network());
  network->hosts_.resize(num_hosts);
  bool made = make_place({}, &network->switch_);
  for (Place& host : network->hosts_) {
    made = made && make_place(options, &host);
  }
  if (!made) {
    *why_not = options.private_shared_memory
                   ? "needs the right to make network and mount namespaces (root)"
                   : "needs the right to make network namespaces (root)";
    return nullptr;
  }
  return network->set_up(why_not) ? std::move(network) : nullptr;
}

Network::~Network() {
  hosts_.push_back(switch_);
  for (const Place& place : hosts_) {
    for (const int fd : {place.network, place.mounts}) {
      if (fd >= 0) {
        ::close(fd);
      }
    }
  }
}

// A child makes the namespaces, so that the test itself stays where it is.
bool Network::make_place(const NetworkOptions& options, Place* place) {
  int ends[2];
  int done[2];
  if (::pipe2(ends, O_CLOEXEC) != 0 || ::pipe2(done, O_CLOEXEC) != 0) {
    return false;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(done[1]);
    const char made = unshare_here(options) ? 'y' : 'n';
    char c = 0;
    // Lives until it has been looked at.
    ::_exit(::write(ends[1], &made, 1) == 1 && ::read(done[0], &c, 1) == 0 ? 0 : 1);
  }
  ::close(ends[1]);
  ::close(done[0]);
  char made = 0;
  bool complete = false;
  if (::read(ends[0], &made, 1) == 1 && made == 'y') {
    const std::string folder = "/proc/" + std::to_string(child) + "/ns/";
    place->network = ::open((folder + "net").c_str(), O_RDONLY | O_CLOEXEC);
    complete = place->network >= 0;
    if (options.private_shared_memory) {
      place->mounts = ::open((folder + "mnt").c_str(), O_RDONLY | O_CLOEXEC);
      complete = complete && place->mounts >= 0;
    }
  }
  ::close(done[1]);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return complete;
}

bool Network::set_up(std::string* why_not) const {
  const auto ip = [&](const Place& where, std::vector<std::string> args) {
    args.insert(args.begin(), "ip");
    if (run_in(where, args) == 0) {
      return true;
    }
    *why_not = "cannot lay a network:";
    for (const std::string& arg : args) {
      *why_not += " " + arg;
    }
    return false;
  };
  if (!ip(switch_, {"link", "add", "br0", "type", "bridge"}) ||
      !ip(switch_, {"link", "set", "br0", "up"})) {
    return false;
  }
  for (std::uint32_t host = 0; host < hosts_.size(); ++host) {
    const Place& here = hosts_[host];
    const std::string port = port_of(host);
    if (!ip(switch_, {"link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                      path_of_descriptor(here.network)}) ||
        !ip(switch_, {"link", "set", port, "master", "br0", "up"}) ||
        !ip(here, {"link", "set", "lo", "up"}) || !ip(here, {"link", "set", "eth0", "up"}) ||
        !ip(here, {"addr", "add", address(host) + "/24", "dev", "eth0"}) ||
        !ip(here, {"addr", "add", address_v6(host) + "/64", "dev", "eth0", "nodad"})) {
      return false;
    }
  }
  return true;
}

std::string Network::address(std::uint32_t host) const {
  return "10.77.0." + std::to_string(host + 1);
}

std::string Network::address_v6(std::uint32_t host) const {
  char text[16];
  std::snprintf(text, sizeof(text), "fd77::%x", host + 1);
  return text;
}

bool Network::move_to(const Place& place) {
  if (::setns(place.network, CLONE_NEWNET) != 0) {
    return false;
  }
  if (place.mounts < 0) {
    return true;
  }
  // A thread that shares its root and working directory with others cannot change mounts; the
  // change takes it to the root.
  const std::string folder = working_directory();
  return ::unshare(CLONE_FS) == 0 && ::setns(place.mounts, CLONE_NEWNS) == 0 &&
         ::chdir(folder.c_str()) == 0;
}

void Network::enter(std::uint32_t host) const {
  if (!move_to(hosts_[host])) {
    std::fprintf(stderr, "cannot enter host %u: %s\n", host, std::strerror(errno));
    ::_exit(126);
  }
}

std::vector<std::string> Network::command(std::uint32_t host, std::vector<std::string> args) const {
  const Place& place = hosts_[host];
  std::vector<std::string> start = {"/usr/bin/nsenter",
                                    "--net=" + path_of_descriptor(place.network)};
  if (place.mounts >= 0) {
    start.insert(start.end(), {"--mount=" + path_of_descriptor(place.mounts), "/usr/bin/env",
                               "--chdir=" + working_directory()});
  }
  args.insert(args.begin(), start.begin(), start.end());
  return args;
}

int Network::run(std::uint32_t host, const std::vector<std::string>& args) const {
  return run_in(hosts_[host], args);
}

int Network::run_in(const Place& place, const std::vector<std::string>& args) const {
  std::vector<std::string> copies = args;
  const std::vector<char*> argv = pointers_of(copies);
  const pid_t child = ::fork();
  if (child == 0) {
    if (move_to(place)) {
      ::execvp(argv[0], argv.data());
    }
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void Network::cut(std::uint32_t host, Cut how) const {
  switch (how) {
    case Cut::kLinkDown:
      run(host, {"ip", "link", "set", "eth0", "down"});
      return;
    case Cut::kNoCarrier:
      run_in(switch_, {"ip", "link", "set", port_of(host), "down"});
      return;
    case Cut::kBlackHole:
      run_in(switch_, {"ip", "link", "set", port_of(host), "nomaster"});
      return;
  }
}

void Network::mend(std::uint32_t host) const {
  run(host, {"ip", "link", "set", "eth0", "up"});
  run_in(switch_, {"ip", "link", "set", port_of(host), "master", "br0", "up"});
}

bool Network::set_queues(std::uint32_t host, const std::vector<std::string>& discipline) const {
  const auto set = [&](const Place& place, const std::string& device) {
    std::vector<std::string> args = {"tc", "qdisc", "replace", "dev", device, "root"};
    args.insert(args.end(), discipline.begin(), discipline.end());
    return run_in(place, args) == 0;
  };
  return set(hosts_[host], "eth0") && set(switch_, port_of(host));
}

bool Network::limit_rate(std::uint32_t host, std::uint32_t megabits_per_second,
                         std::string* why_not) const {
  if (set_queues(host, {"tbf", "rate", std::to_string(megabits_per_second) + "mbit", "burst",
                        "64kb", "latency", "50ms"})) {
    return true;
  }
  *why_not = "needs tc and a kernel with tbf";
  return false;
}

bool Network::delay(std::uint32_t host, std::chrono::milliseconds delay,
                    std::chrono::milliseconds jitter, std::string* why_not) const {
  if (set_queues(host, {"netem", "delay", std::to_string(delay.count()) + "ms",
                        std::to_string(jitter.count()) + "ms"})) {
    return true;
  }
  *why_not = "needs tc and a kernel with netem";
  return false;
}

void Network::lift_limits(std::uint32_t host) const {
  set_queues(host, {"pfifo"});
}

bool Network::lose(std::uint32_t host, std::uint32_t per_mille, std::string* why_not) const {
  const std::string rules =
      "add table inet afd; delete table inet afd; add table inet afd; "
      "add chain inet afd arrivals { type filter hook input priority 0; }; "
      "add rule inet afd arrivals iifname eth0 numgen random mod 1000 < " +
      std::to_string(per_mille) + " drop";
  if (run(host, {"nft", rules}) == 0) {
    return true;
  }
  *why_not = "needs nft (Debian: nftables) and a kernel with it";
  return false;
}

}  // namespace afd::testing
