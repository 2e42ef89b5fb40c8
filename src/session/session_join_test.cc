// How ranks find each other, and how a join ends when they cannot.
#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <stop_token>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/no_threads.h"
#include "session/session.h"
#include "session/session_frame.h"
#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// "WHO did not arrive within <some time> at 127.0.0.1:PORT<why>".
#define EXPECT_LATE(result, who, port, why)                                                   \
  do {                                                                                        \
    const auto& failing = (result);                                                           \
    ASSERT_FALSE(failing);                                                                    \
    EXPECT_EQ(failing.error().code, ErrorCode::kDeadlineExceeded);                            \
    EXPECT_THAT(failing.error().message,                                                      \
                AllOf(StartsWith(std::string(who) + " did not arrive within "),               \
                      EndsWith(" at 127.0.0.1:" + std::to_string(port) + std::string(why)))); \
  } while (false)

void expect_all_joined(Job& job) {
  job.wait();
  for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
    ASSERT_TRUE(job.result(rank)) << job.result(rank).error().message;
  }
}

Hello hello_of(const JoinOptions& options) {
  return {.identity = {.role = options.role, .role_rank = options.role_rank},
          .counts = options.counts,
          .must_match = options.must_match,
          .blob = options.blob};
}

// Collects what on_waiting says, by rank.
class Waits {
 public:
  std::function<void(std::string_view)> listener(std::uint32_t rank) {
    return [this, rank](std::string_view missing) {
      const std::lock_guard lock(mutex_);
      heard_[rank].emplace(missing);
    };
  }
  JoinOptions add_to(JoinOptions options) {
    options.on_waiting = listener(options.world_rank);
    options.waiting_interval = milliseconds(20);
    return options;
  }
  bool heard(std::uint32_t rank, const std::string& missing) {
    const std::lock_guard lock(mutex_);
    return heard_[rank].count(missing) > 0;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, std::set<std::string>> heard_;
};

// --- arriving ---

TEST(SessionJoinTest, TakesTheRanksInEveryOrder) {
  std::vector<std::uint32_t> order(4);
  std::iota(order.begin(), order.end(), 0);
  std::set<std::uint32_t> epochs;
  do {
    Job job(k2A2F);
    for (std::uint32_t rank : order) {
      job.start(rank);
      std::this_thread::sleep_for(milliseconds(2));  // only so that the orders do differ
    }
    expect_all_joined(job);
    epochs.insert(job[0].epoch());
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(job[rank].epoch(), job[0].epoch());
      EXPECT_EQ(job[rank].blob(3), "blob of attention rank 1");
      EXPECT_EQ(job[rank].blob(4), "");
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(epochs.size(), 24u) << "every join has its own epoch";
}

TEST(SessionJoinTest, TakesMoreRanksThanItTellsAtOnce) {
  Job job({.num_attention_ranks = 66, .num_ffn_ranks = 2});
  Waits waits;
  job.start(waits.add_to(job.options(1)));
  // Told only a while after the last of several arrivals.
  for (std::uint32_t rank = 2; rank < job.num_ranks() - 1; ++rank) {
    job.start(rank);
  }
  job.start(0);
  EXPECT_TRUE(eventually([&] { return waits.heard(1, "attention rank 65"); }));
  job.start(job.num_ranks() - 1);
  expect_all_joined(job);
}

TEST(SessionJoinTest, CarriesEveryByteOfEveryBlob) {
  Job job(k2A1F);
  const std::string largest(kBlobBytesMax, '\0');
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    JoinOptions options = job.options(rank);
    options.blob = rank == 1 ? "" : largest;
    job.start(options);
  }
  expect_all_joined(job);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(job[rank].blob(0), largest);
    EXPECT_EQ(job[rank].blob(1), "");
    EXPECT_EQ(job[rank].blob(2), largest);
  }
}

