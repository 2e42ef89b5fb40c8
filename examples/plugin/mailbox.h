// The "device" of this example: memory and signals that two threads of one process share. A vendor
// puts the driver's calls here: register memory, write to the peer, raise a signal, wait for one.
//
//   meet()                         both ranks, in any order; returns the job's mailbox
//   landing(direction, stage)      where rows are written
//   publish(direction, stage, h)   signal: the rows and the header are there
//   wait(condition, deadline)      spins, yields, sleeps
//
// Threads: meet() once a rank; then everything from any thread. A slot is written by one rank and
// read by the other, in turns that the contract's order (send, receive, send, ...) sets.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <afd/config.h>
#include <afd/deadline.h>
#include <afd/metadata.h>
#include <afd/result.h>

namespace mailbox {

enum class Direction : std::uint8_t { kToFfn = 0, kToAttention = 1 };

/// What a transfer says of itself (R1).
struct Header {
  std::uint64_t step = 0;
  std::uint32_t layer_idx = 0;
  std::uint32_t num_rows = 0;
  std::uint32_t row_elements = 0;
  afd::DType dtype;

  friend bool operator==(const Header&, const Header&) = default;
};

/// Landing memory and signal of one stage and direction.
struct Slot {
  std::vector<std::byte> rows;
  Header header;
  /// Transfers published since the job began. Stored after rows and header, loaded before them.
  std::atomic<std::uint32_t> published{0};
};

/// "attention rank 0", "ffn rank 0".
std::string rank_name(afd::Role role);
afd::Role other(afd::Role role);

class Mailbox {
 public:
  struct MeetOptions {
    std::string address;  ///< Ranks with equal addresses belong to one job.
    afd::Role role = afd::Role::kAttention;
    std::uint32_t num_stages = 1;
    std::uint64_t stage_bytes = 0;
    /// Compared with the other rank's, value by value.
    std::vector<std::pair<std::string, std::string>> must_match;
    std::function<void(std::string_view missing)> on_waiting;
    const std::atomic<bool>* stop = nullptr;  ///< Set, then wake_meetings(): ends the meeting.
  };

  /// @return kDeadlineExceeded, kProtocolMismatch, kInvalidArgument (this rank is already there),
  ///         kFailedPrecondition (stopped)
  static afd::Result<std::shared_ptr<Mailbox>> meet(const MeetOptions& options,
                                                    afd::Deadline deadline);
  static void wake_meetings();

  Slot& slot(Direction direction, std::uint32_t stage_idx) {
    return slots_[static_cast<std::size_t>(direction)][stage_idx];
  }
  void publish(Slot& slot);

  /// The control queue is bounded. Returns false when full.
  bool try_push_control(const afd::ControlPayload& payload);
  bool has_control() const { return num_control_.load() != 0; }
  afd::ControlPayload pop_control();

  /// Tells the other rank that this one is gone.
  void leave(afd::Role role);
  bool has_left(afd::Role role) const { return left_[static_cast<std::size_t>(role)].load(); }

  /// Waits until `holds()`; returns whether it does. Every change of the mailbox checks it again.
  template <typename Holds>
  bool wait(Holds holds, afd::Deadline deadline) {
    // A time, not a count: how many looks a peer's answer takes differs tenfold between processors.
    const auto spun = std::chrono::steady_clock::now() + kSpin;
    do {
      for (int look = 0; look < kLooksPerClock; ++look) {
        if (holds()) {
          return true;
        }
      }
    } while (std::chrono::steady_clock::now() < spun);
    for (int round = 0; round < kYields; ++round) {
      std::this_thread::yield();
      if (holds()) {
        return true;
      }
    }
    // Pairs with wake(): either it sees the sleeper, or the sleeper sees the change.
    num_sleepers_.fetch_add(1);
    std::unique_lock lock(mutex_);
    bool held = holds();
    while (!held) {
      if (deadline.is_never()) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline.when()) == std::cv_status::timeout) {
        held = holds();
        break;
      }
      held = holds();
    }
    num_sleepers_.fetch_sub(1);
    return held;
  }
  /// Makes every wait() look again.
  void wake();

 private:
  static constexpr std::chrono::microseconds kSpin{20};
  static constexpr int kLooksPerClock = 32;
  static constexpr int kYields = 50;
  static constexpr std::size_t kControlMax = 16;

  struct Meetings;
  static Meetings& meetings();

  std::vector<std::pair<std::string, std::string>> must_match_;  ///< Of the first to come.
  std::array<bool, 2> present_{};                                ///< Guarded by the meetings.
  bool complete_ = false;                                        ///< The same.
  std::string mismatch_;                                         ///< The same.

  std::array<std::vector<Slot>, 2> slots_;
  std::array<std::atomic<bool>, 2> left_{};
  std::deque<afd::ControlPayload> control_;  ///< Guarded by mutex_.
  std::atomic<std::size_t> num_control_{0};
  std::atomic<int> num_sleepers_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace mailbox
