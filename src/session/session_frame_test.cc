#include "session/session_frame.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "session/session_frame_recode.h"

namespace afd::session {
namespace {

using testing::recode;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Hello kHello{.identity = {.role = Role::kAttention, .role_rank = 1},
                   .counts = {.num_attention_ranks = 2, .num_ffn_ranks = 3},
                   .must_match = {{"hidden_size", "2048"}, {"dtype", ""}},
                   .addresses = {"10.0.0.2", "fe80::1%eth0"},
                   .blob = std::string("b\0b", 3)};

std::string payload_of(const std::string& frame) {
  return frame.substr(kHeaderBytes);
}

std::vector<std::string> one_of_each() {
  return {
      encode_hello(kHello),
      encode_waiting({.what = Collective::kGather, .round = 7, .world_ranks = {0, 2, 1023}}),
      encode_refused({ErrorCode::kProtocolMismatch, "hidden_size differs"}),
      encode_peer({.world_rank = 4, .addresses = {"node7"}, .blob = "blob"}),
      encode_start(0xdeadbeef),
      encode_barrier(3),
      encode_barrier_released(0xffffffff),
      encode_gather(5, "mine"),
      encode_gathered({.round = 5, .contributions = {"a", "", "ccc"}}),
      encode_query({.what = Collective::kBarrier, .round = 9}),
      encode_gone({.world_rank = 3, .how = Departure::kLost, .reason = "its connection ended"}),
      encode_gone({.world_rank = 3, .how = Departure::kGaveUp, .reason = "stopped"}),
      encode_goodbye(),
      encode_goodbye({.gave_up = true, .reason = "step 3: ffn rank 1 left"}),
      encode_nonce({1, 2, 3}),
      encode_proof({0xff, 0xfe}),
      encode_denied(Denial::kSecretDiffers),
  };
}

FrameHeader header_of(const std::string& frame) {
  return decode_header(std::string_view(frame).substr(0, kHeaderBytes)).value();
}

TEST(SessionFrameTest, HasTheBytesThatTheWireFormatPageShows) {
  EXPECT_EQ(encode_barrier(0x01020304),
            std::string("AFDS\x02\x00\x06\x00\x04\x00\x00\x00\x04\x03\x02\x01", 16));
  const std::string hello = encode_hello({.identity = {.role = Role::kFfn, .role_rank = 1},
                                          .counts = {.num_attention_ranks = 1, .num_ffn_ranks = 2},
                                          .must_match = {{"k", "v"}},
                                          .addresses = {"::1"},
                                          .blob = "b"});
  EXPECT_EQ(hello, std::string("AFDS\x02\x00\x01\x00\x22\x00\x00\x00"
                               "\x01\x00\x00\x00\x01\x00\x00\x00"
                               "\x01\x00\x00\x00\x02\x00\x00\x00"
                               "\x01\x00\x01\x00k\x01\x00v"
                               "\x01\x03::1"
                               "\x01\x00\x00\x00"
                               "b",
                               12 + 34));
}

TEST(SessionFrameTest, DecodesWhatItEncoded) {
  for (const std::string& frame : one_of_each()) {
    const FrameHeader header = header_of(frame);
    SCOPED_TRACE(to_string(header.type));
    EXPECT_EQ(header.version, kProtocolVersion);
    EXPECT_EQ(header.payload_bytes, frame.size() - kHeaderBytes);
    const Result<std::string> again = recode(header.type, payload_of(frame));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(*again, frame);
  }
  EXPECT_EQ(decode_hello(payload_of(encode_hello(kHello))).value(), kHello);
}

TEST(SessionFrameTest, RefusesEveryTruncationAndEveryExcess) {
  for (const std::string& frame : one_of_each()) {
    const FrameType type = header_of(frame).type;
    SCOPED_TRACE(to_string(type));
    const std::string payload = payload_of(frame);
    // Where the last field runs to the end, a shorter one is another valid text.
    const bool open_ended = type == FrameType::kRefused || type == FrameType::kPeer ||
                            type == FrameType::kGather || type == FrameType::kGone ||
                            (type == FrameType::kGoodbye && payload[0] == 1);
    for (std::size_t bytes = 0; bytes < payload.size(); ++bytes) {
      const Result<std::string> cut = recode(type, std::string_view(payload).substr(0, bytes));
      if (!cut) {
        EXPECT_EQ(cut.error().code, ErrorCode::kProtocolMismatch);
        EXPECT_THAT(cut.error().message, HasSubstr("malformed"));
      } else {
        EXPECT_TRUE(open_ended) << bytes << " of " << payload.size() << " bytes were enough";
      }
    }
    const Result<std::string> longer = recode(type, payload + "x");
    EXPECT_EQ(longer.has_value(), open_ended);
  }
}

TEST(SessionFrameTest, SurvivesEveryValueOfEveryByte) {
  for (const std::string& frame : one_of_each()) {
    const FrameType type = header_of(frame).type;
    const std::string payload = payload_of(frame);
    for (std::size_t at = 0; at < payload.size(); ++at) {
      for (int value = 0; value < 256; ++value) {
        std::string changed = payload;
        changed[at] = static_cast<char>(value);
        const Result<std::string> again = recode(type, changed);
        if (again) {
          EXPECT_EQ(payload_of(*again), changed) << "accepted, but not as it stands";
        }
      }
    }
  }
}

TEST(SessionFrameTest, RefusesEveryHeaderThatIsNotOne) {
  const std::string good = encode_header({.type = FrameType::kBarrier, .payload_bytes = 4});
  ASSERT_TRUE(decode_header(good));
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    EXPECT_FALSE(decode_header(std::string_view(good).substr(0, bytes)));
  }
  EXPECT_FALSE(decode_header(good + "x"));
  EXPECT_EQ(decode_header("HTTP/1.1 400").error().message, "not a session frame");
  EXPECT_EQ(decode_header(encode_header({.type = static_cast<FrameType>(13)})).error().message,
            "unknown frame type 13");
  EXPECT_EQ(decode_header(encode_header({.type = static_cast<FrameType>(0)})).error().message,
            "unknown frame type 0");
  EXPECT_EQ(decode_header(encode_header({.type = static_cast<FrameType>(31)})).error().message,
            "unknown frame type 31");
  EXPECT_EQ(decode_header(encode_header({.type = static_cast<FrameType>(35)})).error().message,
            "unknown frame type 35");
}

TEST(SessionFrameTest, TakesAnotherVersionOnlyWhereItMustBeNamed) {
  EXPECT_TRUE(decode_header(encode_header({.version = 9, .type = FrameType::kHello})));
  EXPECT_TRUE(decode_header(encode_header({.version = 9, .type = FrameType::kRefused})));
  EXPECT_TRUE(decode_header(encode_header({.version = 9, .type = FrameType::kNonce})));
  EXPECT_TRUE(decode_header(encode_header({.version = 9, .type = FrameType::kDenied})));
  EXPECT_FALSE(decode_header(encode_header({.version = 9, .type = FrameType::kProof})));
  EXPECT_EQ(decode_header(encode_header({.version = 9, .type = FrameType::kStart})).error().message,
            "protocol version is 9, expected 2");
  // Of a hello of another version only the identity is read.
  const std::string identity = payload_of(encode_hello(kHello)).substr(0, 8) + "whatever";
  EXPECT_EQ(decode_hello_identity(identity).value(), kHello.identity);
}

TEST(SessionFrameTest, LimitsTheLengthOfEveryType) {
  for (const std::string& frame : one_of_each()) {
    const FrameType type = header_of(frame).type;
    SCOPED_TRACE(to_string(type));
    const auto max = static_cast<std::uint32_t>(payload_bytes_max(type));
    EXPECT_TRUE(decode_header(encode_header({.type = type, .payload_bytes = max})));
    const auto longer = decode_header(encode_header({.type = type, .payload_bytes = max + 1}));
    ASSERT_FALSE(longer);
    EXPECT_EQ(longer.error().message, std::string(to_string(type)) + " frame of " +
                                          std::to_string(max + 1) + " bytes, at most " +
                                          std::to_string(max));
    EXPECT_FALSE(decode_header(encode_header({.type = type, .payload_bytes = 0xffffffff})));
  }
  Hello largest = kHello;
  largest.must_match.clear();
  for (std::size_t i = 0; i < kMustMatchPairsMax; ++i) {
    std::string key = std::to_string(i);
    key.resize(kKeyBytesMax, 'k');
    largest.must_match.emplace_back(key, std::string(kValueBytesMax, 'v'));
  }
  largest.addresses.assign(kAddressesMax, std::string(kAddressBytesMax, 'a'));
  largest.blob.assign(kBlobBytesMax, 'b');
  const std::string frame = encode_hello(largest);
  EXPECT_EQ(frame.size() - kHeaderBytes, payload_bytes_max(FrameType::kHello));
  EXPECT_EQ(decode_hello(payload_of(frame)).value(), largest);
}

TEST(SessionFrameTest, RefusesAHelloThatNoRankSays) {
  const auto problem = [](Hello hello) {
    const auto decoded = decode_hello(payload_of(encode_hello(hello)));
    return decoded ? "" : decoded.error().message;
  };
  const auto with = [](const std::function<void(Hello&)>& change) {
    Hello hello = kHello;
    change(hello);
    return hello;
  };
  EXPECT_EQ(problem(kHello), "");
  EXPECT_EQ(problem(with([](Hello& h) { h.identity.role_rank = 2; })),
            "malformed hello frame: role_rank out of range");
  EXPECT_EQ(problem(with([](Hello& h) { h.counts.num_ffn_ranks = 0; })),
            "malformed hello frame: rank counts out of range");
  EXPECT_EQ(problem(with([](Hello& h) { h.counts = {.num_attention_ranks = 0xffffffff}; })),
            "malformed hello frame: rank counts out of range");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.counts = {kRanksMax, 1};
            })),
            "malformed hello frame: rank counts out of range");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.must_match.assign(kMustMatchPairsMax + 1, {"k", ""});
            })),
            "malformed hello frame: too many must_match pairs");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.must_match = {{"", "v"}};
            })),
            "malformed hello frame: key length out of range");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.must_match = {{std::string(kKeyBytesMax + 1, 'k'), "v"}};
            })),
            "malformed hello frame: key length out of range");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.must_match = {{"k", std::string(kValueBytesMax + 1, 'v')}};
            })),
            "malformed hello frame: value length out of range");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.must_match = {{"k", "\x1b[2J"}};
            })),
            "malformed hello frame: unprintable character in must_match");
  EXPECT_EQ(problem(with([](Hello& h) {
              h.must_match = {{"k", "1"}, {"l", "2"}, {"k", "3"}};
            })),
            "malformed hello frame: a must_match key twice");
  EXPECT_EQ(problem(with([](Hello& h) { h.addresses.assign(kAddressesMax + 1, "a"); })),
            "malformed hello frame: too many addresses");
  EXPECT_EQ(problem(with([](Hello& h) { h.addresses = {""}; })),
            "malformed hello frame: an address that is none");
  EXPECT_EQ(problem(with([](Hello& h) { h.addresses = {"10.0.0.2\n"}; })),
            "malformed hello frame: an address that is none");
  EXPECT_EQ(problem(with([](Hello& h) { h.addresses = {"10.0.0.2 or so"}; })),
            "malformed hello frame: an address that is none");
  EXPECT_EQ(problem(with([](Hello& h) { h.blob.resize(kBlobBytesMax + 1); })),
            "malformed hello frame: blob too long");
}

