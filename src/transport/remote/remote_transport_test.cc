#include "transport/remote/remote_transport.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "transport/remote/fake_wire.h"
#include "transport/remote/remote_message.h"

namespace afd::transport {
namespace {

using std::chrono::milliseconds;
using testing::FakeNet;
using testing::FakeWireMaker;
using ::testing::HasSubstr;

constexpr std::uint32_t kFfn = 0;
constexpr std::uint32_t kAttention = 1;
constexpr std::uint64_t kBytes = 64 * 1024;

ChannelGeometry geometry() {
  return {.num_peers = 1,
          .num_stages = 2,
          .a2f_bytes = {kBytes, 4096, 0, 0},
          .f2a_bytes = {kBytes, 0, 0, 0},
          .control_slots = 4,
          .control_bytes_max = 100};
}

/// One FFN rank and one attention rank.
class RemoteTransportTest : public ::testing::Test {
 protected:
  RemoteTransportTest() {
    ffn_ = make(kFfn);
    attention_ = make(kAttention);
    const ChannelGeometry sizes = geometry();
    const Result<std::string> ffn_blob = ffn_->create(&sizes);
    const Result<std::string> attention_blob = attention_->create(nullptr);
    EXPECT_TRUE(ffn_blob && attention_blob);
    ffn_blob_ = *ffn_blob;
    attention_blob_ = *attention_blob;
  }

  ~RemoteTransportTest() override { say_bye(); }

  /// So that neither lingers for the other.
  void say_bye() {
    for (Transport* transport : {attention_.get(), ffn_.get()}) {
      if (transport != nullptr) {
        transport->leave_peers();
      }
    }
    if (attention_ != nullptr && ffn_ != nullptr) {
      ffn_->has_drained(kAttention);
      attention_->has_drained(kFfn);
      ffn_->has_drained(kAttention);
    }
  }

  void meet() {
    const ChannelGeometry sizes = geometry();
    const Result<Channel*> attached = attention_->attach(kFfn, ffn_blob_, &sizes);
    ASSERT_TRUE(attached) << attached.error().message;
    channel_ = *attached;
    ASSERT_TRUE(ffn_->attach(kAttention, attention_blob_, nullptr));
    own_ = ffn_->own_channel();
    attention_->set_doorbell(channel_, Direction::kA2f, 0, kFfn);
    ffn_->set_doorbell(own_, Direction::kF2a, 0, kAttention);
    ffn_->set_control_sender(kAttention);
    for (Transport* transport : {ffn_.get(), attention_.get()}) {
      transport->seal();
      transport->set_on_event(
          {&num_events_, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }});
    }
    EXPECT_TRUE(await(*ffn_, [this] { return ffn_->is_reached(kAttention); }));
    EXPECT_TRUE(await(*attention_, [this] { return attention_->is_reached(kFfn); }));
  }

  std::unique_ptr<Transport> make(std::uint32_t world_rank) {
    return make_remote_transport({.world_rank = world_rank,
                                  .wire_maker = std::make_unique<FakeWireMaker>(
                                      net_, "rank " + std::to_string(world_rank))});
  }

