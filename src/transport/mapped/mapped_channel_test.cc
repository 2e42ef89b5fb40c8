// The channel over both kinds of memory, with all ranks as threads of this process.
#include "transport/mapped/mapped_channel.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/fence.h"
#include "transport/mapped/test_group.h"

namespace afd::transport {
namespace {

constexpr LaneId kA2fLane{.direction = Direction::kA2f};
constexpr std::array<PutPart, kPartsMax> kNothing{};

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    byte = static_cast<std::byte>(random());
  }
  return bytes;
}

TransferHeader header_of(std::uint32_t layer_idx) {
  TransferHeader header;
  header.step = 1'000'000'007ULL * layer_idx;
  header.epoch = 11;
  header.layer_idx = layer_idx;
  header.stage_idx = 3;
  header.source_rank = 5;
  header.num_rows = layer_idx * 2;
  header.row_offset = layer_idx * 3;
  header.row_elements = 2048;
  header.dtype_code = 4;
  header.dtype_bits = 16;
  header.parts = 0b1011;
  header.aux_dtype_bits = 32;
  header.aux_elements = 64;
  header.topk_elements = 6;
  header.reserved = 9;
  return header;
}

class MappedChannelTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, MappedChannelTest, ::testing::Values(Kind::kInproc, Kind::kShm),
                         kind_name);

TEST_P(MappedChannelTest, AFreshLaneHasCarriedNothing) {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 4096;
  const Group group = connect(GetParam(), geometry);
  const LaneState state = group.ffn_channel().poll(kA2fLane);
  EXPECT_EQ(state.sequence, 0U);
  EXPECT_FALSE(state.complete);
  EXPECT_EQ(state.bytes_ready, 0U);
  EXPECT_EQ(group.ffn_channel().header(kA2fLane).epoch, 0U);
}

TEST_P(MappedChannelTest, RowsArriveExactlyWhereTheyBelong) {
  constexpr std::uint64_t kCapacity = 3 * 1024 * 1024 + 17;
  ChannelGeometry geometry;
  geometry.num_stages = 2;
  geometry.a2f_bytes[0] = kCapacity;
  const Group group = connect(GetParam(), geometry);
  std::mt19937 random(3);
  for (std::uint32_t round = 1; round <= 60; ++round) {
    const LaneId lane{.direction = Direction::kA2f, .stage_idx = 1};
    std::byte* const landing = group.ffn_channel().landing(Direction::kA2f, 1, 0);
    std::vector<std::byte> expected(landing, landing + kCapacity);
    // Sizes of all orders of magnitude; hardly any is a multiple of a line.
    const std::uint64_t size =
        std::min<std::uint64_t>(random() % (std::uint64_t{1} << (random() % 22 + 1)), kCapacity);
    const std::uint64_t offset = random() % (kCapacity - size + 1);
    const std::vector<std::byte> payload = random_bytes(random, size);
    std::copy(payload.begin(), payload.end(),
              expected.begin() + static_cast<std::ptrdiff_t>(offset));

    group.to_ffn[0]->publish(lane, header_of(round), rows(payload.data(), offset, size), {});

    const LaneState state = group.ffn_channel().poll(lane);
    EXPECT_EQ(state.sequence, round);
    EXPECT_TRUE(state.complete);
    EXPECT_EQ(state.bytes_ready, LaneState::kAllBytes);
    EXPECT_EQ(group.ffn_channel().header(lane), header_of(round));
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), landing))
        << size << " bytes at " << offset;
  }
  EXPECT_EQ(group.ffn_channel().poll(kA2fLane).sequence, 0U) << "the other stage is untouched";
}

