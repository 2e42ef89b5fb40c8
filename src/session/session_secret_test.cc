// Sessions whose ranks share a secret, and those who do not know it.
#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "session/session.h"
#include "session/session_frame.h"
#include "session/session_test_support.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kRight = "the secret of this job";
constexpr std::string_view kWrong = "a secret of another job";

// A folder with a file for each secret.
class SecretTest : public ::testing::Test {
 protected:
  SecretTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "afd-secrets-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~SecretTest() override { std::filesystem::remove_all(folder_); }

  std::string file_with(std::string_view secret) const {
    const std::string path = folder_ / std::to_string(std::hash<std::string_view>()(secret));
    if (!std::filesystem::exists(path)) {  // a rank may be reading it
      std::ofstream(path) << secret;
      std::filesystem::permissions(path, std::filesystem::perms(0600));
    }
    return path;
  }
  JoinOptions with_secret(JoinOptions options, std::string_view secret = kRight) const {
    options.network.secret_file = file_with(secret);
    return options;
  }
  void start(Job& job, std::uint32_t rank) const { job.start(with_secret(job.options(rank))); }

 private:
  std::filesystem::path folder_;
};

Hello hello_of(const JoinOptions& options) {
  return {.identity = {.role = options.role, .role_rank = options.role_rank},
          .counts = options.counts,
          .must_match = options.must_match,
          .blob = options.blob};
}

void expect_all_joined(Job& job) {
  job.wait();
  for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
    ASSERT_TRUE(job.result(rank)) << job.result(rank).error().message;
  }
}

std::string refusal(const Joined& joined) {
  if (joined) {
    return "joined";
  }
  EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
  return joined.error().message;
}

TEST_F(SecretTest, IsProvedByEveryRankOfAJob) {
  Job job(k2A2F);
  for (const std::uint32_t rank : {3u, 2u, 1u, 0u}) {
    start(job, rank);
  }
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
  // Everything after it carries its seal, of every length.
  const std::string largest(kContributionBytesMax, 'x');
  for (int round = 0; round < 20; ++round) {
    std::thread other([&] { EXPECT_TRUE(job[3].all_gather("", soon())); });
    EXPECT_THAT(job[2].all_gather(largest, soon()).value(), ElementsAre(largest, ""));
    other.join();
  }
  EXPECT_EQ(job[1].blob(3), "blob of attention rank 1");
  job[3].give_up("enough");
  EXPECT_TRUE(eventually([&] { return job[2].peer_state(3) == PeerState::kGaveUp; }));
  EXPECT_EQ(job[2].departure_text(3), "attention rank 1 gave up: enough");
}

TEST_F(SecretTest, ThatDiffersIsRefusedByNameAndTheOthersWaitOn) {
  Job job(k2A1F);
  start(job, 0);
  start(job, 1);
  const JoinOptions wrong = with_secret(job.options(2), kWrong);
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(refusal(Session::join(wrong, soon())),
              "the shared secret in " + wrong.network.secret_file +
                  " differs from ffn rank 0's at 127.0.0.1:" + std::to_string(job.port()));
  }
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(logged, HasSubstr("host=127.0.0.1 why=its secret differs"));
  EXPECT_EQ(logged.find("refused"), logged.rfind("refused a connection")) << "once:\n" << logged;
  start(job, 2);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
  EXPECT_THAT(refusal(Session::join(wrong, soon())), HasSubstr("differs")) << "after the join";
  EXPECT_TRUE(job[1].check_peers());
}

TEST_F(SecretTest, IsAskedForByNameOnTheSideThatHasNone) {
  Job job(k1A1F);
  start(job, 0);
  const std::string there = "ffn rank 0 at 127.0.0.1:" + std::to_string(job.port());
  EXPECT_EQ(refusal(Session::join(job.options(1), soon())),
            there + " asks for a shared secret, and this rank was given none");
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));

  Job open(k1A1F);
  open.start(0);
  EXPECT_EQ(refusal(Session::join(with_secret(open.options(1)), soon())),
            "ffn rank 0 at 127.0.0.1:" + std::to_string(open.port()) +
                " was given no shared secret, and this rank was");
  open.start(1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(open));
}

