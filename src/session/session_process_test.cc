// Sessions of real processes: killed, stopped, and started again.
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "session/rank_process_testing.h"
#include "session/session.h"
#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using std::chrono::steady_clock;

// Rule R7: a death is known everywhere within this time.
constexpr milliseconds kLossKnownWithin{1'000};

using Ranks = std::vector<std::unique_ptr<RankProcess>>;

std::string text_of(const Result<void>& result) {
  return result ? "" : result.error().message;
}

/// Joins and tells "joined", or the error, and then ends.
std::unique_ptr<Session> join_and_tell(const RankProcess& self, JoinOptions options) {
  Joined joined = Session::join(std::move(options), soon());
  if (!joined) {
    self.tell(joined.error().message);
    ::_exit(0);
  }
  self.tell("joined");
  return std::move(*joined);
}

Ranks start_ranks(RankCounts counts, std::uint16_t port,
                  const std::function<void(const RankProcess&, Session&, std::uint32_t)>& body) {
  Ranks ranks;
  for (std::uint32_t rank = 0; rank < counts.num_attention_ranks + counts.num_ffn_ranks; ++rank) {
    ranks.push_back(std::make_unique<RankProcess>([&, rank](const RankProcess& self) {
      const auto session = join_and_tell(self, rank_options(rank, counts, port));
      body(self, *session, rank);
    }));
  }
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->line(), "joined");
  }
  return ranks;
}

// Blocks in a barrier or polls; tells the error, then what check_peers() says.
void watch_until_loss(const RankProcess& self, Session& session, bool blocks) {
  if (blocks) {
    self.tell(text_of(session.barrier(Deadline::never())));
  } else {
    while (session.check_peers()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    self.tell(text_of(session.check_peers()));
  }
  self.tell(text_of(session.check_peers()));
}

TEST(SessionProcessTest, TellsTheDeathOfAnyRankToAllOthersInTime) {
  for (const int deadly : {SIGKILL, SIGABRT}) {
    for (std::uint32_t dies = 0; dies < 4; ++dies) {
      const std::string message = rank_name(dies, k2A2F) + " lost: its connection ended";
      SCOPED_TRACE(message);
      const Ranks ranks = start_ranks(
          k2A2F, free_port(), [](const RankProcess& self, Session& session, std::uint32_t rank) {
            watch_until_loss(self, session, rank % 2 == 0);
            self.wait_to_go_on();
          });
      const auto killed_at = steady_clock::now();
      ranks[dies]->signal(deadly);
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        if (rank != dies) {
          EXPECT_EQ(ranks[rank]->line(), message);
          EXPECT_EQ(ranks[rank]->line(), message);
        }
      }
      EXPECT_LT(steady_clock::now() - killed_at, kLossKnownWithin);
      EXPECT_EQ(ranks[dies]->wait(), -deadly);
      for (std::uint32_t rank = 0; rank < 4; ++rank) {
        if (rank != dies) {
          ranks[rank]->go_on();
          EXPECT_EQ(ranks[rank]->wait(), 0);
        }
      }
    }
  }
}

// What a rank does when it hears of another's death.
enum class Reaction { kCloses, kExits, kDies };

TEST(SessionProcessTest, NamesTheFirstDeathAlsoWhereOthersLeaveBecauseOfIt) {
  for (const Reaction reaction : {Reaction::kCloses, Reaction::kExits, Reaction::kDies}) {
    for (std::uint32_t dies = 0; dies < 4; ++dies) {
      for (const std::uint32_t hears : {(dies + 1) % 4, (dies + 2) % 4, (dies + 3) % 4}) {
        const std::string message = rank_name(dies, k2A2F) + " lost: its connection ended";
        SCOPED_TRACE(message + ", heard by " + rank_name(hears, k2A2F));
        const Ranks ranks = start_ranks(
            k2A2F, free_port(), [&](const RankProcess& self, Session& session, std::uint32_t rank) {
              if (rank == hears) {
                // Looks only when it is all over.
                self.wait_to_go_on();
                self.tell(text_of(session.barrier(Deadline::after(seconds(60)))));
                self.tell(text_of(session.check_peers()));
                return;
              }
              self.tell(text_of(session.barrier(Deadline::never())));
              if (reaction == Reaction::kCloses) {
                session.close();
              } else if (reaction == Reaction::kExits) {
                ::_exit(1);
              } else {
                ::raise(SIGKILL);
              }
            });
        ranks[dies]->signal(SIGKILL);
        ranks[dies]->wait();
        for (std::uint32_t rank = 0; rank < 4; ++rank) {
          if (rank != dies && rank != hears) {
            EXPECT_EQ(ranks[rank]->line(), message);
            ranks[rank]->wait();
          }
        }
        ranks[hears]->go_on();
        EXPECT_EQ(ranks[hears]->line(), message);
        EXPECT_EQ(ranks[hears]->line(), message);
        EXPECT_EQ(ranks[hears]->wait(), 0);
      }
    }
  }
}

TEST(SessionProcessTest, NamesARankThatDiesInTheMiddleOfGathers) {
  std::mt19937 random(std::random_device{}());
  for (std::uint32_t dies = 0; dies < 4; ++dies) {
    const std::string message = rank_name(dies, k2A2F) + " lost: its connection ended";
    const Ranks ranks = start_ranks(
        k2A2F, free_port(), [](const RankProcess& self, Session& session, std::uint32_t) {
          while (true) {
            const auto gathered = session.all_gather(std::string(1000, 'x'), Deadline::never());
            const Result<void> met = gathered ? session.barrier(Deadline::never()) : Result<void>();
            if (!gathered || !met) {
              self.tell(gathered ? met.error().message : gathered.error().message);
              return;
            }
          }
        });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ranks[dies]->signal(SIGKILL);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != dies) {
        EXPECT_EQ(ranks[rank]->line(), message);
        EXPECT_EQ(ranks[rank]->wait(), 0);
      }
    }
  }
}

