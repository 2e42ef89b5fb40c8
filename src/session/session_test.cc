// What a session does between the join and its end. Losses of real processes are in
// session_process_test.cc.
#include "session/session.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "session/session_frame.h"
#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A job whose ranks have all joined.
class JoinedJob : public Job {
 public:
  explicit JoinedJob(RankCounts counts) : Job(counts) {
    start_all();
    wait();
    for (std::uint32_t rank = 0; rank < num_ranks(); ++rank) {
      EXPECT_TRUE(result(rank)) << result(rank).error().message;
    }
  }

  // Runs `body` on one thread per rank.
  void on_all(const std::function<void(Session&, std::uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < num_ranks(); ++rank) {
      threads.emplace_back([this, &body, rank] { body((*this)[rank], rank); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
};

// A rank that speaks by hand: joined, and then does what no rank does.
class RawMember {
 public:
  RawMember(std::uint16_t port, const JoinOptions& options) : fd_(connect_raw(port)) {
    send(encode_hello({.identity = {.role = options.role, .role_rank = options.role_rank},
                       .counts = options.counts,
                       .must_match = options.must_match,
                       .blob = options.blob}));
  }
  void send(const std::string& bytes) { send_raw(fd_, bytes); }
  void reset_connection() {
    const linger reset{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    fd_.reset();
  }

 private:
  base::Fd fd_;
};

// --- collectives ---

TEST(SessionTest, MeetsAtManyBarriers) {
  JoinedJob job(k2A2F);
  constexpr int kRounds = 300;
  std::atomic<int> arrived{0};
  job.on_all([&](Session& session, std::uint32_t) {
    for (int round = 1; round <= kRounds; ++round) {
      arrived.fetch_add(1);
      ASSERT_TRUE(session.barrier(soon()));
      ASSERT_GE(arrived.load(), round * 4);
    }
  });
}

TEST(SessionTest, GathersByRoleManyTimes) {
  JoinedJob job({.num_attention_ranks = 3, .num_ffn_ranks = 2});
  const auto text = [&](std::uint32_t rank, int round) {
    // Of any length, up to the largest and more than a socket takes at once.
    const std::size_t bytes =
        round % 50 == 7 ? std::size_t{64} << 10 : static_cast<std::size_t>(round) % 17;
    std::string all = std::to_string(round) + " of " + rank_name(rank, job.counts());
    all.resize(std::max(all.size(), bytes), '\0');
    return all;
  };
  job.on_all([&](Session& session, std::uint32_t rank) {
    for (int round = 0; round < 300; ++round) {
      const auto gathered = session.all_gather(text(rank, round), soon());
      ASSERT_TRUE(gathered) << gathered.error().message;
      if (rank < 2) {
        ASSERT_THAT(*gathered, ElementsAre(text(0, round), text(1, round)));
      } else {
        ASSERT_THAT(*gathered, ElementsAre(text(2, round), text(3, round), text(4, round)));
      }
      if (round % 10 == 0) {
        ASSERT_TRUE(session.barrier(soon()));
      }
    }
  });
}

TEST(SessionTest, RefusesAContributionThatIsTooLong) {
  JoinedJob job(k1A1F);
  EXPECT_FAILS(job[1].all_gather(std::string((std::size_t{64} << 10) + 1, 'x'), soon()),
               ErrorCode::kInvalidArgument, "a contribution has 65537 bytes, at most 65536");
  EXPECT_TRUE(job[1].all_gather(std::string(std::size_t{64} << 10, 'x'), soon()));
}

TEST(SessionTest, GathersAloneWithoutAnybody) {
  JoinedJob job(k1A1F);
  EXPECT_THAT(job[0].all_gather("x", Deadline::now()).value(), ElementsAre("x"));
  EXPECT_THAT(job[1].all_gather("y", Deadline::now()).value(), ElementsAre("y"));
  job[0].abandon();
  EXPECT_TRUE(eventually([&] { return job[1].peer_state(0) == PeerState::kLost; }));
  EXPECT_FALSE(job[1].all_gather("y", soon())) << "as if there were others";
}

TEST(SessionTest, NamesWhoIsMissingAtABarrierAndMeetsOnRepeat) {
  JoinedJob job(k2A2F);
  EXPECT_FAILS(job[2].barrier(Deadline::after(seconds(1))), ErrorCode::kDeadlineExceeded,
               "ffn rank 0, ffn rank 1, attention rank 1 did not reach the barrier within 1 s");
  EXPECT_FAILS(job[0].barrier(Deadline::after(seconds(1))), ErrorCode::kDeadlineExceeded,
               "ffn rank 1, attention rank 1 did not reach the barrier within 1 s");
  EXPECT_FAILS(job[0].barrier(Deadline::now()), ErrorCode::kDeadlineExceeded,
               "ffn rank 1, attention rank 1 did not reach the barrier within 0 ms");
  EXPECT_FAILS(job[1].barrier(Deadline::now()), ErrorCode::kDeadlineExceeded,
               "not every rank reached the barrier within 0 ms");
  // Rank 0 tells of every change: FFN rank 1 has arrived meanwhile.
  EXPECT_TRUE(eventually([&] {
    const Result<void> met = job[2].barrier(Deadline::now());
    return met.error().message == "attention rank 1 did not reach the barrier within 0 ms";
  }));
  // The repeats belong to the same barrier, not to further ones.
  for (int round = 0; round < 2; ++round) {
    job.on_all([](Session& session, std::uint32_t) { EXPECT_TRUE(session.barrier(soon())); });
  }
  EXPECT_FALSE(job[3].barrier(Deadline::now()));
}

TEST(SessionTest, NamesWhoIsMissingInAGatherAndGathersOnRepeat) {
  JoinedJob job({.num_attention_ranks = 3, .num_ffn_ranks = 1});
  EXPECT_FALSE(job[2].all_gather("b", Deadline::now()));
  EXPECT_FAILS(job[1].all_gather("a", Deadline::after(seconds(1))), ErrorCode::kDeadlineExceeded,
               "attention rank 2 did not reach the gather within 1 s");
  EXPECT_FAILS(job[1].all_gather("other", soon()), ErrorCode::kInvalidArgument,
               "a gather has begun with another contribution; repeat it with the same one");
  EXPECT_THAT(job[3].all_gather("c", soon()).value(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(job[1].all_gather("a", soon()).value(), ElementsAre("a", "b", "c"));
  EXPECT_THAT(job[2].all_gather("b", soon()).value(), ElementsAre("a", "b", "c"));
  EXPECT_FALSE(job[2].all_gather("next round", Deadline::now()));
}

TEST(SessionTest, PollsABarrierUntilAllHaveCome) {
  JoinedJob job(k1A1F);
  EXPECT_FALSE(job[0].barrier(Deadline::now()));
  EXPECT_FALSE(job[0].barrier(Deadline::now()));
  ASSERT_TRUE(job[1].barrier(soon()));
  EXPECT_TRUE(eventually([&] { return job[0].barrier(Deadline::now()).has_value(); }));
  EXPECT_FALSE(job[0].barrier(Deadline::now()));
}

TEST(SessionTest, TakesCallsOfSeveralThreadsInTurn) {
  JoinedJob job(k2A2F);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&job, rank] {
        for (int round = 0; round < 50; ++round) {
          EXPECT_TRUE(job[rank].barrier(soon()));
          EXPECT_TRUE(job[rank].all_gather("x", soon()));
        }
      });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_FALSE(job[0].barrier(Deadline::now())) << "as many on both sides";
}

// --- losses ---

TEST(SessionTest, TellsALossToAllRanksBlockedOrNot) {
  for (std::uint32_t dies = 0; dies < 4; ++dies) {
    JoinedJob job(k2A2F);
    const std::string message = rank_name(dies, job.counts()) + " lost: its connection ended";
    SCOPED_TRACE(message);
    std::vector<std::thread> blocked;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != dies) {
        blocked.emplace_back([&job, &message, rank] {
          EXPECT_FAILS(job[rank].barrier(Deadline::never()), ErrorCode::kPeerLost, message);
        });
        blocked.emplace_back([&job, &message, rank, dies] {
          // Those whose role is whole get it, or the loss: the gather may have been first.
          const auto gathered = job[rank].all_gather("x", Deadline::never());
          if (!gathered) {
            EXPECT_FAILS(gathered, ErrorCode::kPeerLost, message);
          } else {
            EXPECT_NE(rank / 2, dies / 2);
          }
        });
      }
    }
    job[dies].abandon();
    for (std::thread& thread : blocked) {
      thread.join();
    }
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != dies) {
        EXPECT_EQ(job[rank].peer_state(dies), PeerState::kLost);
        EXPECT_EQ(job[rank].peer_state(rank), PeerState::kPresent);
        EXPECT_FAILS(job[rank].check_peers(), ErrorCode::kPeerLost, message);
        EXPECT_FAILS(job[rank].barrier(soon()), ErrorCode::kPeerLost, message);
        EXPECT_FAILS(job[rank].all_gather("x", soon()), ErrorCode::kPeerLost, message);
      }
    }
  }
}

TEST(SessionTest, CountsAResetConnectionAsALoss) {
  Job job(k2A1F);
  job.start(0);
  job.start(1);
  RawMember raw(job.port(), job.options(2));
  job.wait();
  ASSERT_TRUE(job.result(0));
  raw.reset_connection();
  EXPECT_FAILS(job[1].barrier(soon()), ErrorCode::kPeerLost,
               "attention rank 1 lost: its connection ended");
}

TEST(SessionTest, DropsARankThatSendsWhatNoRankSends) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"garbage", "not a session frame"},
      {encode_start(1), "unexpected start frame"},
      {encode_barrier(1), "a round out of turn"},
      {encode_barrier(0) + encode_barrier(0), "a round out of turn"},
      {encode_gather(7, "x"), "a round out of turn"},
      {encode_header({.type = FrameType::kBarrier, .payload_bytes = 3}) + "abc",
       "malformed barrier frame: truncated in round"},
  };
  for (const auto& [bytes, problem] : wrong) {
    SCOPED_TRACE(problem);
    Job job(k2A1F);
    job.start(0);
    job.start(1);
    RawMember raw(job.port(), job.options(2));
    job.wait();
    ASSERT_TRUE(job.result(0));
    raw.send(bytes);
    for (std::uint32_t rank : {0u, 1u}) {
      EXPECT_FAILS(job[rank].barrier(soon()), ErrorCode::kPeerLost,
                   "attention rank 1 lost: it sent what no rank sends: " + problem);
    }
  }
}

