#include "conformance/reference_connector.h"

#include <algorithm>
#include <thread>

#include <fcntl.h>

#include "conformance/reference_rank.h"

namespace afd::conformance {
namespace reference {

// --- Set-up ----------------------------------------------------------------------------------

ReferenceConnector::ReferenceConnector(ConnectorParams params, Fault fault,
                                       Capabilities capabilities)
    : params_(std::move(params)),
      limits_(params_.limits),
      fault_(fault),
      capabilities_(std::move(capabilities)),
      mapping_(*build_rank_mapping(params_.config.num_attention_ranks, params_.config.num_ffn_ranks,
                                   params_.config.role, params_.role_rank)) {
  const RankCounts counts = mapping_.counts;
  if (is_ffn() && counts.num_attention_ranks < counts.num_ffn_ranks) {
    const std::vector<std::uint32_t> siblings =
        build_rank_mapping(counts.num_attention_ranks, counts.num_ffn_ranks, Role::kAttention,
                           mapping_.peers.front())
            ->peers;
    num_siblings_ = static_cast<std::uint32_t>(siblings.size());
    sibling_idx_ = static_cast<std::uint32_t>(
        std::find(siblings.begin(), siblings.end(), mapping_.role_rank) - siblings.begin());
  }
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    peer_world_ranks_.push_back(world_rank_of(peer));
  }
  const std::uint32_t first = is_ffn() ? 0 : counts.num_ffn_ranks;
  const std::uint32_t size = is_ffn() ? counts.num_ffn_ranks : counts.num_attention_ranks;
  for (std::uint32_t rank = first; rank < first + size; ++rank) {
    role_world_ranks_.push_back(rank);
  }
}

std::vector<std::pair<std::string, std::string>> ReferenceConnector::values() const {
  std::vector<std::pair<std::string, std::string>> all = {
      {"hidden_size", std::to_string(limits_.hidden_size)},
      {"num_layers", std::to_string(limits_.num_layers)},
      {"num_experts", std::to_string(limits_.num_experts)},
      {"max_num_tokens", std::to_string(limits_.max_num_tokens)},
      {"num_stages", std::to_string(limits_.num_stages)},
      {"dtype", to_string(limits_.dtype)},
      {"compute_gate_on_attention", params_.config.compute_gate_on_attention ? "true" : "false"}};
  all.insert(all.end(), params_.must_match.begin(), params_.must_match.end());
  return all;
}

void ReferenceConnector::prepare_stages() {
  const std::uint64_t rows = std::uint64_t{limits_.max_num_tokens} * (is_ffn() ? num_peers() : 1);
  for (std::uint32_t stage_idx = 0; stage_idx < limits_.num_stages; ++stage_idx) {
    Stage& stage = stages_[stage_idx];
    stage = {};
    stage.received = Tensor({rows, limits_.hidden_size}, limits_.dtype);
    stage.in_place = Tensor({rows, limits_.hidden_size}, limits_.dtype);
    stage.logits = Tensor({rows, limits_.num_experts}, kFloat32);
  }
  step_ = 0;
  round_ = 0;
}

Result<void> ReferenceConnector::init_afd_connector(Deadline deadline) {
  if (is_initialized()) {
    return {};
  }
  if (fault_ == Fault::kR8InitialisesOnce && was_initialized_) {
    return afd::fail(ErrorCode::kFailedPrecondition, "closed");
  }
  const Call call(*this);  // close() waits for this
  std::shared_ptr<Hub> hub = hub_of(params_.config.port, mapping_.counts, limits_);
  {
    std::scoped_lock lock(hub_mutex_);
    stopping_.store(false);
    hub_ = hub;
  }
  prepare_stages();
  Result<void> met = meet(hub, deadline);
  std::scoped_lock lock(hub_mutex_);
  if (met && stopping_.load()) {
    met = afd::fail(ErrorCode::kFailedPrecondition, "closed during init");
  }
  if (!met) {
    hub_.reset();
    return met;
  }
  was_initialized_ = true;
  if (fault_ == Fault::kR8LeavesADescriptor) {
    (void)open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  if (fault_ == Fault::kR8LeavesAThread) {
    static std::mutex left_mutex;
    static std::vector<std::jthread> left;
    std::scoped_lock left_lock(left_mutex);
    left.emplace_back([](std::stop_token stop) {
      while (!stop.stop_requested()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
  }
  quick_.store(hub.get());
  return met;
}

std::string ReferenceConnector::missing(const Hub& hub) const {
  std::string names;
  for (std::uint32_t rank = 0; rank < hub.num_ranks(); ++rank) {
    if (hub.presence[rank].load() == Presence::kAbsent) {
      names += (names.empty() ? "" : ", ") + hub.rank_name(rank);
    }
  }
  return names;
}

Result<void> ReferenceConnector::meet(std::shared_ptr<Hub> hub, Deadline deadline) {
  const std::uint32_t self = mapping_.world_rank;
  std::unique_lock lock(hub->mutex);
  if (hub->presence[self].load() != Presence::kAbsent) {
    return afd::fail(ErrorCode::kInvalidArgument, hub->rank_name(self) + " is already present");
  }
  hub->presence[self].store(Presence::kPresent);
  if (hub->values.empty()) {
    hub->values = values();
    hub->first_name = hub->rank_name(self);
  }
  const auto mine = values();
  for (std::size_t i = 0; i < mine.size() && fault_ != Fault::kR1ComparesNothingInInit; ++i) {
    if (!hub->failure && i < hub->values.size() && mine[i] != hub->values[i]) {
      hub->failure =
          Error{ErrorCode::kProtocolMismatch, mine[i].first + " differs: " + hub->first_name +
                                                  " has " + hub->values[i].second + ", " +
                                                  hub->rank_name(self) + " has " + mine[i].second};
    }
  }
  if (missing(*hub).empty() && !hub->failure) {
    hub->complete = true;
  }
  if (hub->complete || hub->failure) {
    forget(params_.config.port, hub);
  }
  hub->changed.notify_all();

  Clock::time_point next_word = Clock::now() + std::chrono::seconds(1);
  for (;;) {
    if (hub->complete) {
      return {};
    }
    if (hub->failure) {
      return afd::fail(*hub->failure);
    }
    const bool stopped = stopping_.load() && fault_ != Fault::kR8WakesNobody;
    const std::int32_t lost = fault_ == Fault::kR7NoticesNoDeath ? -1 : hub->first_lost.load();
    if (stopped || lost >= 0 || deadline.expired()) {
      const std::string who = missing(*hub);
      hub->presence[self].store(Presence::kAbsent);
      if (stopped) {
        return afd::fail(ErrorCode::kFailedPrecondition, "closed");
      }
      if (lost >= 0) {
        return afd::fail(why(*hub, {}, ""));
      }
      return afd::fail(ErrorCode::kDeadlineExceeded,
                       fault_ == Fault::kR6NamesNobody ? "timed out" : who + " did not arrive");
    }
    if (params_.on_waiting && Clock::now() >= next_word) {
      next_word += std::chrono::seconds(1);
      params_.on_waiting(missing(*hub));
    }
    hub->changed.wait_until(lock,
                            deadline.is_never() ? next_word : std::min(next_word, deadline.when()));
  }
}

void ReferenceConnector::leave(Presence how) noexcept {
  std::shared_ptr<Hub> hub;
  {
    std::scoped_lock lock(hub_mutex_);
    stopping_.store(true);
    hub = hub_;
    quick_.store(nullptr);
  }
  if (hub == nullptr) {
    return;
  }
  {
    std::scoped_lock lock(hub->mutex);
    std::atomic<Presence>& presence = hub->presence[mapping_.world_rank];
    if (how == Presence::kLost) {
      std::int32_t none = -1;
      hub->first_lost.compare_exchange_strong(none, static_cast<std::int32_t>(mapping_.world_rank));
      presence.store(how);
    } else if (presence.load() == Presence::kPresent) {
      presence.store(hub->complete ? how : Presence::kAbsent);
    }
    hub->changed.notify_all();
  }
  while (calls_.load() != 0) {
    std::this_thread::yield();
  }
  std::scoped_lock lock(hub_mutex_);
  if (hub_ == hub) {
    hub_.reset();
  }
}

// --- Waiting ---------------------------------------------------------------------------------

bool ReferenceConnector::interrupted(const Hub& hub, std::span<const std::uint32_t> needed) const {
  if (stopping_.load() && fault_ != Fault::kR8WakesNobody) {
    return true;
  }
  if (hub.first_lost.load() >= 0 && fault_ != Fault::kR7NoticesNoDeath) {
    return true;
  }
  for (std::uint32_t rank : needed) {
    if (hub.presence[rank].load() == Presence::kLeft) {
      return true;
    }
  }
  return false;
}

Error ReferenceConnector::why(const Hub& hub, std::span<const std::uint32_t> needed,
                              const std::string& awaited) const {
  if (stopping_.load()) {
    return {ErrorCode::kFailedPrecondition, "closed"};
  }
  const std::int32_t lost = hub.first_lost.load();
  if (lost >= 0 && fault_ != Fault::kR7NoticesNoDeath) {
    return {ErrorCode::kPeerLost, fault_ == Fault::kR7NamesNobody
                                      ? "a peer was lost"
                                      : hub.rank_name(static_cast<std::uint32_t>(lost)) + " lost"};
  }
  for (std::uint32_t rank : needed) {
    if (hub.presence[rank].load() == Presence::kLeft) {
      return {ErrorCode::kPeerLost, hub.rank_name(rank) + " has left"};
    }
  }
  return {ErrorCode::kDeadlineExceeded,
          fault_ == Fault::kR6NamesNobody ? "timed out" : "awaited " + awaited};
}

}  // namespace reference

std::string_view to_string(Fault fault) {
  constexpr std::string_view kNames[] = {"None",
                                         "R1TakesWhatComes",
                                         "R1ComparesNothingInInit",
                                         "R1KeepsTheFirstCallsView",
                                         "R2ServesStagesInSendOrder",
                                         "R2ConcatenatesInArrivalOrder",
                                         "R3WaitsForTheReceiver",
                                         "R4WritesIntoWhatItBorrowed",
                                         "R4LendsOutWhatItBorrowed",
                                         "R5LandsAllStagesInOnePlace",
                                         "R5ClearsViewsWithTheStep",
                                         "R6NamesNobody",
                                         "R6ForgetsWhatHadArrived",
                                         "R7NoticesNoDeath",
                                         "R7NamesNobody",
                                         "R8WakesNobody",
                                         "R8LeavesADescriptor",
                                         "R8LeavesAThread",
                                         "R8InitialisesOnce",
                                         "R9ChecksLogitsAfterSending",
                                         "R9TakesAnyShares",
                                         "R10IgnoresRoles",
                                         "R10OverwritesAnOpenTransfer",
                                         "R11Allocates",
                                         "R11Locks",
                                         "R11LocksShared",
                                         "R11MakesASystemCall",
                                         "R11TouchesANewPage",
                                         "R11YieldsWhileItSpins",
                                         "R12SpinsForEver"};
  static_assert(sizeof kNames / sizeof *kNames ==
                static_cast<std::size_t>(Fault::kR12SpinsForEver) + 1);
  return kNames[static_cast<std::size_t>(fault)];
}

ConnectorUnderTest reference_connector(Fault fault) {
  return reference_connector(fault, {.devices = {DeviceType::kCpu},
                                     .dtypes = {kFloat32, kBFloat16, kFloat16, kInt8},
                                     .num_stages_max = reference::kStagesMax,
                                     .in_place_buffers = true,
                                     .progressive_rows = false,
                                     .router_logits = true,
                                     .any_ratio = true});
}

ConnectorUnderTest reference_connector(Fault fault, const Capabilities& capabilities) {
  ConnectorUnderTest connector;
  connector.name = "Reference";
  connector.connector_name = "ReferenceConnector";
  connector.capabilities = capabilities;
  connector.create = [fault, capabilities](
                         const ConnectorParams& params) -> Result<std::unique_ptr<ConnectorBase>> {
    return std::make_unique<reference::ReferenceConnector>(params, fault, capabilities);
  };
  connector.abandon = [](ConnectorBase& connector_base) {
    static_cast<reference::ReferenceConnector&>(connector_base).abandon();
  };
  if (fault != Fault::kNone) {
    connector.patience = std::chrono::milliseconds(1500);
  }
  return connector;
}

}  // namespace afd::conformance
