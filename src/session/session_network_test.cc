// Sessions of ranks on several hosts: met over a network, cut off from it, and lied to.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include "session/rank_process_testing.h"
#include "session/session.h"
#include "session/session_test_support.h"
#include "tests/support/network.h"
#include "tests/support/program.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using afd::testing::Network;
using std::chrono::steady_clock;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint16_t kPort = 1239;  // of hosts of their own
constexpr seconds kLimit{5};           // the default

class SessionNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    network_ = Network::create(3, &why_not);
    if (!network_) {
      GTEST_SKIP() << why_not;
    }
    std::string pattern = (std::filesystem::temp_directory_path() / "afd-network-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    write_secret("right");
    write_secret("wrong");
  }
  void TearDown() override {
    if (!folder_.empty()) {
      std::filesystem::remove_all(folder_);
    }
  }

  std::string secret_file(const std::string& name) const { return folder_ / name; }

  /// Rank 0 is on host 0, the others where they say.
  JoinOptions options(std::uint32_t world_rank, RankCounts counts) const {
    JoinOptions options = rank_options(world_rank, counts, kPort);
    options.host = network_->address(0);
    options.network.secret_file = secret_file("right");
    return options;
  }

  using Body = std::function<void(const RankProcess&, Session&)>;
  /// Tells "joined", or the error; then runs the body.
  std::unique_ptr<RankProcess> start(
      std::uint32_t host, JoinOptions options,
      Body body = [](const RankProcess&, Session&) {}) const {
    return std::make_unique<RankProcess>([=, this](const RankProcess& self) {
      network_->enter(host);
      const Joined joined = Session::join(options, soon());
      self.tell(joined ? "joined" : joined.error().message);
      if (joined) {
        body(self, **joined);
      }
    });
  }

  /// The same, and tells "present" before, once rank 0 misses nobody but `missing`: it has a
  /// connection then.
  std::unique_ptr<RankProcess> start_present(
      std::uint32_t host, JoinOptions options, std::string missing,
      Body body = [](const RankProcess&, Session&) {}) const {
    options.waiting_interval = milliseconds(10);
    return std::make_unique<RankProcess>([=, this](const RankProcess& self) {
      network_->enter(host);
      JoinOptions telling = options;
      telling.on_waiting = [&, told = false](std::string_view still_missing) mutable {
        if (still_missing == missing && !std::exchange(told, true)) {
          self.tell("present");
        }
      };
      const Joined joined = Session::join(telling, soon());
      self.tell(joined ? "joined" : joined.error().message);
      if (joined) {
        body(self, **joined);
      }
    });
  }

  /// Says nothing until it hears of a loss, and tells it.
  static void watch(const RankProcess& self, Session& session) {
    EXPECT_TRUE(eventually([&] { return !session.check_peers(); }));
    self.tell(session.check_peers() ? "no loss" : session.check_peers().error().message);
    self.wait_to_go_on();
  }
  /// Says that it has reached the barrier, and tells what it hears.
  static void meet(const RankProcess& self, Session& session) {
    self.wait_to_go_on();
    const Result<void> met = session.barrier(soon());
    self.tell(met ? "met" : met.error().message);
  }

  std::unique_ptr<Network> network_;

 private:
  void write_secret(const std::string& name) const {
    std::ofstream(folder_ / name) << "the secret that is " << name;
    std::filesystem::permissions(folder_ / name, std::filesystem::perms(0600));
  }

  std::filesystem::path folder_;
};

// For tests of programs: the helper itself.
TEST_F(SessionNetworkTest, StartsProgramsOnAHost) {
  const auto shown = afd::testing::run_program(
      network_->command(1, {"/bin/sh", "-c", "ip -o -4 addr show eth0"}), seconds(20));
  EXPECT_EQ(shown.exit_code, 0) << afd::testing::describe(shown);
  EXPECT_THAT(shown.out, HasSubstr(network_->address(1) + "/24"));
  EXPECT_EQ(network_->run(1, {"ip", "link", "show", "port1"}), 1) << "that is the switch's";
}