TEST(SessionJoinTest, NamesTheMissingRanksOnEveryRank) {
  Job job(k2A2F);
  Waits waits;
  for (std::uint32_t rank : {0u, 2u}) {
    JoinOptions options = waits.add_to(job.options(rank));
    job.start(options);
  }
  EXPECT_TRUE(eventually([&] {
    return waits.heard(0, "ffn rank 1, attention rank 1") &&
           waits.heard(2, "ffn rank 1, attention rank 1");
  }));
  job.start(1);
  EXPECT_TRUE(eventually(
      [&] { return waits.heard(0, "attention rank 1") && waits.heard(2, "attention rank 1"); }));
  job.start(3);
  expect_all_joined(job);
}

TEST(SessionJoinTest, NamesRankZeroWhereItCannotBeReached) {
  Job job(k1A1F);
  Waits waits;
  JoinOptions options = waits.add_to(job.options(1));
  job.start(options, Deadline::after(milliseconds(1200)));
  job.wait();
  EXPECT_TRUE(waits.heard(1, "ffn rank 0"));
  EXPECT_LATE(job.result(1), "ffn rank 0", job.port(), ": Connection refused (errno 111)");
}

TEST(SessionJoinTest, FailsOnAllRanksWhenTheDeadlineOfRankZeroPasses) {
  Job job(k2A2F);
  job.start(3);
  job.start(1);
  job.start(0, Deadline::after(seconds(1)));
  job.wait();
  for (std::uint32_t rank : {0u, 1u, 3u}) {
    EXPECT_LATE(job.result(rank), "attention rank 0", job.port(), "");
  }
}

TEST(SessionJoinTest, TriesOnceWhenTheDeadlineHasPassed) {
  Job job(k1A1F);
  job.start(0, Deadline::now());
  job.wait();
  EXPECT_LATE(job.result(0), "attention rank 0", job.port(), "");
}

TEST(SessionJoinTest, MissesARankAgainThatGaveUp) {
  Job job(k2A1F);
  Waits waits;
  JoinOptions hub = waits.add_to(job.options(0));
  job.start(hub);
  const Joined impatient = Session::join(job.options(1), Deadline::after(milliseconds(300)));
  EXPECT_LATE(impatient, "attention rank 1", job.port(), "");
  EXPECT_TRUE(eventually([&] { return waits.heard(0, "attention rank 0, attention rank 1"); }));
  job.start(1);
  job.start(2);
  expect_all_joined(job);
}

// When the time of all is up together, some are gone a moment before the others look.
TEST(SessionJoinTest, DoesNotBlameRanksThatCameAndLeft) {
  Job job(k2A2F);
  Waits waits;
  const auto all_hear = [&](std::vector<std::uint32_t> ranks, const std::string& missing) {
    return eventually([&] {
      return std::all_of(ranks.begin(), ranks.end(),
                         [&](std::uint32_t rank) { return waits.heard(rank, missing); });
    });
  };
  std::stop_source stop_first;
  JoinOptions first = waits.add_to(job.options(1));
  first.stop = stop_first.get_token();
  job.start(waits.add_to(job.options(0)), Deadline::after(seconds(3)));
  job.start(first);
  job.start(waits.add_to(job.options(2)), Deadline::after(seconds(2)));
  EXPECT_TRUE(all_hear({0, 1, 2}, "attention rank 1"));
  stop_first.request_stop();
  EXPECT_TRUE(all_hear({0, 2}, "ffn rank 1, attention rank 1"));
  job.wait();
  EXPECT_LATE(job.result(2), "attention rank 1", job.port(), "; ffn rank 1 arrived and left");
  EXPECT_LATE(job.result(0), "attention rank 1", job.port(),
              "; ffn rank 1, attention rank 0 arrived and left");
}

