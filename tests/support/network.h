// Hosts on this machine, for tests: network namespaces, each with a cable to one switch.
//
//     host 0 (10.77.0.1) ──┐
//     host 1 (10.77.0.2) ──┤ switch
//     host 2 (10.77.0.3) ──┘
//
// The namespaces have no names: they end with the last process or descriptor that holds them, also
// when the test is killed. Needs CAP_SYS_ADMIN, CAP_NET_ADMIN and the programs ip, nsenter and
// env; a bad network tc and nft.
//
// Threads: one at a time, apart from enter().
#pragma once

#include <chrono>
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

  // A bad network. Each says in *why_not what is missing here where it returns false; the kernel's
  // words are on stderr.

  /// What the host sends and what it is sent, each at this rate: tbf at both ends of its cable.
  bool limit_rate(std::uint32_t host, std::uint32_t megabits_per_second,
                  std::string* why_not) const;
  /// What comes to the host, and what leaves it, later, by up to `jitter` more: netem, in the place
  /// of limit_rate().
  bool delay(std::uint32_t host, std::chrono::milliseconds delay, std::chrono::milliseconds jitter,
             std::string* why_not) const;
  /// Undoes limit_rate() and delay().
  void lift_limits(std::uint32_t host) const;
  /// Of 1000 packets that come to the host so many are dropped, at random: nftables. 0 undoes it.
  bool lose(std::uint32_t host, std::uint32_t per_mille, std::string* why_not) const;

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
  bool set_queues(std::uint32_t host, const std::vector<std::string>& discipline) const;
  int run_in(const Place& place, const std::vector<std::string>& args) const;

  std::vector<Place> hosts_;
  Place switch_;
};

}  // namespace afd::testing
