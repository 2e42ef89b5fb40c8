// What a process holds: descriptors, threads, shared memory, processor time. R8 and R12 look at it.
#pragma once

#include <chrono>
#include <cstdint>
#include <set>
#include <string>

namespace afd::conformance {

/// "3 -> socket:[123]", one for each open descriptor of this process.
std::set<std::string> open_descriptors();
std::size_t num_threads();
/// Names under /dev/shm.
std::set<std::string> shared_memory_names();
/// Shared mappings of this process: the file each one stands for ("/dev/shm/x (deleted)",
/// "/memfd:y (deleted)"), anonymous ones excluded.
std::multiset<std::string> shared_mappings();
/// Whether somebody listens there.
/// @param address  numeric, IPv4
bool is_listening(const std::string& address, std::uint16_t port);
/// What `after` has that `before` has not, as text; empty if nothing.
template <typename Set>
std::string added(const Set& before, const Set& after);

/// Processor time of this thread, user and system.
std::chrono::nanoseconds thread_cpu_time();
/// Of this process, all threads.
std::chrono::nanoseconds process_cpu_time();

template <typename Set>
std::string added(const Set& before, const Set& after) {
  std::string text;
  for (const std::string& item : after) {
    if (after.count(item) > before.count(item)) {
      text += (text.empty() ? "" : ", ") + item;
    }
  }
  return text;
}

}  // namespace afd::conformance
