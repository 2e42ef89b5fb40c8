// One rank of a job, in this process: its part of the model, its connector, its loop.
//
// Threads: create() and run() on one thread; the others from any.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include <afd/connector.h>
#include <afd/factory.h>
#include <afd/result.h>

#include "runtime/generation.h"
#include "runtime/job.h"

namespace afd::runtime {

struct RankId {
  Role role = Role::kAttention;
  std::uint32_t role_rank = 0;
  friend bool operator==(const RankId&, const RankId&) = default;
};
/// "attention rank 1".
std::string to_string(RankId id);
/// The error with the rank's name in front, unless its message names the rank already.
Error name_rank(Error error, RankId id);

/// Told on the thread in run(). Each may be empty.
struct RankEvents {
  std::function<void(std::string_view missing)> on_waiting;
  std::function<void(std::uint16_t port)> on_listening;  ///< FFN rank 0: the others may come.
  /// All ranks have met; what carries the rows to and from this rank's peers.
  std::function<void(const std::vector<HopPath>& paths)> on_ready;
  GenerationEvents generation;
};

class Rank {
 public:
  /// Loads the rank's part of the model and makes its connector; meets nobody yet.
  static Result<std::unique_ptr<Rank>> create(const JobOptions& options, RankId id,
                                              const ConnectorFactory& factory, RankEvents events);
  ~Rank();

  /// Meets the others, runs to the job's end and leaves in order.
  /// @param requests  this rank's, valid for the model; none on FFN ranks
  /// @param job_digest  digest_requests() of all that the attention ranks share out, where each was
  ///                  told by itself: compared before the first step. At most 64 KiB.
  /// @return kProtocolMismatch  another attention rank has another digest; and all that a step
  /// returns
  Result<RunStats> run(std::vector<Request> requests, std::string job_digest = {});

  /// Ends run() with kFailedPrecondition. Repeatable.
  void stop() noexcept;

  /// Ends the job in order: no attention rank takes on more requests, those under way are finished.
  /// An FFN rank serves on until the attention ranks have left. Returns at once; run() ends as it
  /// does at a job's end. Repeatable.
  /// @return false: the ranks have not met yet, so there is nothing to drain, only to stop()
  bool drain() noexcept;

 private:
  struct State;
  explicit Rank(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace afd::runtime
