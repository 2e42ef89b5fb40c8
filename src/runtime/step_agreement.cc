#include "runtime/step_agreement.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/scheduler.h"

namespace afd::runtime {
namespace {

constexpr std::size_t kVoteBytes = 8;
constexpr char kMagic0 = 'S';
constexpr char kMagic1 = 'V';
constexpr char kVersion = 2;
constexpr unsigned kDoneFlag = 1;
constexpr unsigned kDrainsFlag = 2;

}  // namespace

std::string encode_step_vote(StepVote vote) {
  const unsigned flags = (vote.done ? kDoneFlag : 0) | (vote.drains ? kDrainsFlag : 0);
  std::string bytes = {kMagic0, kMagic1, kVersion, static_cast<char>(flags)};
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(vote.num_tokens >> shift & 0xff);
  }
  return bytes;
}

Result<StepVote> decode_step_vote(std::string_view bytes) {
  if (bytes.size() != kVoteBytes) {
    return fail(ErrorCode::kProtocolMismatch,
                "a step vote has " + std::to_string(bytes.size()) + " bytes, expected 8");
  }
  const unsigned flags = static_cast<unsigned char>(bytes[3]);
  if (bytes[0] != kMagic0 || bytes[1] != kMagic1 || bytes[2] != kVersion ||
      (flags & ~(kDoneFlag | kDrainsFlag)) != 0) {
    return fail(ErrorCode::kProtocolMismatch, "a step vote of another version or kind");
  }
  StepVote vote{.done = (flags & kDoneFlag) != 0, .drains = (flags & kDrainsFlag) != 0};
  for (std::size_t idx = 0; idx < 4; ++idx) {
    vote.num_tokens |= std::uint32_t{static_cast<unsigned char>(bytes[4 + idx])} << (8 * idx);
  }
  return vote;
}

std::uint32_t StepPlan::transfer_rows(std::uint32_t attention_rank, std::uint32_t stage_idx) const {
  return std::max(1u, stage_rows(num_tokens[attention_rank], stage_idx, num_stages).num_rows);
}

StepPlan plan_from_votes(std::span<const StepVote> votes, std::uint32_t num_stages_max) {
  StepPlan plan{.all_done = true};
  std::uint32_t largest = 0;
  for (const StepVote& vote : votes) {
    plan.all_done = plan.all_done && vote.done;
    plan.drains = plan.drains || vote.drains;
    largest = std::max(largest, vote.num_tokens);
    plan.num_tokens.push_back(vote.num_tokens);
  }
  plan.num_stages = std::clamp(largest, 1u, num_stages_max);
  return plan;
}

ControlPayload make_control_payload(const StepPlan& plan) {
  ControlPayload payload;
  for (std::uint32_t stage_idx = 0; stage_idx < plan.num_stages; ++stage_idx) {
    DpMetadata& stage = payload.dp_metadata_list[stage_idx];
    for (const std::uint32_t num_tokens : plan.num_tokens) {
      const RowRange range = stage_rows(num_tokens, stage_idx, plan.num_stages);
      stage.num_tokens_across_dp.push_back(static_cast<std::int32_t>(range.num_rows));
    }
    stage.max_tokens_across_dp =
        *std::max_element(stage.num_tokens_across_dp.begin(), stage.num_tokens_across_dp.end());
  }
  return payload;
}

Result<std::vector<StepVote>> exchange_votes(RoleGroup* group, std::uint32_t num_attention_ranks,
                                             StepVote mine, Deadline deadline) {
  if (num_attention_ranks == 1) {
    return std::vector<StepVote>{mine};
  }
  if (group == nullptr) {
    return fail(ErrorCode::kUnavailable, "this connector has no role group, so " +
                                             std::to_string(num_attention_ranks) +
                                             " attention ranks cannot agree on a step");
  }
  Result<std::vector<std::string>> gathered = group->all_gather(encode_step_vote(mine), deadline);
  if (!gathered) {
    return fail(std::move(gathered).error());
  }
  std::vector<StepVote> votes;
  for (std::uint32_t rank = 0; rank < gathered->size(); ++rank) {
    Result<StepVote> vote = decode_step_vote((*gathered)[rank]);
    if (!vote) {
      return fail(std::move(vote).error().with_context("attention rank " + std::to_string(rank)));
    }
    votes.push_back(*vote);
  }
  if (votes.size() != num_attention_ranks) {
    return fail(ErrorCode::kProtocolMismatch, std::to_string(votes.size()) +
                                                  " attention ranks voted, expected " +
                                                  std::to_string(num_attention_ranks));
  }
  return votes;
}

}  // namespace afd::runtime