TEST_F(SecretTest, IsReadBeforeAnythingElseHappens) {
  JoinOptions options = rank_options(0, k1A1F, free_port());
  options.network.secret_file = "/nonexistent/secret";
  EXPECT_THAT(refusal(Session::join(options, soon())),
              StartsWith("secret file /nonexistent/secret cannot be opened"));
}

TEST_F(SecretTest, IsAskedForBeforeTheRestOfAHelloIsRead) {
  Job job(k1A1F);
  start(job, 0);
  const base::Fd stranger = connect_raw(job.port());
  send_raw(stranger, encode_header({.type = FrameType::kHello, .payload_bytes = 1000}));
  EXPECT_EQ(read_frame(stranger), encode_denied(Denial::kSecretNeeded));
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
}

TEST_F(SecretTest, NamesTheProtocolVersionToARankOfAnother) {
  Job job(k1A1F);
  start(job, 0);
  std::string nonce = encode_nonce({});
  nonce[4] = 9;
  const base::Fd stranger = connect_raw(job.port());
  send_raw(stranger, nonce);
  EXPECT_EQ(read_frame(stranger), encode_denied(Denial::kOtherVersion));
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));

  // The other way round.
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);
  std::thread server([&] {
    const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
    std::string denied = encode_denied(Denial::kOtherVersion);
    denied[4] = 9;
    send_raw(peer, denied);
    read_to_end(peer);
  });
  const Joined joined = Session::join(with_secret(rank_options(1, k1A1F, port)), soon());
  server.join();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_EQ(joined.error().message,
            "protocol version differs: this rank has 2, ffn rank 0 at 127.0.0.1:" +
                std::to_string(port) + " has 9");
}

TEST_F(SecretTest, IsNotShownByWhatWasSaidOnAnotherConnection) {
  Job job(k1A1F);
  start(job, 0);
  const Nonce nonce{1, 2, 3};
  RawProver first(job.port(), Secret(kRight));
  first.exchange_nonces(nonce);
  const std::string proof = encode_proof(first.keys().member_proof);
  ASSERT_TRUE(first.prove());

  RawProver replay(job.port(), Secret(kRight));
  replay.exchange_nonces(nonce);
  send_raw(replay.fd(), proof);
  EXPECT_EQ(read_frame(replay.fd()), encode_denied(Denial::kSecretDiffers));
  // One that says it without waiting for rank 0's nonce has no more of it.
  const base::Fd blind = connect_raw(job.port());
  send_raw(blind, encode_nonce(nonce) + proof);
  ::shutdown(blind.get(), SHUT_WR);
  EXPECT_THAT(read_to_end(blind), ::testing::EndsWith(encode_denied(Denial::kSecretDiffers)));
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
}

TEST_F(SecretTest, IsNotShownByAMirror) {
  const std::uint16_t port = free_port();
  const base::Fd listener = listen_raw(port);
  std::string heard;
  std::thread mirror([&] {
    const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
    for (int i = 0; i < 2; ++i) {
      const std::string frame = read_frame(peer);
      send_raw(peer, frame);
    }
    heard = read_to_end(peer);
  });
  const Joined joined = Session::join(with_secret(rank_options(1, k1A1F, port)), soon());
  mirror.join();
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_EQ(joined.error().message, "what listens at 127.0.0.1:" + std::to_string(port) +
                                        " does not know the shared secret");
  EXPECT_EQ(heard, "") << "the rank said something to who has not proved anything";
}

TEST_F(SecretTest, IsNotShownByWhoeverListensInsteadOfRankZero) {
  for (const std::string& answer :
       {encode_nonce({}) + encode_proof({}), encode_start(1), encode_proof({}),
        encode_refused({ErrorCode::kInternal, "a text of theirs"}), std::string("HTTP/1.1 400\r\n"),
        encode_waiting({.world_ranks = {1}}), encode_nonce({}) + encode_nonce({})}) {
    const std::uint16_t port = free_port();
    const base::Fd listener = listen_raw(port);
    std::thread server([&] {
      const base::Fd peer(::accept(listener.get(), nullptr, nullptr));
      send_raw(peer, answer);
      read_to_end(peer);
    });
    const Joined joined = Session::join(with_secret(rank_options(1, k1A1F, port)), soon());
    server.join();
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().code, ErrorCode::kProtocolMismatch);
    EXPECT_THAT(joined.error().message, StartsWith("what listens at "));
    EXPECT_THAT(joined.error().message, ::testing::Not(HasSubstr("a text of theirs")));
  }
}

