// The control plane and the role group: queues and rounds under one lock, off the data path.
#include <cstring>
#include <utility>

#include "conformance/reference_rank.h"

namespace afd::conformance::reference {

Result<void> ReferenceConnector::update_state_from_dp_metadata(const ControlPayload& payload) {
  const Call call(*this);
  if (call.hub() == nullptr) {
    return afd::fail(ErrorCode::kFailedPrecondition, "not initialised");
  }
  for (std::size_t stage_idx = 0; stage_idx < stages_.size(); ++stage_idx) {
    if (stages_[stage_idx].open) {
      return afd::fail(ErrorCode::kFailedPrecondition,
                       "stage " + std::to_string(stage_idx) + " of the last step is open");
    }
  }
  for (const auto& [stage_idx, counts] : payload.dp_metadata_list) {
    if (stage_idx < 0 || stage_idx >= std::int64_t{limits_.num_stages}) {
      return afd::fail(ErrorCode::kInvalidArgument,
                       "stage " + std::to_string(stage_idx) + " is beyond the limit");
    }
    for (std::int32_t count : counts.num_tokens_across_dp) {
      if (count > std::int64_t{limits_.max_num_tokens}) {
        return afd::fail(ErrorCode::kInvalidArgument,
                         std::to_string(count) + " tokens are beyond the limit");
      }
    }
  }
  for (Stage& stage : stages_) {
    stage.active = false;
    if (fault_ == Fault::kR5ClearsViewsWithTheStep && stage.received.view().data != nullptr) {
      std::memset(stage.received.view().data, 0,
                  static_cast<std::size_t>(stage.received.view().size_bytes()));
    }
  }
  for (const auto& [stage_idx, counts] : payload.dp_metadata_list) {
    lay_out(stages_[static_cast<std::size_t>(stage_idx)], counts.num_tokens_across_dp);
  }
  ++step_;
  return {};
}

Result<void> ReferenceConnector::send_dp_metadata_list(const ControlPayload& payload,
                                                       Deadline deadline) {
  constexpr std::size_t kQueueMax = 16;
  const Call call(*this);
  if (call.hub() == nullptr) {
    return afd::fail(ErrorCode::kFailedPrecondition, "not initialised");
  }
  Hub& hub = *call.hub();
  for (std::uint32_t ffn_rank : mapping_.dp_metadata_destinations) {
    const std::span needed(&ffn_rank, 1);
    const bool room = wait(
        hub,
        [&] {
          std::scoped_lock lock(hub.control_mutex);
          return hub.control[ffn_rank].size() < kQueueMax;
        },
        needed, deadline);
    if (!room || interrupted(hub, needed)) {
      return afd::fail(why(hub, needed, hub.rank_name(ffn_rank) + " to take a control payload"));
    }
    {
      std::scoped_lock lock(hub.control_mutex);
      hub.control[ffn_rank].push_back(payload);
    }
    hub.notify();
  }
  return {};
}

Result<std::optional<ControlPayload>> ReferenceConnector::recv_dp_metadata_list(Deadline deadline) {
  const Call call(*this);
  if (std::optional<Error> error = check_call(call, Role::kFfn, "recv_dp_metadata_list")) {
    return afd::fail(*std::move(error));
  }
  Hub& hub = *call.hub();
  const std::uint32_t source = mapping_.counts.num_ffn_ranks + mapping_.dp_metadata_source;
  const std::span needed(&source, 1);
  auto& queue = hub.control[mapping_.role_rank];
  const bool there = wait(
      hub,
      [&] {
        std::scoped_lock lock(hub.control_mutex);
        return !queue.empty();
      },
      needed, deadline);
  if (there) {
    std::optional<ControlPayload> payload;
    {
      std::scoped_lock lock(hub.control_mutex);
      payload = std::move(queue.front());
      queue.pop_front();
    }
    hub.notify();
    return payload;
  }
  if (!stopping_.load() && hub.first_lost.load() < 0 &&
      hub.presence[source].load() == Presence::kLeft) {
    return std::optional<ControlPayload>();
  }
  return afd::fail(why(hub, needed, hub.rank_name(source) + " for a control payload"));
}

Result<std::vector<std::string>> ReferenceConnector::all_gather(std::string_view mine,
                                                                Deadline deadline) {
  const Call call(*this);
  if (call.hub() == nullptr) {
    return afd::fail(ErrorCode::kFailedPrecondition, "not initialised");
  }
  Hub& hub = *call.hub();
  auto& rounds = hub.gathers[is_ffn() ? 1 : 0];
  {
    std::scoped_lock lock(hub.control_mutex);
    auto& parts = rounds[round_];
    parts.resize(role_world_ranks_.size());
    parts[mapping_.role_rank] = std::string(mine);
  }
  hub.notify();
  std::string missing_names;
  const bool whole = wait(
      hub,
      [&] {
        std::scoped_lock lock(hub.control_mutex);
        missing_names.clear();
        const auto& parts = rounds[round_];
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
          if (!parts[rank]) {
            missing_names += hub.rank_name(role_world_ranks_[rank]) + " ";
          }
        }
        return missing_names.empty();
      },
      role_world_ranks_, deadline);
  if (!whole) {
    return afd::fail(why(hub, role_world_ranks_, missing_names + "in a gather"));
  }
  std::vector<std::string> all;
  std::scoped_lock lock(hub.control_mutex);
  for (const std::optional<std::string>& part : rounds[round_]) {
    all.push_back(*part);
  }
  ++round_;
  return all;
}

}  // namespace afd::conformance::reference