TEST_P(MappedChannelTest, AllPartsOfBothDirectionsAreSeparate) {
  ChannelGeometry geometry;
  geometry.num_peers = 2;
  geometry.num_stages = 2;
  geometry.a2f_bytes = {1000, 200, 30, 4};
  geometry.f2a_bytes = {500, 60, 7, 8};
  const Group group = connect(GetParam(), geometry);
  std::mt19937 random(5);
  struct Sent {
    LaneId lane;
    std::array<std::vector<std::byte>, kPartsMax> parts;
    std::array<std::uint64_t, kPartsMax> offsets;
  };
  std::vector<Sent> all;
  for (const Direction direction : {Direction::kA2f, Direction::kF2a}) {
    const auto& bytes = direction == Direction::kA2f ? geometry.a2f_bytes : geometry.f2a_bytes;
    for (std::uint16_t stage = 0; stage < 2; ++stage) {
      for (std::uint16_t peer = 0; peer < 2; ++peer) {
        Sent sent{.lane = {.direction = direction, .stage_idx = stage, .peer_idx = peer}};
        std::array<PutPart, kPartsMax> parts;
        for (std::size_t part = 0; part < kPartsMax; ++part) {
          sent.offsets[part] = bytes[part] / 2 * peer;
          sent.parts[part] = random_bytes(random, bytes[part] / 2);
          parts[part] = {.source = sent.parts[part].data(),
                         .offset_bytes = sent.offsets[part],
                         .size_bytes = bytes[part] / 2};
        }
        Channel& channel = direction == Direction::kA2f ? *group.to_ffn[peer] : group.ffn_channel();
        channel.publish(sent.lane, header_of(peer + 1U), parts, {});
        all.push_back(std::move(sent));
      }
    }
  }
  for (const Sent& sent : all) {
    Channel& channel = sent.lane.direction == Direction::kA2f ? group.ffn_channel()
                                                              : *group.to_ffn[sent.lane.peer_idx];
    EXPECT_TRUE(channel.poll(sent.lane).complete);
    EXPECT_EQ(channel.header(sent.lane), header_of(sent.lane.peer_idx + 1U));
    for (std::size_t part = 0; part < kPartsMax; ++part) {
      EXPECT_TRUE(std::equal(
          sent.parts[part].begin(), sent.parts[part].end(),
          channel.landing(sent.lane.direction, sent.lane.stage_idx, part) + sent.offsets[part]));
    }
  }
}

TEST_P(MappedChannelTest, WhatASourceProducesShowsPieceByPiece) {
  struct Producer {
    const Channel* receiver;
    std::uint64_t row_bytes;
    std::uint32_t sequence;
    std::uint64_t produced = 0;
    std::uint64_t num_pieces = 0;
  };
  for (const std::uint64_t row_bytes : {64UL, 100UL, 4096UL, 6'144UL, 300'000UL}) {
    const std::uint64_t size = 900'000 / row_bytes * row_bytes;
    const std::uint64_t offset = 3 * row_bytes;
    ChannelGeometry geometry;
    geometry.a2f_bytes[0] = offset + size + row_bytes;
    const Group group = connect(GetParam(), geometry);
    std::byte* const landing = group.ffn_channel().landing(Direction::kA2f, 0, 0);
    // Several times, since the channel tries several ways.
    for (std::uint32_t sequence = 1; sequence <= 4; ++sequence) {
      std::memset(landing, 0xA5, geometry.a2f_bytes[0]);
      Producer producer{
          .receiver = &group.ffn_channel(), .row_bytes = row_bytes, .sequence = sequence};
      const ByteSource source{
          .argument = &producer,
          .produce =
              [](void* argument, std::byte* target, std::uint64_t at, std::uint64_t piece) {
                auto& self = *static_cast<Producer*>(argument);
                EXPECT_EQ(at, self.produced);
                EXPECT_EQ(piece % self.row_bytes, 0U);
                const LaneState state = self.receiver->poll(kA2fLane);
                EXPECT_EQ(state.sequence, at == 0 ? self.sequence - 1 : self.sequence);
                if (at > 0) {
                  EXPECT_EQ(state.bytes_ready, at / 64 * 64) << "what is there can be read";
                  EXPECT_FALSE(state.complete);
                  EXPECT_EQ(self.receiver->header(kA2fLane), header_of(7));
                }
                for (std::uint64_t i = 0; i < piece; ++i) {
                  target[i] = static_cast<std::byte>((at + i) * 31 >> 3);
                }
                self.produced += piece;
                ++self.num_pieces;
              },
          .granule_bytes = row_bytes};

      group.to_ffn[0]->publish(kA2fLane, header_of(7), rows(nullptr, offset, size), source);

      EXPECT_EQ(producer.produced, size);
      EXPECT_GE(producer.num_pieces, 3U) << "pipelined";
      EXPECT_TRUE(group.ffn_channel().poll(kA2fLane).complete);
      EXPECT_EQ(landing[offset - 1], std::byte{0xA5});
      EXPECT_EQ(landing[offset + size], std::byte{0xA5});
      for (std::uint64_t i = 0; i < size; ++i) {
        ASSERT_EQ(landing[offset + i], static_cast<std::byte>(i * 31 >> 3)) << i;
      }
    }
  }
}