TEST_F(SessionNetworkTest, MeetsAcrossHostsInBothFamilies) {
  for (const bool v6 : {false, true}) {
    const auto address = [&](std::uint32_t host) {
      return v6 ? network_->address_v6(host) : network_->address(host);
    };
    std::vector<std::unique_ptr<RankProcess>> ranks;
    for (const std::uint32_t rank : {2u, 1u, 0u}) {
      JoinOptions options = this->options(rank, k2A1F);
      options.host = address(0);
      ranks.push_back(start(rank, options, [](const RankProcess& self, Session& session) {
        self.tell(std::string(session.peer_host(0)) + " " + std::string(session.peer_host(1)) +
                  " " + std::string(session.peer_host(2)));
        self.tell(session.barrier(soon()) ? "met" : "not met");
      }));
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->line(), "joined");
    }
    // What rank 0 does not say of itself, the others know from their connection.
    EXPECT_EQ(ranks[0]->line(), address(0) + " " + address(1) + " " + address(2));
    EXPECT_EQ(ranks[1]->line(), address(0) + " " + address(1) + " " + address(2));
    EXPECT_EQ(ranks[2]->line(), " " + address(1) + " " + address(2));
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->line(), "met");
      EXPECT_EQ(rank->wait(), 0);
    }
  }
}

TEST_F(SessionNetworkTest, LosesAHostThatIsCutOffByNameOnAllSidesWithinTheLimit) {
  for (const Network::Cut cut :
       {Network::Cut::kLinkDown, Network::Cut::kNoCarrier, Network::Cut::kBlackHole}) {
    for (const std::uint32_t host : {1u, 0u}) {
      SCOPED_TRACE(static_cast<int>(cut) * 10 + static_cast<int>(host));
      // The default once, and else less, to be done sooner.
      const seconds limit = cut == Network::Cut::kBlackHole ? kLimit : seconds(3);
      std::vector<std::unique_ptr<RankProcess>> ranks;
      for (const std::uint32_t rank : {0u, 1u, 2u}) {
        JoinOptions options = this->options(rank, k2A1F);
        if (limit != kLimit) {
          options.network.heartbeat_limit = limit;
        }
        ranks.push_back(start(rank, options, watch));
      }
      for (const auto& rank : ranks) {
        ASSERT_EQ(rank->line(), "joined");
      }
      const std::string lost = " lost: no sign of life for " + std::to_string(limit.count()) + " s";
      const auto cut_at = steady_clock::now();
      network_->cut(host, cut);
      if (host == 1) {
        // Rank 0 sees it and tells the others; who is cut off misses rank 0.
        const std::string named = "attention rank 0 at " + network_->address(1) + lost;
        EXPECT_EQ(ranks[0]->line(), named);
        EXPECT_EQ(ranks[2]->line(), named);
        EXPECT_EQ(ranks[1]->line(), "ffn rank 0 at " + network_->address(0) + lost);
      } else {
        const std::string named = "ffn rank 0 at " + network_->address(0) + lost;
        EXPECT_EQ(ranks[1]->line(), named);
        EXPECT_EQ(ranks[2]->line(), named);
        EXPECT_THAT(ranks[0]->line(),
                    ::testing::AllOf(StartsWith("attention rank "), ::testing::EndsWith(lost)));
      }
      // The kernel's timers are late under load.
      const auto took = steady_clock::now() - cut_at;
      EXPECT_LT(took, limit + seconds(1));
      std::printf("cut %d of host %u: known everywhere after %lld ms\n", static_cast<int>(cut),
                  host, static_cast<long long>(std::chrono::ceil<milliseconds>(took).count()));
      network_->mend(host);
    }
  }
}