TEST(SessionJoinTest, SaysThatNobodyButTheOnesThatLeftIsMissing) {
  Job job(k2A1F);
  Waits waits;
  std::stop_source stop_first;
  JoinOptions first = waits.add_to(job.options(1));
  first.stop = stop_first.get_token();
  job.start(waits.add_to(job.options(0)), Deadline::after(seconds(2)));
  job.start(first);
  EXPECT_TRUE(eventually([&] { return waits.heard(0, "attention rank 1"); }));
  stop_first.request_stop();
  // Else the last one might come before the goodbye, and all would have met.
  EXPECT_TRUE(eventually([&] { return waits.heard(0, "attention rank 0, attention rank 1"); }));
  job.start(2);
  job.wait();
  for (std::uint32_t rank : {0u, 2u}) {
    ASSERT_FALSE(job.result(rank));
    EXPECT_EQ(job.result(rank).error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(job.result(rank).error().message,
                StartsWith("attention rank 0 arrived at 127.0.0.1:" + std::to_string(job.port()) +
                           ", left, and did not return within "));
  }
}

TEST(SessionJoinTest, NamesRankZeroWhereTheConnectionIsNotAnswered) {
  // A listener whose queue is full: the kernel drops further connections, which neither stand nor
  // fail. So it is, too, where the loopback interface went down.
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const base::Fd in_the_queue = connect_raw(port);
  EXPECT_LATE(Session::join(rank_options(1, k1A1F, port), Deadline::after(milliseconds(200))),
              "ffn rank 0", port, ": the connection is not answered");
}

// --- differences ---

// Three ranks agree; the fourth, once they are there, differs. It is refused, and the job goes on
// with the right one.
void expect_difference(const std::function<void(JoinOptions&)>& change,
                       const std::string& message) {
  SCOPED_TRACE(message);
  Job job(k2A2F);
  Waits waits;
  for (std::uint32_t rank : {0u, 1u, 2u}) {
    job.start(waits.add_to(job.options(rank)));
  }
  ASSERT_TRUE(eventually(
      [&] { return waits.heard(1, "attention rank 1") && waits.heard(2, "attention rank 1"); }));
  JoinOptions options = job.options(3);
  change(options);
  EXPECT_FAILS(Session::join(options, soon()), ErrorCode::kProtocolMismatch, message);
  EXPECT_TRUE(eventually([&] { return waits.heard(0, "attention rank 1; refused: " + message); }));
  job.start(3);
  expect_all_joined(job);
}

TEST(SessionJoinTest, RefusesARankThatDiffersByKeyValuesAndRanksAndWaitsOn) {
  expect_difference([](JoinOptions& options) { options.must_match[0].second = "4096"; },
                    "hidden_size differs: attention rank 1 has 4096, ffn rank 0 has 2048");
  expect_difference(
      [](JoinOptions& options) { options.must_match.erase(options.must_match.begin()); },
      "hidden_size differs: attention rank 1 has no value, ffn rank 0 has 2048");
  expect_difference(
      [](JoinOptions& options) { options.must_match.emplace_back("gate", "on attention"); },
      "gate differs: attention rank 1 has on attention, ffn rank 0 has no value");
  expect_difference(
      [](JoinOptions& options) {
        options.must_match = {{"num_layers", "28"}, {"hidden_size", std::string(300, '1')}};
      },
      "hidden_size differs: attention rank 1 has " + std::string(200, '1') +
          "..., ffn rank 0 has 2048; num_layers differs: attention rank 1 has 28, ffn rank 0 has "
          "27");
  expect_difference([](JoinOptions& options) { options.counts.num_attention_ranks = 3; },
                    "num_attention_ranks differs: attention rank 1 has 3, ffn rank 0 has 2");
  expect_difference(
      [](JoinOptions& options) {
        options.counts = {.num_attention_ranks = 8, .num_ffn_ranks = 3};
        options.role_rank = 5;
        options.world_rank = 8;
      },
      "num_attention_ranks differs: attention rank 5 has 8, ffn rank 0 has 2; num_ffn_ranks "
      "differs: attention rank 5 has 3, ffn rank 0 has 2");
}

TEST(SessionJoinTest, WhoWaitedInVainHearsWhoWasRefused) {
  Job job(k2A1F);
  job.start(0, Deadline::after(milliseconds(400)));
  job.start(1);
  JoinOptions odd = job.options(2);
  odd.must_match[0].second = "4096";
  const std::string message = "hidden_size differs: attention rank 1 has 4096, ffn rank 0 has 2048";
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_FAILS(Session::join(odd, soon()), ErrorCode::kProtocolMismatch, message);
  }
  job.wait();
  for (const std::uint32_t rank : {0u, 1u}) {
    EXPECT_LATE(job.result(rank), "attention rank 1", job.port(), "; refused: " + message);
  }
}

