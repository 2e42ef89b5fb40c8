#include "session/session.h"

#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr RankCounts k2A2F{.num_attention_ranks = 2, .num_ffn_ranks = 2};

TEST(SessionTest, JoinsExchangesBlobsAndMeets) {
  Job job(k2A2F);
  job.start_all();
  job.wait();
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
    ASSERT_TRUE(job.result(rank)) << job.result(rank).error().message;
    threads.emplace_back([&job, rank] {
      Session& session = job[rank];
      EXPECT_EQ(session.epoch(), job[0].epoch());
      EXPECT_NE(session.epoch(), 0u);
      for (std::uint32_t peer = 0; peer < job.num_ranks(); ++peer) {
        EXPECT_EQ(session.blob(peer), "blob of " + rank_name(peer, job.counts()));
        EXPECT_EQ(session.peer_state(peer), PeerState::kPresent);
      }
      EXPECT_TRUE(session.barrier(soon()));
      const auto gathered = session.all_gather(rank_name(rank, job.counts()), soon());
      ASSERT_TRUE(gathered) << gathered.error().message;
      if (rank < 2) {
        EXPECT_THAT(*gathered, ElementsAre("ffn rank 0", "ffn rank 1"));
      } else {
        EXPECT_THAT(*gathered, ElementsAre("attention rank 0", "attention rank 1"));
      }
      EXPECT_TRUE(session.check_peers());
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace
}  // namespace afd::session