TEST(SessionTest, TakesARankZeroForLostThatSendsWhatItNeverSends) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"garbage", "not a session frame"},
      {encode_hello({.counts = k1A1F}), "unexpected hello frame"},
      {encode_gone({.world_rank = 0, .how = Departure::kLost}), "news of an unexpected rank"},
      {encode_gone({.world_rank = 5, .how = Departure::kLost}), "news of an unexpected rank"},
      {encode_barrier_released(0), "the end of a barrier that is not open"},
      {encode_gathered({.contributions = {"x"}}), "the end of a gather that is not open"},
  };
  for (const auto& [bytes, problem] : wrong) {
    SCOPED_TRACE(problem);
    const std::uint16_t port = free_port();
    const base::Fd listener = listen_raw(port);
    Joined joined(tl::make_unexpected(Error{}));
    std::thread member([&] { joined = Session::join(rank_options(1, k1A1F, port), soon()); });
    const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
    send_raw(peer, encode_peer({.world_rank = 0}) + encode_peer({.world_rank = 1}) +
                       encode_start(1) + bytes);
    member.join();
    ASSERT_TRUE(joined);
    EXPECT_FAILS((*joined)->barrier(soon()), ErrorCode::kPeerLost,
                 "ffn rank 0 lost: it sent what no rank sends: " + problem);
    EXPECT_FALSE((*joined)->check_peers());
  }
}