TEST(SessionJoinTest, RankZeroThatIsTheWrongOneRefusesAll) {
  Job job(k2A1F);
  JoinOptions odd = job.options(0);
  odd.must_match[0].second = "4096";
  job.start(odd, Deadline::after(milliseconds(400)));
  const std::string what = "hidden_size differs: ";
  const std::string ours = " has 2048, ffn rank 0 has 4096";
  for (const std::uint32_t rank : {1u, 2u}) {
    EXPECT_FAILS(Session::join(job.options(rank), soon()), ErrorCode::kProtocolMismatch,
                 what + "attention rank " + std::to_string(rank - 1) + ours);
  }
  job.wait();
  EXPECT_LATE(
      job.result(0), "attention rank 0, attention rank 1", job.port(),
      "; refused: " + what + "attention rank 0" + ours + "; " + what + "attention rank 1" + ours);
}

TEST(SessionJoinTest, ComparesTheProtocolVersion) {
  Job job(k2A1F);
  job.start(0);
  job.start(1);
  std::string hello = encode_hello(hello_of(job.options(2)));
  hello[4] = 9;
  hello += "a field of version 9";
  hello[8] = static_cast<char>(hello.size() - kHeaderBytes);
  const base::Fd other = connect_raw(job.port());
  send_raw(other, hello);
  ::shutdown(other.get(), SHUT_WR);
  EXPECT_EQ(read_to_end(other),
            encode_refused({ErrorCode::kProtocolMismatch,
                            "protocol version differs: attention rank 1 has 9, ffn rank 0 has 2"}));
  job.start(2);
  expect_all_joined(job);
}

// --- duplicates ---

TEST(SessionJoinTest, RefusesADuplicateAndWaitsOn) {
  Job job(k2A1F);
  Waits waits;
  JoinOptions first = waits.add_to(job.options(1));
  job.start(0);
  job.start(first);
  ASSERT_TRUE(eventually([&] { return waits.heard(1, "attention rank 1"); }));

  const Joined second = Session::join(job.options(1), soon());
  EXPECT_FAILS(second, ErrorCode::kInvalidArgument, "attention rank 0 is already present");
  // Also one whose values differ: it may be of another job, and must not end this one.
  JoinOptions other_job = job.options(1);
  other_job.must_match = {{"hidden_size", "512"}};
  EXPECT_FAILS(Session::join(other_job, soon()), ErrorCode::kInvalidArgument,
               "attention rank 0 is already present");

  job.start(2);
  expect_all_joined(job);
  EXPECT_FAILS(Session::join(job.options(2), soon()), ErrorCode::kInvalidArgument,
               "attention rank 1 is already present");
  EXPECT_TRUE(job[1].check_peers());
}

TEST(SessionJoinTest, RefusesASecondRankZero) {
  Job job(k1A1F);
  job.start(0);
  const base::Fd other = connect_raw(job.port());
  send_raw(other, encode_hello(hello_of(job.options(0))));
  ::shutdown(other.get(), SHUT_WR);
  EXPECT_EQ(read_to_end(other),
            encode_refused({ErrorCode::kInvalidArgument, "ffn rank 0 is already present"}));
  job.start(1);
  expect_all_joined(job);
}

TEST(SessionJoinTest, LetsTheNextIncarnationWaitForAJobThatIsStillEnding) {
  Job job(k2A1F);
  job.start_all();
  expect_all_joined(job);
  job[1].close();
  ASSERT_TRUE(eventually([&] { return job[0].peer_state(1) == PeerState::kLeft; }));
  EXPECT_LATE(Session::join(job.options(1), Deadline::after(milliseconds(300))), "ffn rank 0",
              job.port(),
              ": the job there has started, and attention rank 0 is no longer part of it");

  Joined early(tl::make_unexpected(Error{}));
  std::thread next([&] { early = Session::join(job.options(1), soon()); });
  job[0].close();
  job[2].close();
  job.start(0);
  job.start(2);
  job.wait();
  next.join();
  EXPECT_TRUE(early);
  EXPECT_TRUE(job.result(0));
  EXPECT_TRUE(job.result(2));
}

