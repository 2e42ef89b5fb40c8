// A TCP relay of the tests: a bad network between two ends that are good.
//
//     client ──> relay ──> target        bytes and ends are handed on, in order, later
//
// Threads: all methods from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

namespace afd::testing {

struct RelayOptions {
  std::string address = "127.0.0.1";  ///< Where it listens: numeric, IPv4.
  std::uint16_t port = 0;             ///< 0: a free one.
  std::string target_address = "127.0.0.1";
  std::uint16_t target_port = 0;
  std::chrono::microseconds delay{0};   ///< of all that passes, in each direction
  std::chrono::microseconds jitter{0};  ///< up to so much more, at random; the order stays
  /// Called on the relay's thread before it opens anything: to be on some host of a Network.
  std::function<void()> enter{};
};

class Relay {
 public:
  /// Listens when it returns. Ends the process where it cannot.
  explicit Relay(RelayOptions options);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::uint16_t port() const { return port_.load(); }

  // Each of the next four has taken effect when it returns.

  /// While stalled nothing passes, new connections neither, and nobody is told.
  void stall();
  void go_on();
  /// Ends all connections, as a reset (RST) on both sides; those that come later, at once.
  void cut();
  /// New connections pass again.
  void mend();

  /// Connections that reached the target by now.
  std::uint64_t num_connections() const { return num_connections_.load(); }
  std::uint64_t num_bytes() const { return num_bytes_.load(); }  ///< Handed on by now.

 private:
  class Loop;
  void wake() const;
  /// Lets the relay's thread see what was changed, and waits until it has.
  void apply();

  const RelayOptions options_;
  std::atomic<std::uint16_t> port_{0};
  std::atomic<bool> stalled_{false};
  std::atomic<bool> cut_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<std::uint64_t> num_connections_{0};
  std::atomic<std::uint64_t> num_bytes_{0};
  std::atomic<std::uint64_t> changes_{0};
  std::atomic<std::uint64_t> changes_seen_{0};
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace afd::testing