TEST(SessionFrameTest, RefusesRanksAndCodesOutOfRange) {
  const auto refused = [](FrameType type, const std::string& frame) {
    return !recode(type, payload_of(frame));
  };
  EXPECT_TRUE(refused(FrameType::kWaiting, encode_waiting({.world_ranks = {}})));
  EXPECT_TRUE(refused(FrameType::kWaiting, encode_waiting({.world_ranks = {1, 1}})));
  EXPECT_TRUE(refused(FrameType::kWaiting, encode_waiting({.world_ranks = {2, 1}})));
  EXPECT_TRUE(refused(FrameType::kWaiting, encode_waiting({.world_ranks = {kRanksMax}})));
  EXPECT_TRUE(refused(FrameType::kPeer, encode_peer({.world_rank = kRanksMax})));
  EXPECT_TRUE(refused(FrameType::kGone, encode_gone({.world_rank = kRanksMax})));
  const auto gone = [](std::string reason) {
    return encode_gone({.world_rank = 1, .how = Departure::kLost, .reason = std::move(reason)});
  };
  EXPECT_FALSE(refused(FrameType::kGone, gone("ab")));
  EXPECT_TRUE(refused(FrameType::kGone, gone("a\nb")));
  EXPECT_TRUE(refused(FrameType::kGone, gone("\xc3\xa9")));
  EXPECT_TRUE(refused(FrameType::kGone, encode_gone({.world_rank = 1, .reason = "none"})));
  EXPECT_TRUE(
      refused(FrameType::kGone, encode_gone({.world_rank = 1, .how = static_cast<Departure>(3)})));
  EXPECT_TRUE(refused(FrameType::kGoodbye, encode_goodbye({.reason = "none"})));
  EXPECT_TRUE(refused(FrameType::kGoodbye, encode_goodbye({.gave_up = true, .reason = "\n"})));
  EXPECT_TRUE(refused(FrameType::kGoodbye, encode_header({.type = FrameType::kGoodbye})));
  EXPECT_TRUE(refused(FrameType::kGoodbye, encode_goodbye().substr(0, kHeaderBytes) + "\x02"));
  EXPECT_TRUE(refused(FrameType::kStart, encode_start(0)));
  EXPECT_TRUE(refused(FrameType::kQuery, encode_query({.what = Collective::kJoin})));
  EXPECT_TRUE(refused(FrameType::kGathered, encode_gathered({.contributions = {}})));
  EXPECT_TRUE(
      refused(FrameType::kGathered,
              encode_gathered({.contributions = {std::string(kContributionBytesMax + 1, 'x')}})));
  EXPECT_TRUE(
      refused(FrameType::kGather, encode_gather(0, std::string(kContributionBytesMax + 1, 'x'))));
  EXPECT_TRUE(refused(FrameType::kRefused, encode_refused({ErrorCode::kInternal, "\x07"})));
  EXPECT_TRUE(refused(FrameType::kPeer, encode_peer({.addresses = {" "}})));
  EXPECT_TRUE(refused(FrameType::kDenied, encode_denied(static_cast<Denial>(0))));
  EXPECT_TRUE(refused(FrameType::kDenied, encode_denied(static_cast<Denial>(5))));
}

