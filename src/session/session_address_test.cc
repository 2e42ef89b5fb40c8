// Where ranks meet: addresses, names, ports.
#include <future>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "session/address.h"
#include "session/session.h"
#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::HasSubstr;
using ::testing::StartsWith;

void expect_all_joined(Job& job) {
  job.wait();
  for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
    ASSERT_TRUE(job.result(rank)) << job.result(rank).error().message;
  }
}

TEST(SessionAddressTest, MeetsOnLoopbackUnlessToldHowRanksKnowEachOther) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "localhost", "::1"}) {
    SCOPED_TRACE(host);
    Job job(k1A1F);
    for (std::uint32_t rank : {0u, 1u}) {
      JoinOptions options = job.options(rank);
      options.host = host;
      job.start(options);
    }
    expect_all_joined(job);
    EXPECT_EQ(job[1].peer_host(0), host == std::string("localhost") ? "127.0.0.1" : host);
  }
  for (const char* host :
       {"0.0.0.0", "::", "10.0.0.1", "node7", "127.0.0.1.example.org", "::ffff:127.0.0.1"}) {
    SCOPED_TRACE(host);
    for (std::uint32_t rank : {0u, 1u}) {
      JoinOptions options = rank_options(rank, k1A1F, free_port());
      options.host = host;
      EXPECT_FAILS(Session::join(options, soon()), ErrorCode::kInvalidArgument,
                   std::string("host ") + host +
                       " is not a loopback address: beyond loopback every rank needs the job's "
                       "shared secret (secret_file), or has to be told to go without (insecure)");
    }
  }
  JoinOptions bound = rank_options(0, k1A1F, free_port());
  bound.network.bind_host = "0.0.0.0";
  EXPECT_THAT(Session::join(bound, soon()).error().message,
              StartsWith("host 0.0.0.0 is not a loopback address"));
  bound.host = "";
  bound.network.bind_host = "";
  EXPECT_FAILS(Session::join(bound, soon()), ErrorCode::kInvalidArgument, "host is empty");
}

TEST(SessionAddressTest, ListensAtEveryAddressWhenToldToGoWithoutASecret) {
  for (const char* everywhere : {"0.0.0.0", "::"}) {
    Job job(k2A1F);
    JoinOptions hub = job.options(0);
    hub.network.bind_host = everywhere;
    hub.network.insecure = true;
    hub.network.addresses = {"10.9.8.7", "node7"};
    job.start(hub);
    job.start(1);
    JoinOptions by_another = job.options(2);
    by_another.host = "127.0.0.2";
    by_another.network.addresses = {"10.9.8.6"};
    job.start(by_another);
    ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(job[rank].peer_addresses(0), ::testing::ElementsAre("10.9.8.7", "node7"));
      EXPECT_EQ(job[rank].peer_host(1), "127.0.0.1") << "the connection's own";
      EXPECT_EQ(job[rank].peer_host(2), "10.9.8.6");
      EXPECT_EQ(job[rank].peer_host(3), "");
    }
    // A rank elsewhere is lost with its host's name.
    job[2].abandon();
    EXPECT_TRUE(eventually([&] { return !job[0].check_peers(); }));
    EXPECT_FAILS(job[0].check_peers(), ErrorCode::kPeerLost,
                 "attention rank 1 at 10.9.8.6 lost: its connection ended");
  }
}

TEST(SessionAddressTest, TakesAFreePortAndTellsIt) {
  JoinOptions hub = rank_options(0, k1A1F, 0);
  std::promise<std::uint16_t> told;
  hub.on_listening = [&](std::uint16_t port) { told.set_value(port); };
  Joined joined(tl::make_unexpected(Error{}));
  std::thread rank_zero([&] { joined = Session::join(hub, soon()); });
  const Joined member = Session::join(rank_options(1, k1A1F, told.get_future().get()), soon());
  rank_zero.join();
  EXPECT_TRUE(joined);
  EXPECT_TRUE(member);
}

TEST(SessionAddressTest, MeetsAtAName) {
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof(name) - 1), 0);
  if (is_loopback(name) || !resolve(name, 1, soon(), {})) {
    GTEST_SKIP() << "needs a name of this machine that the resolver knows";
  }
  Job job(k1A1F);
  for (std::uint32_t rank : {1u, 0u}) {
    JoinOptions options = job.options(rank);
    options.host = name;
    options.network.insecure = true;
    job.start(options);
  }
  expect_all_joined(job);
}

TEST(SessionAddressTest, WaitsForANameThatNobodyKnowsNoLongerThanItsDeadline) {
  JoinOptions options = rank_options(1, k1A1F, 1239);
  options.host = "rank0.invalid";  // no resolver knows one (RFC 6761)
  options.network.insecure = true;
  options.waiting_interval = milliseconds(20);
  std::string missing;
  options.on_waiting = [&](std::string_view who) { missing = who; };
  const Joined late = Session::join(options, Deadline::after(milliseconds(300)));
  ASSERT_FALSE(late);
  EXPECT_EQ(missing, "ffn rank 0") << "it was asked for once";
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.error().message, HasSubstr("host rank0.invalid"));

  std::stop_source source;
  options.stop = source.get_token();
  std::promise<void> waits;
  options.on_waiting = [&, told = false](std::string_view) mutable {
    if (!std::exchange(told, true)) {
      waits.set_value();
    }
  };
  Joined stopped(tl::make_unexpected(Error{}));
  std::thread rank([&] { stopped = Session::join(options, Deadline::never()); });
  waits.get_future().wait();  // it was told no at least once
  source.request_stop();
  rank.join();
  EXPECT_FAILS(stopped, ErrorCode::kFailedPrecondition, "closed");

  JoinOptions hub = rank_options(0, k1A1F, free_port());
  hub.network.bind_host = "rank0.invalid";
  hub.network.insecure = true;
  const Joined nowhere = Session::join(hub, soon());
  ASSERT_FALSE(nowhere);
  EXPECT_THAT(nowhere.error().message, HasSubstr("host rank0.invalid has no address"));
}

}  // namespace
}  // namespace afd::session
