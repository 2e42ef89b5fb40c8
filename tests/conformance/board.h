// Memory that all ranks of a test job see, be they threads or forked processes: a few words, a
// barrier and the wish to stop.
//
// Threads: all methods from any thread of any rank.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include <sys/types.h>

namespace afd::conformance {

inline constexpr std::size_t kRanksMax = 16;

/// Lives in an anonymous shared mapping: no pointer, no lock that a killed process could hold.
class Board {
 public:
  static constexpr std::size_t kWords = 64;
  using Clock = std::chrono::steady_clock;

  /// Stores a word and wakes every waiter.
  void post(std::size_t word, std::uint64_t value);
  std::uint64_t read(std::size_t word) const;
  /// Stores a word and wakes nobody: for those who spin on it.
  void store(std::size_t word, std::uint64_t value);
  void add(std::size_t word, std::uint64_t value);

  /// Waits until the word is at least `value`. @return false  on timeout or abort()
  bool await(std::size_t word, std::uint64_t value, Clock::time_point until);

  /// Announces that `rank` got to its barrier number `round`, and waits for the others of
  /// [0, num_ranks) that are not excused. @return false  on timeout or abort()
  bool barrier(std::size_t rank, std::uint32_t round, std::size_t num_ranks,
               Clock::time_point until);

  /// A rank that will not come to barriers any more: it was killed.
  void excuse(std::size_t rank);

  /// Ends every wait: some rank has failed.
  void abort();
  bool aborted() const;

  /// Kernel thread id and process id of each rank's body, 0 before it runs.
  std::array<std::atomic<std::int32_t>, kRanksMax> thread_ids{};
  std::array<std::atomic<std::int32_t>, kRanksMax> process_ids{};

 private:
  template <typename Condition>
  bool wait(Condition condition, Clock::time_point until);
  void change();

  /// Changes with everything else, so that one futex serves all waits.
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint32_t> aborted_{0};
  std::array<std::atomic<std::uint64_t>, kWords> words_{};
  std::array<std::atomic<std::uint32_t>, kRanksMax> arrivals_{};
};

/// True if the thread sleeps in the kernel now. False for one that does not exist.
bool thread_sleeps(pid_t process_id, pid_t thread_id);

}  // namespace afd::conformance