TEST(SessionFrameTest, CutsATextThatIsTooLong) {
  const std::string frame =
      encode_refused({ErrorCode::kInternal, std::string(kTextBytesMax + 1, 'x')});
  EXPECT_EQ(decode_refused(payload_of(frame)).value().message, std::string(kTextBytesMax, 'x'));
}

constexpr FrameSet kAny = kAllFrames;

TEST(FrameBufferTest, FindsFramesHoweverTheBytesArrive) {
  std::string stream;
  for (const std::string& frame : one_of_each()) {
    stream += frame;
  }
  for (std::size_t piece : {std::size_t{1}, std::size_t{5}, std::size_t{13}, stream.size()}) {
    FrameBuffer buffer(kAny);
    std::string seen;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      buffer.append(std::string_view(stream).substr(at, piece));
      while (true) {
        const auto frame = buffer.next();
        ASSERT_TRUE(frame) << frame.error().message;
        if (!*frame) {
          break;
        }
        seen += encode_header((*frame)->header);
        seen += (*frame)->payload;
      }
    }
    EXPECT_EQ(seen, stream);
  }
}

TEST(FrameBufferTest, KnowsAStrangerByItsFirstByte) {
  FrameBuffer buffer(kAny);
  buffer.append("G");
  EXPECT_EQ(buffer.next().error().message, "not a session frame");
}

