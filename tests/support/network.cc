#include "tests/support/network.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace afd::testing {
namespace {

/// Of a new network namespace, or -1. A child makes it, so that the test itself stays where it is.
int make_namespace() {
  int ends[2];
  int done[2];
  if (::pipe2(ends, O_CLOEXEC) != 0 || ::pipe2(done, O_CLOEXEC) != 0) {
    return -1;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(done[1]);
    const char made = ::unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    char c = 0;
    // Lives until it has been looked at.
    ::_exit(::write(ends[1], &made, 1) == 1 && ::read(done[0], &c, 1) == 0 ? 0 : 1);
  }
  ::close(ends[1]);
  ::close(done[0]);
  char made = 0;
  int fd = -1;
  if (::read(ends[0], &made, 1) == 1 && made == 'y') {
    fd = ::open(("/proc/" + std::to_string(child) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC);
  }
  ::close(done[1]);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return fd;
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

std::unique_ptr<Network> Network::create(std::uint32_t num_hosts, std::string* why_not) {
  std::vector<int> namespaces;
  for (std::uint32_t i = 0; i <= num_hosts; ++i) {
    const int fd = make_namespace();
    if (fd < 0) {
      *why_not = "needs the right to make network namespaces (root)";
      for (const int made : namespaces) {
        ::close(made);
      }
      return nullptr;
    }
    namespaces.push_back(fd);
  }
  std::unique_ptr<Network> network(new Network(std::move(namespaces)));
  return network->set_up(why_not) ? std::move(network) : nullptr;
}

Network::~Network() {
  for (const int fd : namespaces_) {
    ::close(fd);
  }
}

bool Network::set_up(std::string* why_not) const {
  const int the_switch = namespaces_.back();
  const auto num_hosts = static_cast<std::uint32_t>(namespaces_.size() - 1);
  const auto ip = [&](int where, std::vector<std::string> args) {
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
  if (!ip(the_switch, {"link", "add", "br0", "type", "bridge"}) ||
      !ip(the_switch, {"link", "set", "br0", "up"})) {
    return false;
  }
  for (std::uint32_t host = 0; host < num_hosts; ++host) {
    const int here = namespaces_[host];
    const std::string port = port_of(host);
    if (!ip(the_switch, {"link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                         path_of(here)}) ||
        !ip(the_switch, {"link", "set", port, "master", "br0", "up"}) ||
        !ip(here, {"link", "set", "lo", "up"}) || !ip(here, {"link", "set", "eth0", "up"}) ||
        !ip(here, {"addr", "add", address(host) + "/24", "dev", "eth0"}) ||
        !ip(here, {"addr", "add", address_v6(host) + "/64", "dev", "eth0", "nodad"})) {
      return false;
    }
  }
  return true;
}

std::string Network::path_of(int namespace_fd) const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(namespace_fd);
}

std::string Network::address(std::uint32_t host) const {
  return "10.77.0." + std::to_string(host + 1);
}

std::string Network::address_v6(std::uint32_t host) const {
  char text[16];
  std::snprintf(text, sizeof(text), "fd77::%x", host + 1);
  return text;
}

void Network::enter(std::uint32_t host) const {
  if (::setns(namespaces_[host], CLONE_NEWNET) != 0) {
    std::fprintf(stderr, "cannot enter host %u: %s\n", host, std::strerror(errno));
    ::_exit(126);
  }
}

std::vector<std::string> Network::command(std::uint32_t host, std::vector<std::string> args) const {
  args.insert(args.begin(), {"/usr/bin/nsenter", "--net=" + path_of(namespaces_[host])});
  return args;
}

int Network::run(std::uint32_t host, const std::vector<std::string>& args) const {
  return run_in(namespaces_[host], args);
}

int Network::run_in(int namespace_fd, const std::vector<std::string>& args) const {
  std::vector<std::string> copies = args;
  const std::vector<char*> argv = pointers_of(copies);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setns(namespace_fd, CLONE_NEWNET) == 0) {
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
      run_in(namespaces_.back(), {"ip", "link", "set", port_of(host), "down"});
      return;
    case Cut::kBlackHole:
      run_in(namespaces_.back(), {"ip", "link", "set", port_of(host), "nomaster"});
      return;
  }
}

void Network::mend(std::uint32_t host) const {
  run(host, {"ip", "link", "set", "eth0", "up"});
  run_in(namespaces_.back(), {"ip", "link", "set", port_of(host), "master", "br0", "up"});
}

}  // namespace afd::testing
