#include "session/wording.h"

#include <algorithm>
#include <chrono>

#include "session/address.h"
#include "session/session.h"

namespace afd::session {

using std::chrono::milliseconds;

std::string rank_name(std::uint32_t world_rank, RankCounts counts) {
  const bool is_ffn = world_rank < counts.num_ffn_ranks;
  return std::string(to_string(is_ffn ? Role::kFfn : Role::kAttention)) + " rank " +
         std::to_string(is_ffn ? world_rank : world_rank - counts.num_ffn_ranks);
}

std::string rank_names(const std::vector<std::uint32_t>& world_ranks, RankCounts counts) {
  std::string names;
  for (std::uint32_t rank : world_ranks) {
    names += (names.empty() ? "" : ", ") + rank_name(rank, counts);
  }
  return names;
}

std::string duration_text(Deadline::Clock::duration duration) {
  const auto ms = std::max<std::int64_t>(std::chrono::round<milliseconds>(duration).count(), 0);
  if (ms < 100) {
    return std::to_string(ms) + " ms";
  }
  const auto tens = (ms + 5) / 10;
  if (tens < 95) {
    return std::to_string(tens) + "0 ms";
  }
  const auto tenths = (ms + 50) / 100;
  const std::string fraction = tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10);
  return std::to_string(tenths / 10) + fraction + " s";
}

std::string rank_at_host(std::uint32_t world_rank, RankCounts counts,
                         const std::vector<std::string>& addresses) {
  const bool elsewhere = !addresses.empty() && !is_loopback(addresses.front());
  return rank_name(world_rank, counts) + (elsewhere ? " at " + addresses.front() : "");
}

}  // namespace afd::session