TEST_P(MappedChannelTest, ASourceOfFewRowsProducesInPlace) {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 8192;
  const Group group = connect(GetParam(), geometry);
  std::byte* target = nullptr;
  const ByteSource source{
      .argument = &target,
      .produce = [](void* argument, std::byte* at, std::uint64_t, std::uint64_t) {
        *static_cast<std::byte**>(argument) = at;
      }};
  group.to_ffn[0]->publish(kA2fLane, header_of(1), rows(nullptr, 64, 1024), source);
  EXPECT_EQ(target, group.to_ffn[0]->landing(Direction::kA2f, 0, 0) + 64);
}

TEST_P(MappedChannelTest, RowsInPlaceArePublishedAsTheyAre) {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 1 << 20;
  geometry.a2f_bytes[2] = 4096;
  const Group group = connect(GetParam(), geometry);
  std::byte* const sender_rows = group.to_ffn[0]->landing(Direction::kA2f, 0, 0) + 128;
  std::byte* const sender_ids = group.to_ffn[0]->landing(Direction::kA2f, 0, 2);
  std::memset(sender_rows, 0x5A, 500'000);
  std::memset(sender_ids, 0x3C, 100);
  std::array<PutPart, kPartsMax> parts = rows(sender_rows, 128, 500'000);
  parts[2] = {.source = sender_ids, .offset_bytes = 0, .size_bytes = 100};

  group.to_ffn[0]->publish(kA2fLane, header_of(1), parts, {});

  EXPECT_TRUE(group.ffn_channel().poll(kA2fLane).complete);
  const std::byte* const landing = group.ffn_channel().landing(Direction::kA2f, 0, 0);
  EXPECT_EQ(landing[128], std::byte{0x5A});
  EXPECT_EQ(landing[128 + 499'999], std::byte{0x5A});
  EXPECT_EQ(landing[128 + 500'000], std::byte{0});
  EXPECT_EQ(group.ffn_channel().landing(Direction::kA2f, 0, 2)[99], std::byte{0x3C});
}

TEST_P(MappedChannelTest, ATransferWithoutRowsIsCompleteAtOnce) {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 64;
  const Group group = connect(GetParam(), geometry);
  group.to_ffn[0]->publish(kA2fLane, header_of(1), kNothing, {});
  EXPECT_TRUE(group.ffn_channel().poll(kA2fLane).complete);
}

TEST_P(MappedChannelTest, AReaderMayFollowTheSenderPieceByPiece) {
  constexpr std::uint64_t kCapacity = 2 << 20;
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = geometry.f2a_bytes[0] = kCapacity;
  const Group group = connect(GetParam(), geometry);
  constexpr LaneId kF2aLane{.direction = Direction::kF2a};
  constexpr std::uint32_t kRounds = 40;
  const auto byte_at = [](std::uint32_t round, std::uint64_t i) {
    return static_cast<std::byte>(i / 3 + round * 101);
  };
  const auto size_of = [](std::uint32_t round) { return round * 49'999ULL % kCapacity + 1; };

  std::thread ffn([&] {
    Channel& channel = group.ffn_channel();
    const std::byte* const landing = channel.landing(Direction::kA2f, 0, 0);
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      const std::uint64_t size = size_of(round);
      for (std::uint64_t done = 0; done < size;) {
        const LaneState state = channel.poll(kA2fLane);
        const std::uint64_t there = state.sequence == round ? std::min(state.bytes_ready, size) : 0;
        if (there == done) {
          base::spin_pause();
          continue;
        }
        // Backwards: the last bytes of a piece are the ones that a progress told too early lacks.
        for (std::uint64_t i = there; i > done; --i) {
          ASSERT_EQ(landing[i - 1], byte_at(round, i - 1)) << round << ' ' << i;
        }
        done = there;
      }
      channel.publish(kF2aLane, header_of(round), kNothing, {});
    }
  });
  std::vector<std::byte> payload(kCapacity);
  Completion answered{.channel = group.to_ffn[0], .lane = kF2aLane};
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    for (std::uint64_t i = 0; i < size_of(round); ++i) {
      payload[i] = byte_at(round, i);
    }
    group.to_ffn[0]->publish(kA2fLane, header_of(round), rows(payload.data(), 0, size_of(round)),
                             {});
    answered.sequence = round;
    ASSERT_TRUE(
        group.attention[0]->wait(answered.condition(), Deadline::after(std::chrono::seconds(60))));
  }
  ffn.join();
}

// Goal: a peer that publishes out of turn makes an error above, never a header that nobody sent.
// Method: it publishes headers whose fields all follow from one number, as fast as it can; every
// header that is read must be one of them, or none at all.
TEST_P(MappedChannelTest, AHeaderIsNeverAMixtureOfTwo) {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 64;
  const Group group = connect(GetParam(), geometry);
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    for (std::uint32_t n = 1; !stop.load(std::memory_order_relaxed); ++n) {
      group.to_ffn[0]->publish(kA2fLane, header_of(n), kNothing, {});
    }
  });
  int num_whole = 0;
  for (int i = 0; i < 200'000 && num_whole < 20'000; ++i) {
    const TransferHeader header = group.ffn_channel().header(kA2fLane);
    if (header.epoch == 0) {
      continue;
    }
    ++num_whole;
    ASSERT_EQ(header, header_of(header.layer_idx));
  }
  stop.store(true);
  sender.join();
  EXPECT_GT(num_whole, 0);
}

TEST_P(MappedChannelTest, PublishingWakesWhoeverSleepsForIt) {
  ChannelGeometry geometry;
  geometry.num_peers = 2;
  geometry.a2f_bytes[0] = geometry.f2a_bytes[0] = 256;
  const Group group =
      connect(GetParam(), geometry, WaitPolicy{.spin_ns_max = 0, .yield_ns_max = 0});
  std::vector<std::thread> threads;
  constexpr std::uint32_t kRounds = 500;
  for (std::uint16_t peer = 0; peer < 2; ++peer) {
    threads.emplace_back([&group, peer] {
      Completion answered{.channel = group.to_ffn[peer],
                          .lane = {.direction = Direction::kF2a, .peer_idx = peer}};
      for (std::uint32_t round = 1; round <= kRounds; ++round) {
        group.to_ffn[peer]->publish({.direction = Direction::kA2f, .peer_idx = peer},
                                    header_of(round), kNothing, {});
        answered.sequence = round;
        ASSERT_TRUE(group.attention[peer]->wait(answered.condition(),
                                                Deadline::after(std::chrono::seconds(60))));
      }
    });
  }
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    for (std::uint16_t peer = 0; peer < 2; ++peer) {
      Completion arrived{.channel = &group.ffn_channel(),
                         .lane = {.direction = Direction::kA2f, .peer_idx = peer},
                         .sequence = round};
      ASSERT_TRUE(group.ffn->wait(arrived.condition(), Deadline::after(std::chrono::seconds(60))));
    }
    for (std::uint16_t peer = 0; peer < 2; ++peer) {
      group.ffn_channel().publish({.direction = Direction::kF2a, .peer_idx = peer},
                                  header_of(round), kNothing, {});
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ChannelGeometry control_geometry() {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 64;
  geometry.control_slots = 3;
  geometry.control_bytes_max = 100;
  return geometry;
}

TEST_P(MappedChannelTest, ControlMessagesComeInOrderAndTheQueueFillsAndWraps) {
  const Group group = connect(GetParam(), control_geometry());
  Channel& sender = *group.to_ffn[0];
  Channel& receiver = group.ffn_channel();
  int num_sent = 0;
  int num_received = 0;
  for (int round = 0; round < 10; ++round) {
    while (num_sent - num_received < 3) {
      const std::string message(static_cast<std::size_t>(num_sent * 7 % 100 + 1),
                                static_cast<char>('a' + num_sent % 26));
      ASSERT_TRUE(sender.try_send_control(bytes_of(message)));
      ++num_sent;
    }
    const Result<void> full = sender.try_send_control(bytes_of("x"));
    ASSERT_FALSE(full);
    EXPECT_EQ(full.error().code, ErrorCode::kWouldBlock);
    EXPECT_EQ(full.error().message, "the control queue is full: 3 messages wait");
    for (int i = 0; i <= round % 3; ++i) {
      const auto message = receiver.peek_control();
      ASSERT_TRUE(message) << why(message);
      EXPECT_EQ(text_of(*message), std::string(static_cast<std::size_t>(num_received * 7 % 100 + 1),
                                               static_cast<char>('a' + num_received % 26)));
      EXPECT_EQ(receiver.peek_control()->data(), message->data()) << "peeking takes nothing";
      receiver.pop_control();
      ++num_received;
    }
  }
}

TEST_P(MappedChannelTest, AnEmptyQueueGivesAnEmptySpan) {
  const Group group = connect(GetParam(), control_geometry());
  const auto message = group.ffn_channel().peek_control();
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->empty());
}

TEST_P(MappedChannelTest, RefusesControlMessagesThatAreEmptyOrTooLong) {
  const Group group = connect(GetParam(), control_geometry());
  const Result<void> too_long = group.to_ffn[0]->try_send_control(bytes_of(std::string(101, 'x')));
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(too_long.error().message, "a control message has 101 bytes, expected 1 to 100");
  const Result<void> empty = group.to_ffn[0]->try_send_control({});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().message, "a control message has 0 bytes, expected 1 to 100");
  EXPECT_TRUE(group.ffn_channel().peek_control()->empty()) << "nothing was sent";
}

TEST_P(MappedChannelTest, AControlMessageWakesTheFfnRank) {
  const Group group =
      connect(GetParam(), control_geometry(), WaitPolicy{.spin_ns_max = 0, .yield_ns_max = 0});
  std::thread sender([&] {
    for (int i = 0; i < 300;) {
      i += group.to_ffn[0]->try_send_control(bytes_of("step")) ? 1 : 0;
    }
  });
  Channel& channel = group.ffn_channel();
  const Condition has_message{.argument = &channel, .holds = [](void* argument) {
                                return !static_cast<Channel*>(argument)->peek_control()->empty();
                              }};
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(group.ffn->wait(has_message, Deadline::after(std::chrono::seconds(60)))) << i;
    channel.pop_control();
  }
  sender.join();
}

/// The control ring and its first slot, as a peer sees them.
struct RawControl {
  explicit RawControl(const Group& group) {
    const ChannelGeometry geometry = control_geometry();
    const WindowLayout layout = *layout_window(&geometry);
    std::byte* const window =
        group.to_ffn[0]->landing(Direction::kA2f, 0, 0) - layout.landing[0][0];
    ring = reinterpret_cast<ControlRing*>(window + layout.control_ring);
    first_slot = window + layout.control_slots;
  }
  ControlRing* ring;
  std::byte* first_slot;
};

TEST_P(MappedChannelTest, ABrokenPeersControlQueueIsAProtocolMismatch) {
  for (const std::uint64_t length : {0ULL, 101ULL, ~0ULL}) {
    const Group group = connect(GetParam(), control_geometry());
    const RawControl raw(group);
    std::memcpy(raw.first_slot, &length, sizeof(length));
    raw.ring->head.store(1);
    const auto message = group.ffn_channel().peek_control();
    ASSERT_FALSE(message) << length;
    EXPECT_EQ(message.error().code, ErrorCode::kProtocolMismatch);
    EXPECT_EQ(message.error().message, "the control queue holds 1 messages, the next of " +
                                           std::to_string(length) +
                                           " bytes, expected at most 3 of 1 to 100");
  }
  const Group group = connect(GetParam(), control_geometry());
  const RawControl raw(group);
  ASSERT_TRUE(group.to_ffn[0]->try_send_control(bytes_of("x")));
  for (const std::uint64_t head : {4ULL, ~0ULL}) {
    raw.ring->head.store(head);
    const auto message = group.ffn_channel().peek_control();
    ASSERT_FALSE(message) << head;
    EXPECT_EQ(message.error().code, ErrorCode::kProtocolMismatch);
  }
}

TEST_P(MappedChannelTest, ABrokenPeersTailOnlyFillsTheQueue) {
  const Group group = connect(GetParam(), control_geometry());
  const RawControl raw(group);
  for (const std::uint64_t tail : {1ULL, 5ULL, ~0ULL - 10}) {
    raw.ring->tail.store(tail);
    const Result<void> sent = group.to_ffn[0]->try_send_control(bytes_of("x"));
    ASSERT_FALSE(sent) << tail;
    EXPECT_EQ(sent.error().code, ErrorCode::kWouldBlock);
  }
}

using MappedChannelDeathTest = MappedChannelTest;
INSTANTIATE_TEST_SUITE_P(Kinds, MappedChannelDeathTest, ::testing::Values(Kind::kShm), kind_name);

TEST_P(MappedChannelDeathTest, RowsBeyondTheLandingMemoryAreABugOfOurs) {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = 1000;
  const Group group = connect(GetParam(), geometry);
  const std::vector<std::byte> payload(2000);
  EXPECT_DEATH(group.to_ffn[0]->publish(kA2fLane, {}, rows(payload.data(), 900, 101), {}),
               "check failed.*= 0, 900, 101, 1000");
  EXPECT_DEATH(
      group.to_ffn[0]->publish(kA2fLane, {}, rows(payload.data(), ~std::uint64_t{0}, 101), {}),
      "check failed");
  EXPECT_DEATH((void)group.to_ffn[0]->poll({.stage_idx = 1}), "check failed");
}

}  // namespace
}  // namespace afd::transport