// --- strangers ---

TEST(SessionJoinTest, DropsWhoeverDoesNotSpeakTheProtocol) {
  Job job(k2A1F);
  job.start(0);
  job.start(1);
  const std::string hello = encode_hello(hello_of(job.options(2)));
  const std::vector<std::string> garbage = {
      "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
      "x",
      std::string(100'000, '\0'),
      std::string("\x16\x03\x01\x02\x00\x01\x00", 7),
      encode_goodbye(),
      encode_start(1),
      encode_header({.type = FrameType::kHello, .payload_bytes = 0xffffffff}),
      encode_header({.type = FrameType::kGathered, .payload_bytes = 1 << 20}),
      encode_header({.type = FrameType::kHello, .payload_bytes = 8}) + "\x01\x01\x01\x01whatever",
      hello.substr(0, hello.size() - 1),  // and then its end
  };
  for (const std::string& bytes : garbage) {
    const base::Fd stranger = connect_raw(job.port());
    send_raw(stranger, bytes);
    ::shutdown(stranger.get(), SHUT_WR);
    EXPECT_EQ(read_to_end(stranger), "") << "the hub said something to a stranger";
  }
  // A hello that is malformed at any byte ends the connection, and nothing else.
  for (std::size_t at = 0; at < kHeaderBytes + 18; ++at) {
    std::string changed = hello;
    changed[at] = static_cast<char>(0x7e);
    const base::Fd stranger = connect_raw(job.port());
    if (at == 4 || at == 5) {
      continue;  // the version: a difference, see ComparesTheProtocolVersion
    }
    if (at >= 16 && at < 28) {
      continue;  // the identity's and the counts' numbers: differences, too
    }
    send_raw(stranger, changed);
    ::shutdown(stranger.get(), SHUT_WR);
    EXPECT_EQ(read_to_end(stranger), "") << "byte " << at;
  }
  job.start(2);
  expect_all_joined(job);
}

TEST(SessionJoinTest, DropsASilentConnectionAfterAWhile) {
  Job job(k1A1F);
  JoinOptions options = job.options(0);
  options.hello_timeout = milliseconds(50);
  job.start(options);
  const base::Fd silent = connect_raw(job.port());
  const base::Fd half = connect_raw(job.port());
  send_raw(half, encode_hello(hello_of(job.options(1))).substr(0, 20));
  EXPECT_EQ(read_to_end(silent), "");
  EXPECT_EQ(read_to_end(half), "");
  job.start(1);
  expect_all_joined(job);
}

TEST(SessionJoinTest, BoundsTheNumberOfStrangers) {
  Job job(k1A1F);
  JoinOptions options = job.options(0);
  options.hello_timeout = seconds(600);
  job.start(options);
  std::vector<base::Fd> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(connect_raw(job.port()));
  }
  // The oldest gave way: all but 64.
  for (int i = 0; i < 300 - 64; ++i) {
    EXPECT_EQ(read_to_end(strangers[i]), "");
  }
  job.start(1);
  expect_all_joined(job);
  for (int i = 0; i < 100; ++i) {  // the same after the join
    strangers.push_back(connect_raw(job.port()));
  }
  EXPECT_EQ(read_to_end(strangers[336 - 64]), "");
  EXPECT_TRUE(job[1].barrier(Deadline::now()).error().code == ErrorCode::kDeadlineExceeded);
}

TEST(SessionJoinTest, LetsAFloodOfOneHostCostTheOthersNothing) {
  Job job(k1A1F);
  JoinOptions options = job.options(0);
  options.hello_timeout = seconds(600);
  job.start(options);
  // The oldest, and silent: on the flood's host it would be the first to give way.
  const base::Fd elsewhere = connect_raw(job.port(), "127.0.0.3");
  std::vector<base::Fd> flood;
  for (int i = 0; i < 300; ++i) {
    flood.push_back(connect_raw(job.port(), "127.0.0.2"));
  }
  for (int i = 0; i < 300 - 63; ++i) {
    EXPECT_EQ(read_to_end(flood[i]), "");
  }
  send_raw(elsewhere, encode_hello(hello_of(job.options(1))));
  job.wait();
  EXPECT_TRUE(job.result(0));
}

