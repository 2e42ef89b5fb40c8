// What the attention ranks agree on before each step: everybody's token count, whether all are
// done, and from that, the same on every rank, the number of stages and the control payload.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <afd/connector.h>
#include <afd/deadline.h>
#include <afd/metadata.h>
#include <afd/result.h>

namespace afd::runtime {

/// One attention rank's word for the next step.
struct StepVote {
  std::uint32_t num_tokens = 0;  ///< Rows that it has; 0: idle.
  bool done = false;             ///< It will never have any again.
  bool drains = false;           ///< It was told to stop: nobody takes on more requests.
  friend bool operator==(const StepVote&, const StepVote&) = default;
};

/// 8 bytes: magic, version, flags, token count.
std::string encode_step_vote(StepVote vote);
/// @return kProtocolMismatch  not a vote
Result<StepVote> decode_step_vote(std::string_view bytes);

/// What follows from the votes of all attention ranks.
struct StepPlan {
  bool all_done = false;  ///< No step follows.
  bool drains = false;    ///< Somebody does: from the next step on no rank takes on requests.
  /// clamp(largest token count, 1, num_stages_max)
  std::uint32_t num_stages = 1;
  std::vector<std::uint32_t> num_tokens;  ///< By attention rank.

  /// Rows that `attention_rank` transfers in the stage: its own, or 1 dummy.
  std::uint32_t transfer_rows(std::uint32_t attention_rank, std::uint32_t stage_idx) const;
};
StepPlan plan_from_votes(std::span<const StepVote> votes, std::uint32_t num_stages_max);

/// The step's control payload: for each stage, each attention rank's own rows (0 where it is idle).
ControlPayload make_control_payload(const StepPlan& plan);

/// Exchanges votes. `group` may be null where there is one attention rank.
Result<std::vector<StepVote>> exchange_votes(RoleGroup* group, std::uint32_t num_attention_ranks,
                                             StepVote mine, Deadline deadline);

}  // namespace afd::runtime