TEST_F(SessionNetworkTest, LosesAHostThatIsCutOffWhileSomethingIsUnderWayToIt) {
  // What is not acknowledged has no probes: the kernel's other limit. It counts from the first
  // retransmission, which comes late where answers have been slow; the second time it does.
  for (const char* first_retransmission : {"200ms", "3s"}) {
    ASSERT_EQ(network_->run(1, {"ip", "route", "change", "10.77.0.0/24", "dev", "eth0", "rto_min",
                                first_retransmission}),
              0);
    const auto rank_zero = start(0, options(0, k1A1F), meet);
    const auto other = start(1, options(1, k1A1F), meet);
    ASSERT_EQ(rank_zero->line(), "joined");
    ASSERT_EQ(other->line(), "joined");
    network_->cut(1, Network::Cut::kBlackHole);
    const auto cut_at = steady_clock::now();
    other->go_on();  // its arrival at the barrier never arrives
    EXPECT_EQ(other->line(), "ffn rank 0 at 10.77.0.1 lost: no sign of life for 5 s");
    EXPECT_LT(steady_clock::now() - cut_at, kLimit + seconds(1)) << first_retransmission;
    rank_zero->go_on();
    EXPECT_EQ(rank_zero->line(), "attention rank 0 at 10.77.0.2 lost: no sign of life for 5 s");
    network_->mend(1);
  }
}

TEST_F(SessionNetworkTest, HasTheLimitThatItWasGiven) {
  const auto with_limit = [&](std::uint32_t rank) {
    JoinOptions options = this->options(rank, k1A1F);
    options.network.heartbeat_limit = seconds(3);
    return options;
  };
  const auto rank_zero = start(0, with_limit(0), watch);
  const auto other = start(1, with_limit(1), watch);
  ASSERT_EQ(rank_zero->line(), "joined");
  ASSERT_EQ(other->line(), "joined");
  const auto cut_at = steady_clock::now();
  network_->cut(1, Network::Cut::kBlackHole);
  EXPECT_EQ(rank_zero->line(), "attention rank 0 at 10.77.0.2 lost: no sign of life for 3 s");
  EXPECT_EQ(other->line(), "ffn rank 0 at 10.77.0.1 lost: no sign of life for 3 s");
  EXPECT_LT(steady_clock::now() - cut_at, kLimit - seconds(1)) << "not the default";
}

TEST_F(SessionNetworkTest, DoesNotLoseAStoppedProcessNorAHostThatComesBackInTime) {
  std::vector<std::unique_ptr<RankProcess>> ranks;
  for (const std::uint32_t rank : {0u, 1u}) {
    ranks.push_back(start(rank, options(rank, k1A1F), meet));
  }
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank->line(), "joined");
  }
  ranks[1]->signal(SIGSTOP);
  std::this_thread::sleep_for(kLimit + seconds(1));  // well beyond the limit: nothing may happen
  ranks[1]->signal(SIGCONT);
  network_->cut(1, Network::Cut::kBlackHole);
  std::this_thread::sleep_for(milliseconds(1'200));  // beyond one interval
  network_->mend(1);
  for (const auto& rank : ranks) {
    rank->go_on();
  }
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->line(), "met");
  }
}

TEST_F(SessionNetworkTest, LosesAHostThatIsCutOffWhileRanksArrive) {
  const auto rank_zero = start(0, options(0, k2A1F));
  const auto first = start_present(1, options(1, k2A1F), "attention rank 1");
  ASSERT_EQ(first->line(), "present");
  network_->cut(1, Network::Cut::kBlackHole);
  EXPECT_EQ(rank_zero->line(),
            "attention rank 0 at 10.77.0.2 lost: no sign of life for 5 s while ranks were still "
            "arriving");
  EXPECT_EQ(
      first->line(),
      "ffn rank 0 at 10.77.0.1 lost: no sign of life for 5 s while ranks were still arriving");
}

TEST_F(SessionNetworkTest, WaitsForAHostThatIsNotThereYet) {
  network_->cut(0, Network::Cut::kBlackHole);
  JoinOptions early = options(1, k1A1F);
  early.hello_timeout = milliseconds(500);  // how long one attempt takes at most
  const auto other = start(1, early);
  const auto rank_zero = start(0, options(0, k1A1F));
  std::this_thread::sleep_for(seconds(2));  // lets some attempts go by
  network_->mend(0);
  EXPECT_EQ(other->line(), "joined");
  EXPECT_EQ(rank_zero->line(), "joined");
}