TEST(SessionJoinTest, TellsWhatListensInsteadOfRankZero) {
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);
  std::thread server([&] {
    const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
    send_raw(peer, "HTTP/1.1 400 Bad Request\r\n\r\n");
    read_to_end(peer);
  });
  const Joined joined = Session::join(rank_options(1, k1A1F, port), soon());
  server.join();
  EXPECT_FAILS(joined, ErrorCode::kProtocolMismatch,
               "what listens at 127.0.0.1:" + std::to_string(port) +
                   " does not speak the session protocol: not a session frame");
}

TEST(SessionJoinTest, WaitsForAnAnswerNoLongerThanItsDeadline) {
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);  // takes connections and says nothing
  EXPECT_LATE(Session::join(rank_options(1, k1A1F, port), Deadline::after(milliseconds(200))),
              "ffn rank 0", port, ": connected, but there is no answer yet");
}

// --- losses while joining ---

TEST(SessionJoinTest, FailsOnAllRanksWhenOneDies) {
  Job job(k2A2F);
  Waits waits;
  job.start(0);
  job.start(waits.add_to(job.options(1)));
  ASSERT_TRUE(eventually([&] { return waits.heard(1, "attention rank 0, attention rank 1"); }));
  {
    const base::Fd dies = connect_raw(job.port());
    send_raw(dies, encode_hello(hello_of(job.options(3))));
    char accepted = 0;
    ASSERT_EQ(::recv(dies.get(), &accepted, 1, 0), 1);
  }
  job.wait();
  for (std::uint32_t rank : {0u, 1u}) {
    EXPECT_FAILS(job.result(rank), ErrorCode::kPeerLost,
                 "attention rank 1 lost: its connection ended while ranks were still arriving");
  }
}

TEST(SessionJoinTest, FailsWhenRankZeroDiesAfterItAnswered) {
  // The last rank to arrive hears of nobody missing: its answer begins with the blobs.
  for (const std::string& answer :
       {encode_waiting({.world_ranks = {1}}), encode_peer({.world_rank = 0, .blob = "b"})}) {
    const std::uint16_t port = free_port();
    const base::Fd listener = listen_raw(port);
    std::thread server([&] {
      const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
      send_raw(peer, answer);
    });
    const Joined joined = Session::join(rank_options(2, k2A1F, port), soon());
    server.join();
    EXPECT_FAILS(joined, ErrorCode::kPeerLost,
                 "ffn rank 0 lost: its connection ended while ranks were still arriving");
  }
}

TEST(SessionJoinTest, RefusesAStartThatIsNotWhole) {
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);
  std::thread server([&] {
    const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
    send_raw(peer, encode_peer({.world_rank = 0, .blob = "b"}) + encode_start(1));
    read_to_end(peer);
  });
  const Joined joined = Session::join(rank_options(1, k1A1F, port), soon());
  server.join();
  ASSERT_FALSE(joined);
  EXPECT_THAT(joined.error().message, HasSubstr("a start without every rank's blob"));
}

// --- stopping ---

TEST(SessionJoinTest, EndsPromptlyWhenStopped) {
  for (std::uint32_t rank : {0u, 1u}) {
    for (const bool before : {true, false}) {
      Job job(k1A1F);
      std::stop_source source;
      JoinOptions options = job.options(rank);
      options.stop = source.get_token();
      if (before) {
        source.request_stop();
      }
      job.start(options, Deadline::never());
      source.request_stop();
      job.wait();
      EXPECT_FAILS(job.result(rank), ErrorCode::kFailedPrecondition, "closed");
    }
  }
}