// --- strangers ---

TEST_F(SecretTest, KeepsOutWhoeverSaysSomethingElseFirst) {
  Job job(k1A1F);
  start(job, 0);
  const std::string nonce = encode_nonce({});
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'), encode_proof({}),
        encode_goodbye(), nonce.substr(0, nonce.size() - 1),
        encode_header({.type = FrameType::kNonce, .payload_bytes = 33}),
        encode_header({.type = FrameType::kNonce, .payload_bytes = 0xffffffff}),
        encode_header({.type = FrameType::kNonce, .payload_bytes = 31}) + std::string(31, 'n')}) {
    const base::Fd stranger = connect_raw(job.port());
    send_raw(stranger, bytes);
    ::shutdown(stranger.get(), SHUT_WR);
    EXPECT_EQ(read_to_end(stranger), "") << "rank 0 said something to a stranger";
  }
  // After the nonce only a proof, and after the proof only a hello that carries its seal.
  for (const std::string& bytes :
       {nonce, encode_hello(hello_of(job.options(1))),
        encode_header({.type = FrameType::kProof, .payload_bytes = 33})}) {
    RawProver stranger(job.port(), Secret(kRight));
    stranger.exchange_nonces();
    send_raw(stranger.fd(), bytes);
    EXPECT_EQ(read_to_end(stranger.fd()), "");
  }
  const std::string hello = encode_hello(hello_of(job.options(1)));
  for (const std::string& seal : {std::string(kProofBytes, 's'), FrameSeal(Proof{}).seal(hello)}) {
    RawProver stranger(job.port(), Secret(kRight));
    stranger.exchange_nonces();
    ASSERT_TRUE(stranger.prove());
    stranger.send_with_seal(hello, seal);
    EXPECT_EQ(read_to_end(stranger.fd()), "");
  }
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
}

