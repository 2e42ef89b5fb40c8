// Hosts on this machine, for tests: network namespaces, each with a cable to one switch.
//
//     host 0 (10.77.0.1) ──┐
//     host 1 (10.77.0.2) ──┤ switch
//     host 2 (10.77.0.3) ──┘
//
// The namespaces have no names: they end with the last process or descriptor that holds them, also
// when the test is killed. Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and the programs ip, nsenter and env.
//
// Threads: one at a time, apart from enter().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace afd::testing {

struct NetworkOptions {
  /// Each host has a /dev/shm of its own, as hosts have: ranks on two of them share no memory.
  /// Without it all hosts see this machine's.
  bool private_shared_memory = false;
};

class Network {
 public:
  /// @param num_hosts  1 to 200
  /// @param why_not    what is missing here, where the result is null: for GTEST_SKIP()
  static std::unique_ptr<Network> create(std::uint32_t num_hosts, std::string* why_not,
                                         NetworkOptions options = {});
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  std::string address(std::uint32_t host) const;     ///< "10.77.0.1"
  std::string address_v6(std::uint32_t host) const;  ///< "fd77::1"

  /// Moves the calling thread, and what it starts from now on, to the host. The working directory
  /// stays. Ends the process where that fails: a test must not go on elsewhere.
  void enter(std::uint32_t host) const;
  /// The arguments with which a program (args[0] is its path) starts on the host, as one process.
  std::vector<std::string> command(std::uint32_t host, std::vector<std::string> args) const;
  /// Runs a program on the host (found on the PATH) and waits. @return its exit status
  int run(std::uint32_t host, const std::vector<std::string>& args) const;

  enum class Cut {
    kLinkDown,   ///< The host's own interface goes down.
    kNoCarrier,  ///< The cable is pulled out of the switch: the host sees that.
    kBlackHole,  ///< The switch drops everything: nobody sees anything.
  };
  void cut(std::uint32_t host, Cut how) const;
  /// Undoes every cut of the host.
  void mend(std::uint32_t host) const;

 private:
  /// Descriptors; -1 is what the test itself has.
  struct Place {
    int network = -1;
    int mounts = -1;
  };

  Network() = default;
  /// @return whether it could be made
  static bool make_place(const NetworkOptions& options, Place* place);
  static bool move_to(const Place& place);
  bool set_up(std::string* why_not) const;
  int run_in(const Place& place, const std::vector<std::string>& args) const;

  std::vector<Place> hosts_;
  Place switch_;
};

}  // namespace afd::testing