// Holds up a session's thread inside on_change, so that what happens meanwhile arrives at once.
class Latch {
 public:
  void hold() {
    std::unique_lock lock(mutex_);
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return held_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  bool open_ = false;
};

TEST(SessionTest, TellsALossBeforeAGoodbyeThatArrivedWithIt) {
  // FFN rank 1 leaves first, only to hold up rank 0. Then one rank says goodbye and another dies;
  // whatever the order in which rank 0 sees them, everybody hears of the loss first.
  for (const bool dies_first : {true, false}) {
    for (const std::uint32_t dies : {2u, 3u, 4u}) {
      const std::uint32_t leaves = dies == 3 ? 2 : 3;
      const std::uint32_t hears = 9 - dies - leaves;
      JoinedJob job({.num_attention_ranks = 3, .num_ffn_ranks = 2});
      Latch latch;
      job[0].set_on_change([&] { latch.hold(); });
      std::mutex mutex;
      std::vector<std::string> heard;
      std::map<std::uint32_t, PeerState> last;
      job[hears].set_on_change([&] {
        const std::lock_guard lock(mutex);
        for (const std::uint32_t rank : {dies, leaves}) {
          const PeerState state = job[hears].peer_state(rank);
          if (state != std::exchange(last[rank], state)) {
            heard.push_back(state == PeerState::kLost ? "lost" : "left");
          }
        }
      });
      job[1].close();
      latch.wait_until_held();
      if (dies_first) {
        job[dies].abandon();
        job[leaves].close();
      } else {
        job[leaves].close();
        job[dies].abandon();
      }
      ASSERT_TRUE(eventually([&] { return num_live_connections(job.port()) == 1; }));
      latch.open();
      const std::string message = rank_name(dies, job.counts()) + " lost: its connection ended";
      EXPECT_TRUE(eventually([&] {
        const std::lock_guard lock(mutex);
        return heard.size() == 2;
      }));
      {
        const std::lock_guard lock(mutex);
        EXPECT_THAT(heard, ElementsAre("lost", "left"));
      }
      EXPECT_FAILS(job[hears].all_gather("x", soon()), ErrorCode::kPeerLost, message);
      EXPECT_FAILS(job[hears].check_peers(), ErrorCode::kPeerLost, message);
      EXPECT_FAILS(job[0].check_peers(), ErrorCode::kPeerLost, message);
      job[hears].close();  // before what its on_change uses
      job[0].close();
    }
  }
}

TEST(SessionTest, TellsDeathsInTheirOrder) {
  for (const std::uint32_t first : {2u, 3u}) {
    const std::uint32_t second = 5 - first;
    JoinedJob job({.num_attention_ranks = 3, .num_ffn_ranks = 2});
    Latch latch;
    job[0].set_on_change([&] { latch.hold(); });
    job[1].close();
    latch.wait_until_held();
    job[first].abandon();
    ASSERT_TRUE(eventually([&] { return num_live_connections(job.port()) == 2; }));
    job[second].abandon();
    ASSERT_TRUE(eventually([&] { return num_live_connections(job.port()) == 1; }));
    latch.open();
    const std::string message = rank_name(first, job.counts()) + " lost: its connection ended";
    EXPECT_FAILS(job[4].all_gather("x", soon()), ErrorCode::kPeerLost, message);
    EXPECT_TRUE(eventually([&] { return job[0].peer_state(second) == PeerState::kLost; }));
    EXPECT_FAILS(job[0].check_peers(), ErrorCode::kPeerLost, message);
    job[0].close();
  }
}

TEST(SessionTest, TellsALossEvenWhenRankZeroLeavesRightThen) {
  JoinedJob job(k2A2F);
  Latch latch;
  job[0].set_on_change([&] { latch.hold(); });
  job[1].close();
  latch.wait_until_held();
  job[2].abandon();
  ASSERT_TRUE(eventually([&] { return num_live_connections(job.port()) == 1; }));
  // Rank 0 closes although its thread has not seen the loss; close() ends when the thread does.
  std::thread closing([&] { job[0].close(); });
  EXPECT_TRUE(eventually([&] { return job[3].peer_state(0) == PeerState::kLeft; }));
  latch.open();
  closing.join();
  EXPECT_FAILS(job[3].check_peers(), ErrorCode::kPeerLost,
               "attention rank 0 lost: its connection ended");
  EXPECT_FAILS(job[3].barrier(soon()), ErrorCode::kPeerLost,
               "attention rank 0 lost: its connection ended");
}

TEST(SessionTest, NamesTheFirstOfSeveralLosses) {
  JoinedJob job({.num_attention_ranks = 3, .num_ffn_ranks = 2});
  job[3].abandon();
  for (std::uint32_t rank : {0u, 1u, 2u, 4u}) {
    ASSERT_TRUE(eventually([&] { return job[rank].peer_state(3) == PeerState::kLost; }));
  }
  job[4].abandon();
  ASSERT_TRUE(eventually([&] { return job[1].peer_state(4) == PeerState::kLost; }));
  job[0].abandon();
  ASSERT_TRUE(eventually([&] { return job[1].peer_state(0) == PeerState::kLost; }));
  for (std::uint32_t rank : {1u, 2u}) {
    EXPECT_FAILS(job[rank].check_peers(), ErrorCode::kPeerLost,
                 "attention rank 1 lost: its connection ended");
    EXPECT_FAILS(job[rank].barrier(soon()), ErrorCode::kPeerLost,
                 "attention rank 1 lost: its connection ended");
  }
}

// --- leaving ---

TEST(SessionTest, SeesRanksLeaveInEveryOrder) {
  std::vector<std::uint32_t> order(4);
  std::iota(order.begin(), order.end(), 0);
  do {
    JoinedJob job(k2A2F);
    bool hub_is_there = true;
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::uint32_t leaves = order[i];
      job[leaves].close();
      for (std::size_t j = i + 1; j < order.size() && hub_is_there; ++j) {
        EXPECT_TRUE(
            eventually([&] { return job[order[j]].peer_state(leaves) == PeerState::kLeft; }));
        EXPECT_TRUE(job[order[j]].check_peers());
      }
      hub_is_there = hub_is_there && leaves != 0;
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(SessionTest, TellsARankThatGaveUpFromOneThatLeft) {
  for (const std::uint32_t gives_up : {0u, 3u}) {
    JoinedJob job(k2A2F);
    job[1].close();
    for (const std::uint32_t rank : {2u, gives_up}) {
      ASSERT_TRUE(eventually([&] { return job[rank].peer_state(1) == PeerState::kLeft; }));
    }
    job[gives_up].give_up("step 3:\tlogits are not finite");
    ASSERT_TRUE(eventually([&] { return job[2].peer_state(gives_up) == PeerState::kGaveUp; }));
    EXPECT_EQ(job[2].peer_state(1), PeerState::kLeft);
    EXPECT_EQ(job[2].first_to_give_up(), gives_up);
    EXPECT_EQ(job[2].departure_text(gives_up), (gives_up == 0 ? "ffn rank 0" : "attention rank 1") +
                                                   std::string(" gave up: step 3:?logits are not "
                                                               "finite"));
    EXPECT_EQ(job[2].departure_text(1), "ffn rank 1 has left the job");
    EXPECT_TRUE(job[2].check_peers()) << "who gave up is not lost";
    EXPECT_FAILS(job[2].barrier(soon()), ErrorCode::kPeerLost, job[2].departure_text(gives_up));
  }
}

TEST(SessionTest, FailsABarrierWhenARankLeftAndAGatherWhenOneOfTheRoleDid) {
  JoinedJob job(k2A2F);
  std::thread blocked([&] {
    EXPECT_FAILS(job[2].barrier(Deadline::never()), ErrorCode::kPeerLost,
                 "ffn rank 1 left, and a barrier needs every rank");
  });
  job[1].close();
  blocked.join();
  EXPECT_FAILS(job[3].barrier(soon()), ErrorCode::kPeerLost,
               "ffn rank 1 left, and a barrier needs every rank");
  EXPECT_FAILS(job[0].all_gather("x", soon()), ErrorCode::kPeerLost,
               "ffn rank 1 left, and a gather needs every rank of the role");
  std::thread other(
      [&] { EXPECT_THAT(job[2].all_gather("a", soon()).value(), ElementsAre("a", "b")); });
  EXPECT_THAT(job[3].all_gather("b", soon()).value(), ElementsAre("a", "b"));
  other.join();
  std::thread waits([&] {
    EXPECT_FAILS(job[2].all_gather("a", Deadline::never()), ErrorCode::kPeerLost,
                 "attention rank 1 left, and a gather needs every rank of the role");
  });
  job[3].close();
  waits.join();
}

TEST(SessionTest, CompletesWhatAllReachedBeforeOneLeft) {
  for (int i = 0; i < 50; ++i) {
    JoinedJob job(k2A2F);
    job.on_all([](Session& session, std::uint32_t rank) {
      const Result<void> met = session.barrier(soon());
      EXPECT_TRUE(met) << met.error().message;
      if (rank % 2 == 1) {
        session.close();  // at once, while others still learn that the barrier is over
      }
    });
  }
}

TEST(SessionTest, RelaysNothingAfterRankZeroLeft) {
  JoinedJob job(k2A2F);
  const std::string message = "ffn rank 0 left, and it relays barriers and gathers";
  std::thread barrier(
      [&] { EXPECT_FAILS(job[2].barrier(Deadline::never()), ErrorCode::kPeerLost, message); });
  std::thread gather([&] {
    EXPECT_FAILS(job[2].all_gather("x", Deadline::never()), ErrorCode::kPeerLost, message);
  });
  job[0].close();
  barrier.join();
  gather.join();
  EXPECT_EQ(job[2].peer_state(0), PeerState::kLeft);
  EXPECT_TRUE(job[2].check_peers());
  EXPECT_FAILS(job[2].barrier(soon()), ErrorCode::kPeerLost, message);
  // The others go on, and know no more of each other.
  job[1].abandon();
  EXPECT_EQ(job[2].peer_state(1), PeerState::kPresent);
  EXPECT_TRUE(job[2].check_peers());
}

// --- on_change ---

TEST(SessionTest, CallsOnChangeForEveryChangeAndNotAfterClose) {
  JoinedJob job(k2A2F);
  std::atomic<int> calls{0};
  job[2].set_on_change([&] { calls.fetch_add(1); });
  EXPECT_EQ(calls.load(), 0);
  job[1].close();
  EXPECT_TRUE(eventually([&] { return calls.load() == 1; }));
  job[3].abandon();
  EXPECT_TRUE(eventually([&] { return calls.load() == 2; }));

  std::atomic<int> late_calls{0};
  EXPECT_TRUE(eventually([&] { return job[0].peer_state(3) == PeerState::kLost; }));
  job[0].set_on_change([&] { late_calls.fetch_add(1); });
  EXPECT_GE(late_calls.load(), 1) << "a state had changed already";

  job[2].close();
  const int calls_at_close = calls.load();
  job[0].close();
  EXPECT_EQ(calls.load(), calls_at_close);
  job[2].set_on_change([&] { calls.fetch_add(1); });
  EXPECT_EQ(calls.load(), calls_at_close);
}

// --- closing ---

TEST(SessionTest, WakesBlockedCallsOnClose) {
  for (std::uint32_t closes : {0u, 2u}) {
    JoinedJob job(k2A2F);
    std::vector<std::thread> blocked;
    for (int i = 0; i < 2; ++i) {  // the second waits for the first
      blocked.emplace_back([&] {
        EXPECT_FAILS(job[closes].barrier(Deadline::never()), ErrorCode::kFailedPrecondition,
                     "closed");
      });
      blocked.emplace_back([&] {
        EXPECT_FAILS(job[closes].all_gather("x", Deadline::never()), ErrorCode::kFailedPrecondition,
                     "closed");
      });
    }
    // Several at once: all return when it is done.
    std::vector<std::thread> closing;
    for (int i = 0; i < 3; ++i) {
      closing.emplace_back([&] { job[closes].close(); });
    }
    for (std::thread& thread : closing) {
      thread.join();
    }
    for (std::thread& thread : blocked) {
      thread.join();
    }
    EXPECT_FAILS(job[closes].barrier(soon()), ErrorCode::kFailedPrecondition, "closed");
    EXPECT_FAILS(job[closes].all_gather("x", soon()), ErrorCode::kFailedPrecondition, "closed");
    job[closes].close();
    job[closes].abandon();
    EXPECT_EQ(job[closes].blob(3), "blob of attention rank 1");
    EXPECT_NE(job[closes].epoch(), 0u);
  }
}

TEST(SessionTest, ClosesWhileOthersWork) {
  for (int i = 0; i < 20; ++i) {
    JoinedJob job(k2A2F);
    std::thread closing([&] { job[static_cast<std::uint32_t>(i) % 4].close(); });
    job.on_all([](Session& session, std::uint32_t) {
      while (session.barrier(soon()) && session.all_gather("x", soon())) {
      }
    });
    closing.join();
  }
}

TEST(SessionTest, LeavesNoDescriptorAndNoThread) {
  const auto round = [] {
    JoinedJob job(k2A2F);
    const base::Fd stranger = connect_raw(job.port());
    job.on_all([](Session& session, std::uint32_t) { EXPECT_TRUE(session.barrier(soon())); });
    job[1].close();
    job[2].abandon();
  };
  round();  // what is made once a process
  const std::size_t fds = num_open_fds();
  const std::size_t threads = num_threads();
  for (int i = 0; i < 50; ++i) {
    round();
    ASSERT_EQ(num_open_fds(), fds);
    ASSERT_TRUE(has_num_threads(threads));
  }
  // Also where the join fails.
  for (std::uint32_t rank : {0u, 1u}) {
    EXPECT_FALSE(
        Session::join(rank_options(rank, k1A1F, free_port()), Deadline::after(milliseconds(50))));
  }
  EXPECT_EQ(num_open_fds(), fds);
  EXPECT_TRUE(has_num_threads(threads));
}

TEST(SessionTest, ClosesEveryDescriptorOnExec) {
  JoinedJob job(k2A2F);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.rfind("socket:", 0) == 0 || target.rfind("anon_inode:", 0) == 0) {
      EXPECT_TRUE(::fcntl(fd, F_GETFD) & FD_CLOEXEC) << target;
    }
  }
}

TEST(SessionTest, ClosesInBoundedTimeWhenAPeerReadsNothing) {
  Job job(k2A1F);
  job.start(0);
  job.start(1);
  RawMember silent(job.port(), job.options(2));
  job.wait();
  ASSERT_TRUE(job.result(0));
  // The raw rank takes part but reads nothing, until its socket and rank 0's are full.
  const std::string largest(std::size_t{64} << 10, 'x');
  for (std::uint32_t round = 0; round < 300; ++round) {
    silent.send(encode_gather(round, ""));
    ASSERT_TRUE(job[1].all_gather(largest, soon()));
  }
  job[0].close();
  EXPECT_TRUE(eventually([&] { return job[1].peer_state(0) == PeerState::kLeft; }));
}

}  // namespace
}  // namespace afd::session
