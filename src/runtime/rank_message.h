// What a rank tells its launcher, one line of JSON each, and the job that the launcher gives it.
//
// Both ends are the same program; the decoders are strict all the same, since a rank that goes
// wrong should be named and not believed.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <afd/result.h>

#include "runtime/job.h"
#include "runtime/request.h"
#include "runtime/run_stats.h"

namespace afd::runtime {

struct WaitingMessage {
  std::string missing;  ///< Ranks that have not arrived: "ffn rank 0".
};
struct ReadyMessage {};
struct TokensMessage {
  std::vector<TokenEvent> tokens;
};
struct FinishedMessage {
  Output output;
};
/// The rank has done its part: the last message of a rank that went well.
struct DoneMessage {
  RunStats stats;
};
/// The last message of a rank that failed.
struct FailedMessage {
  Error error;
};
using RankMessage = std::variant<WaitingMessage, ReadyMessage, TokensMessage, FinishedMessage,
                                 DoneMessage, FailedMessage>;

/// Without the newline.
std::string encode_rank_message(const RankMessage& message);
/// @return kProtocolMismatch  not a message: what is wrong with it
Result<RankMessage> decode_rank_message(std::string_view line);

/// What one launched rank gets.
struct RankJob {
  JobOptions options;
  std::vector<Request> requests;  ///< Its own; none on FFN ranks.
  friend bool operator==(const RankJob&, const RankJob&) = default;
};

std::string encode_rank_job(const RankJob& job);
/// @return kProtocolMismatch  not a job: what is wrong with it
Result<RankJob> decode_rank_job(std::string_view text);

}  // namespace afd::runtime