TEST(FrameBufferTest, RefusesAFrameThatMayNotComeBeforeItHasArrived) {
  FrameBuffer buffer(frame_bit(FrameType::kHello));
  buffer.append(encode_header({.type = FrameType::kGathered, .payload_bytes = 1000}));
  EXPECT_EQ(buffer.next().error().message, "unexpected gathered frame");

  FrameBuffer hello(frame_bit(FrameType::kHello));
  hello.append(encode_header({.type = FrameType::kHello, .payload_bytes = 0x7fffffff}));
  EXPECT_THAT(hello.next().error().message, HasSubstr("hello frame of 2147483647 bytes, at most"));
}

TEST(FrameBufferTest, WaitsForTheRest) {
  const std::string frame = encode_barrier(1);
  FrameBuffer buffer(kAny);
  for (std::size_t at = 0; at + 1 < frame.size(); ++at) {
    buffer.append(frame.substr(at, 1));
    EXPECT_EQ(buffer.next().value(), std::nullopt);
  }
  buffer.append(frame.substr(frame.size() - 1));
  EXPECT_EQ(buffer.next().value()->payload, payload_of(frame));
}

TEST(FrameBufferTest, TellsTheTypeOfAFrameThatMayNotCome) {
  FrameBuffer buffer(frame_bit(FrameType::kNonce));
  const std::string hello = encode_hello(kHello);
  buffer.append(hello.substr(0, kHeaderBytes - 1));
  EXPECT_EQ(buffer.next_type(), std::nullopt);
  buffer.append(hello.substr(kHeaderBytes - 1, 1));
  EXPECT_EQ(buffer.next_type(), FrameType::kHello);
  EXPECT_EQ(buffer.next().error().message, "unexpected hello frame");
}

TEST(FrameBufferTest, HandsOutTheSealBehindAPayload) {
  const std::string frame = encode_barrier(1);
  FrameBuffer buffer(kAny);
  buffer.append(frame + frame + "12");
  ASSERT_TRUE(buffer.next().value());
  buffer.expect_seals(3);  // from the second on, of which bytes are here already
  EXPECT_EQ(buffer.next().value(), std::nullopt);
  buffer.append("3");
  const auto sealed = buffer.next().value();
  ASSERT_TRUE(sealed);
  EXPECT_EQ(sealed->sealed, frame);
  EXPECT_EQ(sealed->payload, payload_of(frame));
  EXPECT_EQ(sealed->seal, "123");
  EXPECT_EQ(buffer.next().value(), std::nullopt);
}

}  // namespace

}  // namespace afd::session