TEST_F(SecretTest, DropsAStrangerThatTakesItsTime) {
  Job job(k1A1F);
  JoinOptions options = with_secret(job.options(0));
  options.hello_timeout = milliseconds(100);
  job.start(options);
  // The time counts from the connection's first moment, whatever is said meanwhile.
  const base::Fd silent = connect_raw(job.port());
  RawProver proving(job.port(), Secret(kRight));
  proving.exchange_nonces();
  RawProver proven(job.port(), Secret(kRight));
  proven.exchange_nonces();
  ASSERT_TRUE(proven.prove());
  Hello hello = hello_of(job.options(1));
  hello.blob.assign(kBlobBytesMax, 'b');
  const std::string frame = encode_hello(hello);
  std::size_t said = 0;
  char byte = 0;
  EXPECT_TRUE(eventually([&] {  // a byte each millisecond
    send_raw(proven.fd(), frame.substr(said++, 1));
    return ::recv(proven.fd().get(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
  EXPECT_LT(said, frame.size());
  EXPECT_EQ(read_to_end(silent), "");
  EXPECT_EQ(read_to_end(proving.fd()), "");
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
}

// Among those that have said a nonce it is no matter of order who gives way: else a flood that says
// one, too, would only have to be fast.
TEST_F(SecretTest, LetsAnyOfThoseGiveWayThatAreHalfTheWay) {
  constexpr int kStrangersMax = 64;
  Job job(k1A1F);
  JoinOptions hub = with_secret(job.options(0));
  hub.hello_timeout = seconds(600);
  job.start(hub);
  std::vector<std::unique_ptr<RawProver>> provers;
  for (int i = 0; i < 2 * kStrangersMax; ++i) {
    provers.push_back(std::make_unique<RawProver>(job.port(), Secret(kRight)));
    provers.back()->exchange_nonces();
  }
  int num_left_of_the_first = 0;
  for (int i = 0; i < kStrangersMax; ++i) {
    char byte = 0;
    const ssize_t count = ::recv(provers[i]->fd().get(), &byte, 1, MSG_DONTWAIT);
    num_left_of_the_first += count < 0 ? 1 : 0;
  }
  EXPECT_GT(num_left_of_the_first, 0) << "the oldest gave way, one after the other";
  start(job, 1);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
}

TEST_F(SecretTest, ReadsWhatAStrangerSaidBeforeItGivesWay) {
  Job job(k2A1F);
  for (const std::uint32_t rank : {0u, 1u, 2u}) {
    start(job, rank);
  }
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
  // These are further: who is silent gives way first.
  std::vector<std::unique_ptr<RawProver>> provers;
  for (int i = 0; i < 10; ++i) {
    provers.push_back(std::make_unique<RawProver>(job.port(), Secret(kRight)));
    provers.back()->exchange_nonces();
  }
  // Rank 0's thread stands still, so that it finds everything at once.
  std::promise<void> stands_still;
  std::promise<void> go_on;
  job[0].set_on_change([&, told = false]() mutable {
    if (!std::exchange(told, true)) {
      stands_still.set_value();
      go_on.get_future().wait();
    }
  });
  job[2].close();
  stands_still.get_future().wait();
  const base::Fd speaks = connect_raw(job.port());
  send_raw(speaks, encode_nonce({}));
  std::vector<base::Fd> silent;
  for (int i = 0; i < 100; ++i) {
    silent.push_back(connect_raw(job.port()));
  }
  go_on.set_value();
  EXPECT_TRUE(decode_nonce(read_frame(speaks).substr(kHeaderBytes)));
}

std::string random_bytes(std::mt19937& random) {
  std::string bytes(random() % 300, '\0');
  for (char& c : bytes) {
    c = static_cast<char>(random());
  }
  // Some begin as a frame does.
  constexpr std::array<FrameType, 4> kTypes = {FrameType::kNonce, FrameType::kProof,
                                               FrameType::kHello, FrameType::kGathered};
  if (random() % 2 == 0) {
    bytes = encode_header({.type = kTypes[random() % kTypes.size()],
                           .payload_bytes = static_cast<std::uint32_t>(random() % 64)}) +
            bytes;
  }
  return bytes;
}

TEST_F(SecretTest, LetsAThousandRandomStreamsDisturbNeitherJoinNorJob) {
  constexpr int kNumStreams = 1'000;
  Job job(k2A2F);
  start(job, 0);
  start(job, 1);
  std::mt19937 random(7);
  std::vector<base::Fd> open;  // half of them stay
  for (int i = 0; i < kNumStreams; ++i) {
    base::Fd stranger = connect_raw(job.port());
    send_raw(stranger, random_bytes(random));
    if (i % 2 == 0) {
      open.push_back(std::move(stranger));
    }
    if (i == kNumStreams / 2) {
      start(job, 2);
    }
  }
  start(job, 3);
  ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));

  std::atomic<bool> over{false};
  std::vector<std::thread> ranks;
  std::atomic<int> num_rounds{0};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      // The ranks of a role agree on when to stop: the first one says so.
      for (bool go_on = true; go_on;) {
        const auto said = job[rank].all_gather(over ? "stop" : "go", soon());
        ASSERT_TRUE(said) << said.error().message;
        go_on = said->front() == "go";
        num_rounds += 1;
      }
      EXPECT_TRUE(job[rank].barrier(soon()));
    });
  }
  for (int i = 0; i < kNumStreams; ++i) {
    base::Fd stranger = connect_raw(job.port());
    send_raw(stranger, random_bytes(random));
    if (i % 2 == 0) {
      open.push_back(std::move(stranger));
    }
  }
  over = true;
  for (std::thread& rank : ranks) {
    rank.join();
  }
  EXPECT_GT(num_rounds.load(), 0);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(job[rank].check_peers());
  }
}

TEST_F(SecretTest, LetsARankInWhileAFloodGoesHalfTheWay) {
  Job job(k1A1F);
  JoinOptions hub = with_secret(job.options(0));
  hub.hello_timeout = seconds(600);  // time frees no place
  job.start(hub);
  std::atomic<bool> over{false};
  std::atomic<int> num_connections{0};
  std::thread flood([&] {
    std::vector<base::Fd> open;
    while (!over) {
      open.push_back(connect_raw(job.port()));
      send_raw(open.back(), encode_nonce({}));
      num_connections += 1;
      if (open.size() > 200) {
        open.erase(open.begin());
      }
    }
  });
  EXPECT_TRUE(eventually([&] { return num_connections > 100; }));
  start(job, 1);
  job.wait();
  over = true;
  flood.join();
  EXPECT_TRUE(job.result(0));
  EXPECT_TRUE(job.result(1));
}

}  // namespace
}  // namespace afd::session
