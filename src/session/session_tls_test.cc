// Sessions under TLS: certificates that are right, and those that are not.
#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "session/certificates_testing.h"
#include "session/session.h"
#include "session/session_frame.h"
#include "session/session_test_support.h"
#include "session/tls.h"

namespace afd::session {
namespace {

using namespace testing;  // NOLINT: the tests' own helpers
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class SessionTlsTest : public ::testing::Test {
 protected:
  SessionTlsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "afd-tls-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    ours_ = std::make_unique<Authority>(folder_, "ours");
    good_ = ours_->host("good", "IP:127.0.0.1,DNS:node7");
  }
  ~SessionTlsTest() override { std::filesystem::remove_all(folder_); }

  static JoinOptions with(JoinOptions options, SessionConfig network) {
    options.network = std::move(network);
    return options;
  }

  std::string folder_;
  std::unique_ptr<Authority> ours_;
  SessionConfig good_;
};

void expect_all_joined(Job& job) {
  job.wait();
  for (std::uint32_t rank = 0; rank < job.num_ranks(); ++rank) {
    ASSERT_TRUE(job.result(rank)) << job.result(rank).error().message;
  }
}

TEST_F(SessionTlsTest, MeetsAndCarriesEverythingWithCertificatesOfOneAuthority) {
  for (const bool with_secret : {false, true}) {
    SessionConfig network = good_;
    if (with_secret) {
      network.secret_file = good_.tls_key_file;  // a file of mode 0600 like any
      std::filesystem::permissions(network.secret_file, std::filesystem::perms(0600));
    }
    Job job(k2A1F);
    for (const std::uint32_t rank : {2u, 1u, 0u}) {
      job.start(with(job.options(rank), network));
    }
    ASSERT_NO_FATAL_FAILURE(expect_all_joined(job));
    const std::string largest(kContributionBytesMax, 'x');
    for (int round = 0; round < 20; ++round) {
      std::thread other([&] { EXPECT_TRUE(job[2].all_gather("", soon())); });
      EXPECT_THAT(job[1].all_gather(largest, soon()).value(), ElementsAre(largest, ""));
      other.join();
    }
    job[2].give_up("enough");
    EXPECT_TRUE(eventually([&] { return job[1].peer_state(2) == PeerState::kGaveUp; }));
    job[0].abandon();
    EXPECT_TRUE(eventually([&] { return job[1].peer_state(0) == PeerState::kLost; }));
  }
}

TEST_F(SessionTlsTest, RefusesARankOfAnotherAuthorityByNameAndTheOthersWaitOn) {
  const Authority others(folder_, "others");
  SessionConfig stranger = others.host("stranger", "IP:127.0.0.1");
  Job job(k1A1F);
  job.start(with(job.options(0), good_));
  // It does not take rank 0's certificate.
  const Joined distrusts = Session::join(with(job.options(1), stranger), soon());
  ASSERT_FALSE(distrusts);
  EXPECT_EQ(distrusts.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_THAT(
      distrusts.error().message,
      AllOf(StartsWith("what listens at 127.0.0.1:" + std::to_string(job.port()) + ": TLS: "),
            HasSubstr("certificate verify failed")));
  // It does, and rank 0 does not take its own.
  stranger.tls_ca_file = good_.tls_ca_file;
  const Joined distrusted = Session::join(with(job.options(1), stranger), soon());
  ASSERT_FALSE(distrusted);
  EXPECT_EQ(distrusted.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_THAT(distrusted.error().message, HasSubstr("TLS: tlsv1 alert unknown ca"));
  job.start(with(job.options(1), good_));
  expect_all_joined(job);
}

TEST_F(SessionTlsTest, RefusesARankZeroWhoseCertificateIsOfAnotherHost) {
  Job job(k1A1F);
  std::stop_source source;
  JoinOptions hub = with(job.options(0), ours_->host("elsewhere", "IP:10.0.0.1,DNS:node8"));
  hub.stop = source.get_token();
  job.start(hub);
  const Joined joined = Session::join(with(job.options(1), good_), soon());
  ASSERT_FALSE(joined);
  EXPECT_THAT(joined.error().message,
              AllOf(HasSubstr("certificate verify failed"), HasSubstr("IP address mismatch")));
  source.request_stop();
}

TEST_F(SessionTlsTest, SaysNothingToARankWithoutIt) {
  Job job(k1A1F);
  job.start(with(job.options(0), good_));
  const base::Fd plain = connect_raw(job.port());
  send_raw(plain, encode_nonce({}));
  ::shutdown(plain.get(), SHUT_WR);
  const std::string answer = read_to_end(plain);
  EXPECT_EQ(answer.find("AFDS"), std::string::npos);
  EXPECT_LT(answer.size(), 16u) << "an alert";
  const base::Fd noise = connect_raw(job.port());
  send_raw(noise, std::string(100'000, '\x16'));
  ::shutdown(noise.get(), SHUT_WR);
  EXPECT_LT(read_to_end(noise).size(), 16u);
  job.start(with(job.options(1), good_));
  expect_all_joined(job);
}

TEST_F(SessionTlsTest, NamesAFileThatCannotBeUsed) {
  const auto problem = [&](std::string SessionConfig::*file, const std::string& path) {
    JoinOptions options = with(rank_options(0, k1A1F, free_port()), good_);
    options.network.*file = path;
    const Joined joined = Session::join(options, soon());
    EXPECT_EQ(joined.error().code, ErrorCode::kInvalidArgument);
    return joined.error().message;
  };
  EXPECT_THAT(problem(&SessionConfig::tls_certificate_file, "/none"),
              StartsWith("TLS certificate file /none cannot be used: "));
  EXPECT_THAT(problem(&SessionConfig::tls_key_file, "/none"),
              StartsWith("TLS key file /none cannot be used: "));
  EXPECT_THAT(problem(&SessionConfig::tls_ca_file, "/none"),
              StartsWith("TLS authority file /none cannot be used: "));
  EXPECT_THAT(problem(&SessionConfig::tls_key_file, ours_->host("b", "").tls_key_file),
              HasSubstr("key values mismatch"));
  EXPECT_EQ(problem(&SessionConfig::tls_ca_file, ""),
            "session tls_certificate_file, tls_key_file and tls_ca_file are given together or not "
            "at all");
}

// --- the stream alone ---

TEST_F(SessionTlsTest, CarriesBytesHoweverTheyArrive) {
  const TlsContext context = TlsContext::load(good_).value();
  for (const std::size_t piece : {std::size_t{1}, std::size_t{100}, std::size_t{1} << 20}) {
    const auto hub = TlsStream::accept(context);
    const auto member = TlsStream::connect(context, "node7");
    member->send("said before the handshake");
    std::string at_hub;
    std::string at_member;
    const auto carry = [piece](TlsStream& from, TlsStream& to, std::string& plain) {
      const std::string bytes = from.take_output();
      for (std::size_t at = 0; at < bytes.size(); at += piece) {
        const Result<void> received = to.receive(std::string_view(bytes).substr(at, piece), plain);
        ASSERT_TRUE(received) << received.error().message;
      }
      EXPECT_EQ(bytes.find("said"), std::string::npos) << "in the clear";
    };
    for (int i = 0; i < 4; ++i) {
      carry(*member, *hub, at_hub);
      carry(*hub, *member, at_member);
    }
    EXPECT_EQ(at_hub, "said before the handshake");
    const std::string large(std::size_t{1} << 20, 'l');
    hub->send(large);
    carry(*hub, *member, at_member);
    EXPECT_EQ(at_member, large);
  }
}

TEST_F(SessionTlsTest, RefusesBytesThatWereChangedOnTheWay) {
  const TlsContext context = TlsContext::load(good_).value();
  const auto hub = TlsStream::accept(context);
  const auto member = TlsStream::connect(context, "127.0.0.1");
  std::string plain;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(hub->receive(member->take_output(), plain));
    ASSERT_TRUE(member->receive(hub->take_output(), plain));
  }
  member->send("a frame");
  std::string bytes = member->take_output();
  ASSERT_FALSE(bytes.empty());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const Result<void> received = hub->receive(bytes, plain);
  ASSERT_FALSE(received);
  EXPECT_THAT(received.error().message, StartsWith("TLS: "));
  EXPECT_EQ(plain, "");
}

}  // namespace
}  // namespace afd::session