TEST(SessionProcessTest, DoesNotLoseARankThatIsStopped) {
  for (const std::uint32_t stops : {0u, 1u, 3u}) {
    const Ranks ranks = start_ranks(
        k2A2F, free_port(), [&](const RankProcess& self, Session& session, std::uint32_t rank) {
          self.wait_to_go_on();
          if (rank != stops) {
            // Names a stopped member, and says so if rank 0 itself does not answer.
            const Result<void> late = session.barrier(Deadline::after(seconds(2)));
            self.tell(late ? "no error" : late.error().message);
            self.tell(text_of(session.check_peers()));
          }
          self.tell(text_of(session.barrier(Deadline::after(seconds(60)))));
        });
    ranks[stops]->signal(SIGSTOP);
    for (const auto& rank : ranks) {
      rank->go_on();
    }
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != stops) {
        EXPECT_EQ(ranks[rank]->line(),
                  (stops == 0 ? "not every rank" : rank_name(stops, k2A2F) + " did not") +
                      std::string(stops == 0 ? " reached the barrier within 2 s"
                                             : " reach the barrier within 2 s"));
        EXPECT_EQ(ranks[rank]->line(), "");
      }
    }
    ranks[stops]->signal(SIGCONT);
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->line(), "");
      EXPECT_EQ(rank->wait(), 0);
    }
  }
}

TEST(SessionProcessTest, LosesARankThatIsKilledWhileStopped) {
  for (const std::uint32_t dies : {0u, 3u}) {
    const std::string message = rank_name(dies, k2A2F) + " lost: its connection ended";
    const Ranks ranks = start_ranks(
        k2A2F, free_port(), [&](const RankProcess& self, Session& session, std::uint32_t rank) {
          if (rank == dies) {
            self.wait_to_go_on();  // not to the barrier, which would then complete
          }
          self.tell(text_of(session.barrier(Deadline::never())));
        });
    ranks[dies]->signal(SIGSTOP);
    ranks[dies]->signal(SIGKILL);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      if (rank != dies) {
        EXPECT_EQ(ranks[rank]->line(), message);
      }
    }
  }
}

TEST(SessionProcessTest, FailsTheJoinOnAllRanksWhenAnyDies) {
  for (const std::uint32_t dies : {0u, 1u, 2u}) {
    const std::uint16_t port = free_port();
    Ranks ranks;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {  // the fourth never comes
      ranks.push_back(std::make_unique<RankProcess>([&, rank](const RankProcess& self) {
        JoinOptions options = rank_options(rank, k2A2F, port);
        options.waiting_interval = milliseconds(10);
        bool told = false;
        options.on_waiting = [&](std::string_view missing) {
          if (missing == "attention rank 1" && !std::exchange(told, true)) {
            self.tell("waits");
          }
        };
        join_and_tell(self, options);
      }));
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->line(), "waits");
    }
    ranks[dies]->signal(SIGKILL);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      if (rank != dies) {
        EXPECT_EQ(
            ranks[rank]->line(),
            rank_name(dies, k2A2F) + " lost: its connection ended while ranks were still arriving");
        EXPECT_EQ(ranks[rank]->wait(), 0);
      }
    }
  }
}

TEST(SessionProcessTest, StartsAgainAtOnceOnThePortOfAKilledJob) {
  const std::uint16_t port = free_port();
  for (int round = 0; round < 5; ++round) {
    const Ranks ranks =
        start_ranks(k2A2F, port, [](const RankProcess& self, Session& session, std::uint32_t) {
          session.barrier(Deadline::never()).has_value();
          self.wait_to_go_on();
        });
    for (const auto& rank : ranks) {
      rank->signal(SIGKILL);
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait(), -SIGKILL);
    }
  }
}

TEST(SessionProcessTest, RaisesNoSignalWhenItWritesToADeadRank) {
  // A rank whose contribution meets a closed connection would die of SIGPIPE, or, here, not.
  for (int i = 0; i < 10; ++i) {
    const Ranks ranks = start_ranks(
        k2A2F, free_port(), [](const RankProcess& self, Session& session, std::uint32_t rank) {
          ::signal(SIGPIPE, SIG_DFL);
          if (rank == 0) {
            ::raise(SIGKILL);
          }
          for (int round = 0; round < 100; ++round) {
            std::ignore = session.all_gather("x", Deadline::now());
            std::ignore = session.barrier(Deadline::now());
          }
          session.close();
          self.tell("done");
        });
    for (const std::uint32_t rank : {1u, 2u, 3u}) {
      EXPECT_EQ(ranks[rank]->line(), "done");
      EXPECT_EQ(ranks[rank]->wait(), 0);
    }
  }
}

TEST(SessionProcessTest, NamesAddressAndReasonWhereTheLoopbackInterfaceIsDown) {
  const std::uint16_t port = free_port();
  RankProcess rank([&](const RankProcess& self) {
    if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      self.tell("not permitted");
      return;
    }
    const Joined joined = Session::join(rank_options(1, k2A2F, port), Deadline::after(seconds(1)));
    self.tell(joined ? "joined" : joined.error().message);
  });
  const std::string said = rank.line();
  if (said == "not permitted") {
    GTEST_SKIP() << "needs the right to make a network namespace";
  }
  EXPECT_EQ(said, "ffn rank 0 did not arrive within 1 s at 127.0.0.1:" + std::to_string(port) +
                      ": Network is unreachable (errno 101)");
  EXPECT_EQ(rank.wait(), 0);
}

}  // namespace
}  // namespace afd::session