  template <typename Holds>
  static bool await(Transport& transport, Holds holds, milliseconds limit = milliseconds(5'000)) {
    return transport.wait(
        {&holds, [](void* argument) { return (*static_cast<Holds*>(argument))(); }},
        Deadline::after(limit));
  }

  static std::vector<std::byte> pattern(std::uint64_t size, int seed) {
    std::vector<std::byte> bytes(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      bytes[i] = static_cast<std::byte>((i * 31 + static_cast<std::uint64_t>(seed)) >> 2);
    }
    return bytes;
  }

  static TransferHeader header(std::uint32_t layer_idx) {
    return {.step = 1, .epoch = 7, .layer_idx = layer_idx};
  }

  void publish(Channel& channel, LaneId lane, std::span<const std::byte> rows,
               std::span<const std::byte> other = {}, std::uint32_t layer_idx = 0) {
    std::array<PutPart, kPartsMax> parts{};
    parts[0] = {.source = rows.data(), .offset_bytes = 64, .size_bytes = rows.size()};
    parts[1] = {.source = other.data(), .offset_bytes = 0, .size_bytes = other.size()};
    channel.publish(lane, header(layer_idx), parts, {});
  }

  /// A message that no transport of this test sends, with the FFN rank's token.
  void forge(const RemoteHeader& forged, std::span<const std::byte> data = {}) {
    const RemoteHeaderBytes bytes = encode_remote_header(forged);
    net_.post("rank 0", {{bytes.begin(), bytes.end()}, {data.begin(), data.end()}});
    ffn_->has_drained(kAttention);  // makes progress
  }
  RemoteHeader forged_piece() const {
    RemoteHeader piece{.kind = RemoteMessageKind::kPiece,
                       .token = ffn_token(),
                       .source = kAttention,
                       .channel = kFfn,
                       .sequence = 1,
                       .size_bytes = 64,
                       .total_bytes = 64,
                       .rows_bytes = 64,
                       .transfer = header(0)};
    return piece;
  }
  std::uint64_t ffn_token() const {
    // "afd-remote 2 0011223344556677 ..."
    const std::string digits = ffn_blob_.substr(ffn_blob_.find(" 2 ") + 3, 16);
    std::uint64_t token = 0;
    for (std::size_t i = 8; i-- > 0;) {
      token = token << 8 | std::stoul(digits.substr(2 * i, 2), nullptr, 16);
    }
    return token;
  }

  FakeNet net_;
  std::unique_ptr<Transport> ffn_;
  std::unique_ptr<Transport> attention_;
  std::string ffn_blob_;
  std::string attention_blob_;
  Channel* own_ = nullptr;
  Channel* channel_ = nullptr;
  std::atomic<int> num_events_{0};
};

TEST_F(RemoteTransportTest, CarriesRowsBothWaysAtTheirPlaces) {
  meet();
  for (std::uint32_t round = 1; round <= 3; ++round) {
    const LaneId there{Direction::kA2f, 1, 0};
    const auto rows = pattern(10'000, static_cast<int>(round));
    const auto logits = pattern(2'000, static_cast<int>(round) + 50);
    publish(*channel_, there, rows, logits, round);
    ASSERT_TRUE(await(*ffn_, [&] { return own_->poll(there).complete; }));
    EXPECT_EQ(own_->poll(there).sequence, round);
    EXPECT_EQ(own_->header(there).layer_idx, round);
    EXPECT_EQ(std::memcmp(own_->landing(Direction::kA2f, 1, 0) + 64, rows.data(), rows.size()), 0);
    EXPECT_EQ(std::memcmp(own_->landing(Direction::kA2f, 1, 1), logits.data(), logits.size()), 0);

    const LaneId back{Direction::kF2a, 1, 0};
    publish(*own_, back, rows, {}, round);
    ASSERT_TRUE(await(*attention_, [&] { return channel_->poll(back).complete; }));
    EXPECT_EQ(std::memcmp(channel_->landing(Direction::kF2a, 1, 0) + 64, rows.data(), rows.size()),
              0);
  }
  EXPECT_EQ(num_events_, 0);
}

TEST_F(RemoteTransportTest, LargeMessagesMayBeFetched) {
  net_.fetch_from(500);
  meet();
  const LaneId lane{Direction::kA2f, 0, 0};
  const auto rows = pattern(kBytes - 64, 3);
  publish(*channel_, lane, rows);
  ASSERT_TRUE(await(*ffn_, [&] { return own_->poll(lane).complete; }));
  EXPECT_EQ(std::memcmp(own_->landing(Direction::kA2f, 0, 0) + 64, rows.data(), rows.size()), 0);
}

TEST_F(RemoteTransportTest, RowsAreProducedPieceByPieceAtTheirPlace) {
  meet();
  const LaneId lane{Direction::kA2f, 0, 0};
  constexpr std::uint64_t kRow = 96;  // divides neither the piece nor the total evenly
  constexpr std::uint64_t kSize = 100 * kRow;
  struct Producer {
    std::uint64_t next = 0;
    static void produce(void* argument, std::byte* target, std::uint64_t offset,
                        std::uint64_t size) {
      auto& self = *static_cast<Producer*>(argument);
      EXPECT_EQ(offset, self.next);
      EXPECT_EQ(size % kRow, 0u);
      self.next = offset + size;
      const auto all = pattern(kSize, 9);
      std::memcpy(target, all.data() + offset, size);
    }
  } producer;
  std::array<PutPart, kPartsMax> parts{};
  parts[0] = {.source = channel_->landing(Direction::kA2f, 0, 0), .size_bytes = kSize};
  channel_->publish(lane, header(0), parts, {&producer, &Producer::produce, kRow});
  ASSERT_TRUE(await(*ffn_, [&] { return own_->poll(lane).complete; }));
  EXPECT_EQ(std::memcmp(own_->landing(Direction::kA2f, 0, 0), pattern(kSize, 9).data(), kSize), 0);
}

TEST_F(RemoteTransportTest, WhatCouldNotGoAtOnceGoesWhileNobodyWaits) {
  meet();
  net_.hold();
  const LaneId lane{Direction::kA2f, 0, 0};
  const auto rows = pattern(5'000, 4);
  publish(*channel_, lane, rows);
  net_.release();
  // The attention rank calls nothing more.
  ASSERT_TRUE(await(*ffn_, [&] { return own_->poll(lane).complete; }));
  EXPECT_EQ(std::memcmp(own_->landing(Direction::kA2f, 0, 0) + 64, rows.data(), rows.size()), 0);
}

TEST_F(RemoteTransportTest, ASleeperIsWokenByArrivalsAndByWake) {
  meet();
  const LaneId lane{Direction::kA2f, 0, 0};
  std::atomic<bool> came{false};
  std::thread receiver([&] {
    came = await(
        *ffn_, [&] { return own_->poll(lane).complete; }, milliseconds(20'000));
  });
  while (ffn_->wait_stats().sleeps == 0) {
    std::this_thread::yield();
  }
  publish(*channel_, lane, pattern(100, 1));
  receiver.join();
  EXPECT_TRUE(came);

  std::thread waiter([&] {
    came = await(
        *ffn_, [] { return false; }, milliseconds(20'000));
  });
  while (ffn_->wait_stats().sleeps < 2) {
    std::this_thread::yield();
  }
  const auto start = std::chrono::steady_clock::now();
  ffn_->wake();
  waiter.join();
  EXPECT_FALSE(came);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(10'000));
}

TEST_F(RemoteTransportTest, ControlMessagesAreCountedAndCredited) {
  meet();
  const auto message = pattern(40, 2);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(channel_->try_send_control(message));
  }
  const Result<void> full = channel_->try_send_control(message);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kWouldBlock);
  ASSERT_TRUE(await(*ffn_, [&] { return !own_->peek_control()->empty(); }));
  EXPECT_EQ(std::memcmp(own_->peek_control()->data(), message.data(), message.size()), 0);
  own_->pop_control();
  EXPECT_TRUE(channel_->try_send_control(message));
  EXPECT_EQ(num_events_, 0);
  EXPECT_FALSE(channel_->try_send_control({}));
  EXPECT_FALSE(channel_->try_send_control(pattern(101, 1)));
}

TEST_F(RemoteTransportTest, WhatAPeerSentBeforeItLeftIsThereOnceItHasDrained) {
  meet();
  const LaneId lane{Direction::kA2f, 0, 0};
  publish(*channel_, lane, pattern(3'000, 6));
  EXPECT_FALSE(own_->poll(lane).complete);  // nobody has made progress there
  attention_->leave_peers();
  EXPECT_TRUE(ffn_->has_drained(kAttention));
  EXPECT_TRUE(own_->poll(lane).complete);
  EXPECT_EQ(ffn_->why_broken(kAttention), std::nullopt);
  attention_.reset();
  EXPECT_EQ(ffn_->why_broken(kAttention), std::nullopt) << "it left in order";
}

TEST_F(RemoteTransportTest, ABrokenConnectionIsToldWithItsReason) {
  meet();
  net_.remove("rank 0");
  publish(*channel_, {Direction::kA2f, 0, 0}, pattern(100, 6));
  EXPECT_EQ(num_events_, 1);
  EXPECT_EQ(attention_->why_broken(kFfn), "nobody is there");
  EXPECT_TRUE(attention_->has_drained(kFfn));
  publish(*channel_, {Direction::kA2f, 1, 0}, pattern(100, 6));  // waits for nobody
}

TEST_F(RemoteTransportTest, StrangersAreNotHeard) {
  meet();
  RemoteHeader stranger = forged_piece();
  stranger.token ^= 1;
  forge(stranger, pattern(64, 1));
  net_.post("rank 0", {pattern(17, 1), pattern(64, 1)});
  EXPECT_FALSE(await(
      *ffn_, [&] { return own_->poll({}).sequence != 0; }, milliseconds(20)));
  EXPECT_EQ(ffn_->fault(), std::nullopt);
  forge(forged_piece(), pattern(64, 1));  // but with the token it would be
  EXPECT_EQ(own_->poll({}).sequence, 1u);
}

TEST_F(RemoteTransportTest, WhatCannotBeIsAFaultThatNamesTheSender) {
  struct Wrong {
    const char* what;
    void (*change)(RemoteHeader&);
  };
  meet();
  const Wrong wrongs[] = {
      {"not its own", [](RemoteHeader& h) { h.direction = Direction::kF2a; }},
      {"stage 2", [](RemoteHeader& h) { h.stage_idx = 2; }},
      {"peer 1", [](RemoteHeader& h) { h.peer_idx = 1; }},
      {"offset 65536 of part 0", [](RemoteHeader& h) { h.offset_bytes = kBytes; }},
      {"of part 2, which has 0", [](RemoteHeader& h) { h.part = 2; }},
      {"transfer 3 after 0", [](RemoteHeader& h) { h.sequence = 3; }},
      {"said to be 32", [](RemoteHeader& h) { h.size_bytes = 32; }},
      {"channel that is not here", [](RemoteHeader& h) { h.channel = 9; }},
      {"no peer of this rank", [](RemoteHeader& h) { h.source = 5; }},
  };
  for (const Wrong& wrong : wrongs) {
    SCOPED_TRACE(wrong.what);
    RemoteHeader piece = forged_piece();
    wrong.change(piece);
    forge(piece, pattern(64, 1));
    const std::optional<Error> fault = ffn_->fault();
    ASSERT_TRUE(fault);
    EXPECT_EQ(fault->code, ErrorCode::kProtocolMismatch);
    EXPECT_THAT(fault->message, HasSubstr(wrong.what));
    EXPECT_THAT(fault->message, HasSubstr(piece.source == 5 ? "world rank 5" : "world rank 1"));
    EXPECT_EQ(own_->poll({}).sequence, 0u) << "nothing of it shows";
    // The first fault stays: a new pair for the next one.
    say_bye();
    ffn_.reset();
    attention_.reset();
    ffn_ = make(kFfn);
    attention_ = make(kAttention);
    const ChannelGeometry sizes = geometry();
    ffn_blob_ = *ffn_->create(&sizes);
    attention_blob_ = *attention_->create(nullptr);
    meet();
  }
}

TEST_F(RemoteTransportTest, MoreBytesThanATransferHasAreAFault) {
  meet();
  RemoteHeader piece = forged_piece();
  piece.total_bytes = 128;
  piece.rows_bytes = 64;
  forge(piece, pattern(64, 1));
  EXPECT_EQ(ffn_->fault(), std::nullopt);
  piece.part = 1;
  forge(piece, pattern(64, 1));
  EXPECT_EQ(ffn_->fault(), std::nullopt);
  EXPECT_TRUE(own_->poll({}).complete);
  forge(piece, pattern(64, 1));
  ASSERT_TRUE(ffn_->fault());
  EXPECT_THAT(ffn_->fault()->message, HasSubstr("more bytes"));
}

TEST_F(RemoteTransportTest, AControlMessageOutOfTurnIsAFault) {
  meet();
  const std::vector<std::byte> message = pattern(30, 4);
  RemoteHeader control{.kind = RemoteMessageKind::kControl,
                       .token = ffn_token(),
                       .source = kAttention,
                       .channel = kFfn,
                       .sequence = 1,
                       .size_bytes = message.size()};
  forge(control, message);
  EXPECT_EQ(ffn_->fault(), std::nullopt);
  control.sequence = 3;
  forge(control, message);
  ASSERT_TRUE(ffn_->fault());
  EXPECT_THAT(ffn_->fault()->message, HasSubstr("control message 3 after 1"));
}

TEST_F(RemoteTransportTest, CreditForTheEndThatSendsNoneIsAFault) {
  meet();
  forge({.kind = RemoteMessageKind::kCredit,
         .token = ffn_token(),
         .source = kAttention,
         .channel = kFfn,
         .sequence = 0});
  ASSERT_TRUE(ffn_->fault());
  EXPECT_THAT(ffn_->fault()->message, HasSubstr("control messages that it does not get"));
}

TEST_F(RemoteTransportTest, ABlobThatIsNoneIsRefused) {
  const ChannelGeometry sizes = geometry();
  for (const std::string& blob :
       {std::string(), std::string("afd-window 2 shm x 4096"), std::string("afd-remote 2 0123"),
        ffn_blob_ + "0", ffn_blob_.substr(0, 20), ffn_blob_ + "zz",
        "afd-remote 2 0011223344556677 " + std::string(40'000, 'a') + " - - -"}) {
    const Result<Channel*> attached = attention_->attach(kFfn, blob, &sizes);
    ASSERT_FALSE(attached) << blob.substr(0, 60);
    EXPECT_EQ(attached.error().code, ErrorCode::kProtocolMismatch);
  }
}

TEST_F(RemoteTransportTest, TwoThreadsPublishAndReceiveAtOnce) {
  meet();
  constexpr std::uint32_t kRounds = 200;
  const auto rows = pattern(3'000, 8);
  std::thread server([&] {
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      for (std::uint16_t stage = 0; stage < 2; ++stage) {
        const LaneId in{Direction::kA2f, stage, 0};
        ASSERT_TRUE(await(
            *ffn_, [&] { return own_->poll(in).complete && own_->poll(in).sequence == round; }));
        publish(*own_, {Direction::kF2a, stage, 0}, rows);
      }
    }
  });
  // One thread sends stage 1 while another receives stage 0.
  std::atomic<std::uint32_t> received{0};
  std::thread receiver([&] {
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      for (std::uint16_t stage = 0; stage < 2; ++stage) {
        const LaneId out{Direction::kF2a, stage, 0};
        ASSERT_TRUE(await(*attention_, [&] {
          return channel_->poll(out).complete && channel_->poll(out).sequence == round;
        }));
      }
      received = round;
    }
  });
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    publish(*channel_, {Direction::kA2f, 0, 0}, rows);
    publish(*channel_, {Direction::kA2f, 1, 0}, rows);
    while (received < round) {
      std::this_thread::yield();
    }
  }
  receiver.join();
  server.join();
  EXPECT_EQ(num_events_, 0);
}

}  // namespace
}  // namespace afd::transport