TEST_F(SessionNetworkTest, RefusesByNameAndTheOthersWaitOn) {
  const auto rank_zero = start(0, options(0, k2A1F));
  const auto first = start_present(1, options(1, k2A1F), "attention rank 1", watch);
  ASSERT_EQ(first->line(), "present");
  JoinOptions wrong = options(2, k2A1F);
  wrong.network.secret_file = secret_file("wrong");
  const auto other_secret = start(2, wrong);
  EXPECT_EQ(other_secret->line(), "the shared secret in " + secret_file("wrong") +
                                      " differs from ffn rank 0's at 10.77.0.1:1239");
  JoinOptions none = options(2, k2A1F);
  none.network = {.insecure = true};
  const auto no_secret = start(2, none);
  EXPECT_EQ(no_secret->line(),
            "ffn rank 0 at 10.77.0.1:1239 asks for a shared secret, and this rank was given none");
  const auto twice = start(2, options(1, k2A1F));
  EXPECT_EQ(twice->line(), "attention rank 0 is already present");
  const auto last = start(2, options(2, k2A1F), watch);
  EXPECT_EQ(rank_zero->line(), "joined");
  EXPECT_EQ(first->line(), "joined");
  EXPECT_EQ(last->line(), "joined");
}

TEST_F(SessionNetworkTest, LetsAThousandRandomStreamsFromAHostDisturbNeitherJoinNorJob) {
  // Gathers until the flood is over, which the first attention rank is told.
  const auto gather = [](const RankProcess& self, Session& session) {
    pollfd over{.fd = self.fd(), .events = POLLIN, .revents = 0};
    for (std::string said = "go"; said == "go";) {
      const auto gathered = session.all_gather(::poll(&over, 1, 0) == 1 ? "stop" : "go", soon());
      if (!gathered) {
        self.tell(gathered.error().message);
        return;
      }
      said = gathered->front();
    }
    self.tell(session.check_peers() ? "undisturbed" : session.check_peers().error().message);
    self.wait_to_go_on();
  };
  const auto rank_zero = start(0, options(0, k2A1F), [](const RankProcess& self, Session& session) {
    self.wait_to_go_on();
    self.tell(session.check_peers() ? "undisturbed" : session.check_peers().error().message);
  });
  const auto first = start(1, options(1, k2A1F), gather);
  RankProcess flood([&](const RankProcess& self) {
    network_->enter(2);
    std::mt19937 random(7);
    std::vector<base::Fd> open;
    for (int i = 0; i < 2'000; ++i) {
      std::string bytes(random() % 300, '\0');
      std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
      open.push_back(connect_raw_to(network_->address(0), kPort));
      send_raw(open.back(), bytes);
      if (open.size() > 300) {
        open.erase(open.begin());
      }
      if (i == 1'000) {
        self.tell("half of it");
        self.wait_to_go_on();
      }
    }
    self.tell("all of it");
    self.wait_to_go_on();
  });
  EXPECT_EQ(flood.line(), "half of it");  // 300 are open, as many as may be wait at rank 0
  const auto last = start(1, options(2, k2A1F), gather);
  EXPECT_EQ(rank_zero->line(), "joined");
  EXPECT_EQ(first->line(), "joined");
  EXPECT_EQ(last->line(), "joined");
  flood.go_on();
  EXPECT_EQ(flood.line(), "all of it");
  first->go_on();
  EXPECT_EQ(first->line(), "undisturbed");
  EXPECT_EQ(last->line(), "undisturbed");
  rank_zero->go_on();  // it relays the gathers until then
  EXPECT_EQ(rank_zero->line(), "undisturbed");
}

TEST_F(SessionNetworkTest, RefusesARankOfAnotherModelAndWaitsOn) {
  const auto rank_zero = start(0, options(0, k1A1F));
  JoinOptions other = options(1, k1A1F);
  other.must_match[0].second = "4096";
  EXPECT_EQ(start(1, other)->line(),
            "hidden_size differs: attention rank 0 has 4096, ffn rank 0 has 2048");
  const auto right = start(2, options(1, k1A1F));
  EXPECT_EQ(right->line(), "joined");
  EXPECT_EQ(rank_zero->line(), "joined");
}

}  // namespace
}  // namespace afd::session
