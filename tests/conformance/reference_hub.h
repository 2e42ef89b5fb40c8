// The meeting place of the reference connector's ranks: everything that is shared among them.
//
// Mailboxes are plain memory. A sender fills one and then counts `published` up; the receiver waits
// for the count. Who waits spins for a moment and then sleeps on the one condition variable; who
// publishes takes the lock only if somebody sleeps.
//
// Threads: `mutex` guards what has no comment of its own.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <afd/connector.h>
#include <afd/factory.h>
#include <afd/topology.h>

namespace afd::conformance {

struct MailHeader {
  std::uint64_t step = 0;
  std::uint64_t order = 0;  ///< Number of this send among all of its sender.
  std::uint32_t layer_idx = 0;
  std::uint32_t num_rows = 0;
  bool router_logits = false;
  std::uint32_t router_logits_width = 0;
};

/// One (attention rank, FFN rank, stage, direction).
struct Mailbox {
  /// Stored with release by the sender after header and rows; loaded with acquire by the receiver.
  std::atomic<std::uint32_t> published{0};
  /// Stored by the receiver: transfers taken. Read only by a fault and by its sender.
  std::atomic<std::uint32_t> taken{0};
  MailHeader header;
  std::vector<std::byte> rows;
  std::vector<std::byte> logits;
  const std::byte* borrowed = nullptr;  ///< kR4LendsOutWhatItBorrowed
};

enum class Presence : std::uint8_t { kAbsent, kPresent, kLeft, kLost };

class Hub {
 public:
  Hub(RankCounts ranks, const TransferLimits& limits);

  Mailbox& mailbox(bool to_ffn, std::uint32_t attention_rank, std::uint32_t ffn_rank,
                   std::uint32_t stage_idx);
  /// Wakes whoever sleeps. Cheap while nobody does.
  void notify();
  std::string rank_name(std::uint32_t world_rank) const;
  std::uint32_t num_ranks() const { return counts.num_attention_ranks + counts.num_ffn_ranks; }

  const RankCounts counts;
  std::mutex mutex;
  std::condition_variable changed;
  /// Incremented before its waiter looks at its condition; a publisher looks at it after
  /// publishing.
  std::atomic<std::uint32_t> num_sleepers{0};
  /// By world rank, FFN ranks first. Atomic: spinning waiters read it.
  std::vector<std::atomic<Presence>> presence;
  std::atomic<std::int32_t> first_lost{-1};

  bool complete = false;                                    ///< Everybody has arrived once.
  std::optional<Error> failure;                             ///< The meeting failed for all.
  std::vector<std::pair<std::string, std::string>> values;  ///< Of the first to arrive.
  std::string first_name;
  std::atomic<std::uint64_t> tickets{0};  ///< Numbers all sends.

  /// Guards the two below. Taken inside `mutex`, never around it.
  std::mutex control_mutex;
  std::vector<std::deque<ControlPayload>> control;  ///< By FFN rank.
  /// By role and round: each rank's contribution.
  std::array<std::map<std::uint64_t, std::vector<std::optional<std::string>>>, 2> gathers;

 private:
  std::uint32_t num_stages_;
  std::unique_ptr<Mailbox[]> mailboxes_;
};

/// Where ranks meet: the hub of a port that is not complete yet, made by the first to come.
/// `forget` takes a hub off its port, so that the next meeting there is a new one.
std::shared_ptr<Hub> hub_of(std::uint16_t port, RankCounts counts, const TransferLimits& limits);
void forget(std::uint16_t port, const std::shared_ptr<Hub>& hub);

}  // namespace afd::conformance