TEST(SessionJoinTest, WaitsForTheReturnOfARankZeroThatWasStopped) {
  Job job(k2A1F);
  Waits waits;
  std::stop_source source;
  JoinOptions stopped = job.options(0);
  stopped.stop = source.get_token();
  std::thread stopped_hub([&] {
    EXPECT_FAILS(Session::join(stopped, Deadline::never()), ErrorCode::kFailedPrecondition,
                 "closed");
  });
  job.start(waits.add_to(job.options(1)));
  EXPECT_TRUE(eventually([&] { return waits.heard(1, "attention rank 1"); }));
  source.request_stop();
  stopped_hub.join();
  EXPECT_TRUE(eventually([&] { return waits.heard(1, "ffn rank 0"); }));
  job.start(0);
  job.start(2);
  expect_all_joined(job);
}

// --- addresses and options ---

TEST(SessionJoinTest, SaysThatThePortIsInUse) {
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);
  EXPECT_FAILS(
      Session::join(rank_options(0, k1A1F, port), soon()), ErrorCode::kInvalidArgument,
      "port " + std::to_string(port) + " on 127.0.0.1 is in use: another job? choose another port");
}

TEST(SessionJoinTest, HoldsThePortWhileTheSessionLives) {
  Job job(k1A1F);
  job.start_all();
  expect_all_joined(job);
  EXPECT_FAILS(Session::join(job.options(0), soon()), ErrorCode::kInvalidArgument,
               "port " + std::to_string(job.port()) +
                   " on 127.0.0.1 is in use: another job? choose another port");
}

TEST(SessionJoinTest, GivesThePortBackAtOnce) {
  const std::uint16_t port = free_port();
  for (int round = 0; round < 20; ++round) {
    Joined member(tl::make_unexpected(Error{}));
    std::thread other([&] { member = Session::join(rank_options(1, k1A1F, port), soon()); });
    const Joined hub = Session::join(rank_options(0, k1A1F, port), soon());
    other.join();
    ASSERT_TRUE(hub) << hub.error().message;
    ASSERT_TRUE(member) << member.error().message;
    (*hub)->close();
  }
}

TEST(SessionJoinTest, RefusesOptionsOutOfRange) {
  const auto problem = [](const std::function<void(JoinOptions&)>& change) {
    JoinOptions options = rank_options(1, k2A1F, 1239);
    change(options);
    const Joined joined = Session::join(options, Deadline::now());
    EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
    return joined.error().message;
  };
  EXPECT_EQ(problem([](JoinOptions& o) { o.port = 0; }), "port must be in 1..65535, got 0");
  EXPECT_EQ(problem([](JoinOptions& o) {
              o.host = "0.0.0.0";
              o.network.insecure = true;
            }),
            "host 0.0.0.0 is for listening; a rank connects to rank 0's own address");
  EXPECT_EQ(
      problem([](JoinOptions& o) { o.network.heartbeat_limit = seconds(1); }),
      "session heartbeat_limit must be at least three times the interval and at most 3600 s, got 1 "
      "s with an interval of 1 s");
  EXPECT_EQ(problem([](JoinOptions& o) { o.role_rank = 2; }),
            "role_rank is 2, expected less than 2");
  EXPECT_EQ(problem([](JoinOptions& o) { o.world_rank = 0; }), "world_rank is 0, expected 1");
  EXPECT_EQ(problem([](JoinOptions& o) { o.counts.num_ffn_ranks = 0; }),
            "num_ffn_ranks must be positive, got 0");
  EXPECT_EQ(problem([](JoinOptions& o) { o.counts.num_attention_ranks = kRanksMax; }),
            "a session has 1025 ranks, at most 1024");
  EXPECT_EQ(problem([](JoinOptions& o) { o.blob.resize(kBlobBytesMax + 1); }),
            "blob has 65537 bytes, at most 65536");
  EXPECT_EQ(problem([](JoinOptions& o) { o.must_match.resize(65); }),
            "must_match has 65 pairs, at most 64");
  EXPECT_EQ(problem([](JoinOptions& o) { o.must_match.emplace_back("hidden_size", ""); }),
            "must_match has 'hidden_size' twice");
  EXPECT_THAT(problem([](JoinOptions& o) { o.must_match.emplace_back("key", "a\nb"); }),
              HasSubstr("must_match: key or value of 'key'"));
  EXPECT_THAT(problem([](JoinOptions& o) {
                o.must_match.emplace_back("key", std::string(kValueBytesMax + 1, 'v'));
              }),
              HasSubstr("must_match: key or value of 'key'"));
  EXPECT_THAT(problem([](JoinOptions& o) { o.must_match.emplace_back("", "v"); }),
              HasSubstr("must_match: key or value of ''"));
}

// Leaves the process `count` more file descriptors while it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const base::Fd lowest_free(::dup(0));
    rlimit few = before_;
    few.rlim_cur = static_cast<rlim_t>(lowest_free.get()) + count;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(SessionJoinTest, FailsCleanlyWithoutFileDescriptors) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP()
      << "UBSan looks at memory through a pipe, which needs the descriptors taken away here";
#endif
  const std::uint16_t port = free_port();
  for (rlim_t count = 0; count < 2; ++count) {  // an event loop takes two
    for (std::uint32_t rank : {0u, 1u}) {
      const FewDescriptors few(count);
      const Joined joined = Session::join(rank_options(rank, k1A1F, port), soon());
      ASSERT_FALSE(joined);
      EXPECT_EQ(joined.error().code, ErrorCode::kUnavailable);
      EXPECT_THAT(joined.error().message, HasSubstr("Too many open files"));
    }
  }
  const FewDescriptors few(2);
  const Joined hub = Session::join(rank_options(0, k1A1F, port), soon());
  EXPECT_FAILS(hub, ErrorCode::kUnavailable,
               "cannot open a socket: Too many open files (errno 24)");
  EXPECT_LATE(Session::join(rank_options(1, k1A1F, port), Deadline::after(milliseconds(50))),
              "ffn rank 0", port, ": cannot open a socket: Too many open files (errno 24)");
}

TEST(SessionJoinTest, FailsCleanlyWithoutThreads) {
  const std::uint16_t port = free_port();
  for (std::uint32_t rank : {0u, 1u}) {
    const base::NoThreads none;
    const Joined joined = Session::join(rank_options(rank, k1A1F, port), soon());
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(joined.error().message, StartsWith("cannot start a thread: "));
  }
  Job job(k1A1F);
  job.start_all();
  expect_all_joined(job);
}

TEST(SessionJoinTest, AcceptsWhenDescriptorsAreThereAgain) {
  Job job(k1A1F);
  job.start(0);
  const base::Fd probe = connect_raw(job.port());  // it listens
  base::Fd waits(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto few = std::make_unique<FewDescriptors>(0);
  connect_raw_with(waits, job.port());
  send_raw(waits, encode_hello(hello_of(job.options(1))));
  std::this_thread::sleep_for(milliseconds(20));  // lets rank 0 try, and fail
  few.reset();
  job.wait();
  EXPECT_TRUE(job.result(0));
}

TEST(SessionJoinTest, SaysHowLongItWaited) {
  const auto waited = [](milliseconds time) {
    const auto joined = Session::join(rank_options(1, k1A1F, free_port()), Deadline::after(time));
    return joined ? "" : joined.error().message;
  };
  EXPECT_THAT(waited(milliseconds(1'012)), HasSubstr(" within 1 s at "));
  EXPECT_THAT(waited(milliseconds(965)), HasSubstr(" within 1 s at "));
  EXPECT_THAT(waited(milliseconds(1'212)), HasSubstr(" within 1.2 s at "));
  EXPECT_THAT(waited(milliseconds(0)), HasSubstr(" within 0 ms at "));
  EXPECT_THAT(waited(milliseconds(-5)), HasSubstr(" within 0 ms at "));
}

TEST(SessionJoinTest, NamesRanks) {
  EXPECT_EQ(rank_name(0, k2A2F), "ffn rank 0");
  EXPECT_EQ(rank_name(1, k2A2F), "ffn rank 1");
  EXPECT_EQ(rank_name(2, k2A2F), "attention rank 0");
  EXPECT_EQ(rank_name(3, k2A2F), "attention rank 1");
}

}  // namespace
}  // namespace afd::session
