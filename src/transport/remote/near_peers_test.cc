// Peers on this host beside peers on others: one window, two ways into it.
#include "transport/remote/remote_transport.h"

#include <dirent.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/shared_name.h"
#include "transport/remote/fake_wire.h"
#include "transport/remote/remote_blob.h"
#include "transport/shm/shm_transport.h"

namespace afd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::FakeNet;
using testing::FakeWireMaker;
using ::testing::HasSubstr;

constexpr std::uint32_t kFfn = 0;
constexpr std::uint64_t kRowBytes = 64;
constexpr std::uint64_t kRows = 512;

ChannelGeometry geometry(std::uint32_t num_peers) {
  return {.num_peers = num_peers,
          .num_stages = 1,
          .a2f_bytes = {kRows * kRowBytes, 0, 0, 0},
          .f2a_bytes = {kRows * kRowBytes, 0, 0, 0},
          .control_slots = 4,
          .control_bytes_max = 100};
}

/// A wire that cannot be made.
class NoWireMaker final : public WireMaker {
 public:
  Result<std::unique_ptr<Wire>> make(WireReceiver&) const override {
    return fail(ErrorCode::kUnavailable, "no wire here");
  }
};

/// One FFN rank, and attention ranks at places of the test's choice.
class NearPeersTest : public ::testing::Test {
 protected:
  enum class Way : std::uint8_t { kFake, kNone, kLoopback };

  struct Rank {
    std::unique_ptr<Transport> transport;
    std::string blob;
    Channel* channel = nullptr;  ///< the FFN rank's, as this rank sees it
  };

  Rank make(std::uint32_t world_rank, const std::string& place, Way way = Way::kFake,
            std::uint32_t num_peers = 0) {
    RemoteOptions options{.world_rank = world_rank, .shared = make_shm_provider(), .place = place};
    if (way == Way::kFake) {
      options.wire_maker =
          std::make_unique<FakeWireMaker>(net_, "rank " + std::to_string(world_rank));
    } else if (way == Way::kNone) {
      options.wire_maker = std::make_unique<NoWireMaker>();
    }
    // So that waits sleep at once.
    options.wait = {.spin_ns_max = 0, .yield_ns_max = 0};
    Rank rank{.transport = make_remote_transport(std::move(options))};
    const ChannelGeometry sizes = geometry(std::max(num_peers, 1U));
    Result<std::string> blob = rank.transport->create(num_peers == 0 ? nullptr : &sizes);
    EXPECT_TRUE(blob) << blob.error().message;
    rank.blob = *std::move(blob);
    return rank;
  }

  /// Places of the attention ranks; the FFN rank is at "here".
  void meet(const std::vector<std::string>& places) {
    const auto num_peers = static_cast<std::uint32_t>(places.size());
    const ChannelGeometry sizes = geometry(num_peers);
    ffn_ = make(kFfn, "here", Way::kFake, num_peers);
    ffn_.channel = ffn_.transport->own_channel();
    for (std::uint16_t peer = 0; peer < num_peers; ++peer) {
      Rank rank = make(1U + peer, places[peer]);
      const Result<Channel*> attached = rank.transport->attach(kFfn, ffn_.blob, &sizes);
      ASSERT_TRUE(attached) << attached.error().message;
      rank.channel = *attached;
      rank.transport->set_doorbell(rank.channel, Direction::kA2f, peer, kFfn);
      ASSERT_TRUE(ffn_.transport->attach(1U + peer, rank.blob, nullptr));
      ffn_.transport->set_doorbell(ffn_.channel, Direction::kF2a, peer, 1U + peer);
      attention_.push_back(std::move(rank));
    }
    ffn_.transport->seal();
    for (const Rank& rank : attention_) {
      rank.transport->seal();
    }
    for (std::uint32_t peer = 0; peer < num_peers; ++peer) {
      EXPECT_TRUE(await(*ffn_.transport, [&] { return ffn_.transport->is_reached(1U + peer); }));
      EXPECT_TRUE(await(*attention_[peer].transport,
                        [&] { return attention_[peer].transport->is_reached(kFfn); }));
    }
  }

  ~NearPeersTest() override {
    // So that nobody lingers for another.
    for (const Rank& rank : attention_) {
      rank.transport->leave_peers();
    }
    if (ffn_.transport != nullptr) {
      ffn_.transport->leave_peers();
      for (std::uint32_t peer = 0; peer < attention_.size(); ++peer) {
        ffn_.transport->has_drained(1 + peer);
        attention_[peer].transport->has_drained(kFfn);
      }
      ffn_.transport->has_drained(1);
    }
  }

  /// Whether it came to hold, and the wait was woken for it: one that nobody wakes looks once more
  /// as its time runs out.
  template <typename Holds>
  static bool await(Transport& transport, Holds holds) {
    const Deadline deadline = Deadline::after(seconds(20));
    return transport.wait(
               {&holds, [](void* argument) { return (*static_cast<Holds*>(argument))(); }},
               deadline) &&
           !deadline.expired();
  }

  static std::vector<std::byte> rows(std::uint64_t num_rows, int seed) {
    std::vector<std::byte> bytes(num_rows * kRowBytes);
    for (std::uint64_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((i * 31 + static_cast<std::uint64_t>(seed)) >> 2);
    }
    return bytes;
  }

  static void publish(Channel& channel, LaneId lane, std::uint64_t row_offset,
                      std::span<const std::byte> bytes) {
    std::array<PutPart, kPartsMax> parts{};
    parts[0] = {
        .source = bytes.data(), .offset_bytes = row_offset * kRowBytes, .size_bytes = bytes.size()};
    channel.publish(lane, {.step = 1, .epoch = 7}, parts, {});
  }

  FakeNet net_;
  Rank ffn_;
  std::vector<Rank> attention_;
};

TEST_F(NearPeersTest, NearAndFarRowsStandSideBySide) {
  meet({"here", "there", "here"});
  constexpr std::uint64_t kShare = 100;
  for (std::uint32_t round = 1; round <= 20; ++round) {
    std::vector<std::byte> all;
    for (std::uint16_t peer = 0; peer < 3; ++peer) {
      const std::vector<std::byte> mine = rows(kShare, static_cast<int>(10 * round + peer));
      publish(*attention_[peer].channel, {Direction::kA2f, 0, peer}, peer * kShare, mine);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    ASSERT_TRUE(await(*ffn_.transport, [&] {
      bool complete = true;
      for (std::uint16_t peer = 0; peer < 3; ++peer) {
        const LaneState state = ffn_.channel->poll({Direction::kA2f, 0, peer});
        complete &= state.sequence == round && state.complete;
      }
      return complete;
    }));
    const std::byte* landed = ffn_.channel->landing(Direction::kA2f, 0, 0);
    ASSERT_EQ(std::vector(landed, landed + all.size()), all);

    for (std::uint16_t peer = 0; peer < 3; ++peer) {
      const std::vector<std::byte> answer = rows(kShare, static_cast<int>(round + peer));
      publish(*ffn_.channel, {Direction::kF2a, 0, peer}, peer * kShare, answer);
      ASSERT_TRUE(await(*attention_[peer].transport, [&] {
        const LaneState state = attention_[peer].channel->poll({Direction::kF2a, 0, peer});
        return state.sequence == round && state.complete;
      }));
      const std::byte* back =
          attention_[peer].channel->landing(Direction::kF2a, 0, 0) + peer * kShare * kRowBytes;
      ASSERT_EQ(std::vector(back, back + answer.size()), answer) << "peer " << peer;
    }
  }
  EXPECT_EQ(ffn_.transport->describe_path(1), "shared memory");
  EXPECT_EQ(ffn_.transport->describe_path(2), "fake rank 2");
  EXPECT_EQ(attention_[0].transport->describe_path(kFfn), "shared memory");
  EXPECT_EQ(attention_[1].transport->describe_path(kFfn), "fake rank 0");
}

TEST_F(NearPeersTest, ARankThatSleepsAtItsWireIsWokenByANearPeer) {
  meet({"here", "there"});
  // Several threads sleep, and each has to hear of it.
  for (std::uint32_t round = 1; round <= 20; ++round) {
    std::vector<std::thread> sleepers;
    std::atomic<int> num_woken{0};
    for (int i = 0; i < 3; ++i) {
      sleepers.emplace_back([&] {
        num_woken += await(*ffn_.transport, [&] {
          return ffn_.channel->poll({Direction::kA2f, 0, 0}).sequence == round;
        });
      });
    }
    const std::uint64_t slept = 3ULL * round;
    while (ffn_.transport->wait_stats().sleeps < slept) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(milliseconds(round % 4));
    publish(*attention_[0].channel, {Direction::kA2f, 0, 0}, 0, rows(3, 1));
    for (std::thread& sleeper : sleepers) {
      sleeper.join();
    }
    ASSERT_EQ(num_woken, 3) << "round " << round;
  }
  // And by its control messages.
  std::thread sleeper([&] {
    EXPECT_TRUE(await(*ffn_.transport, [&] { return !ffn_.channel->peek_control()->empty(); }));
  });
  std::this_thread::sleep_for(milliseconds(20));
  const std::array<std::byte, 5> message{};
  ASSERT_TRUE(attention_[0].channel->try_send_control(message));
  sleeper.join();
}

TEST_F(NearPeersTest, ANearRankThatSleepsIsWokenByOneThatHasBoth) {
  meet({"here", "there"});
  for (std::uint32_t round = 1; round <= 20; ++round) {
    std::thread sleeper([&] {
      EXPECT_TRUE(await(*attention_[0].transport, [&] {
        return attention_[0].channel->poll({Direction::kF2a, 0, 0}).sequence == round;
      }));
    });
    std::this_thread::sleep_for(milliseconds(round % 4));
    publish(*ffn_.channel, {Direction::kF2a, 0, 0}, 0, rows(3, 1));
    sleeper.join();
  }
}

TEST_F(NearPeersTest, ARankWithoutFarPeersDropsItsWire) {
  meet({"here", "here"});
  for (std::uint32_t world_rank = 0; world_rank < 3; ++world_rank) {
    EXPECT_FALSE(net_.post("rank " + std::to_string(world_rank), {})) << world_rank;
  }
}

TEST_F(NearPeersTest, ARankWithFarPeersKeepsIt) {
  meet({"here", "there"});
  EXPECT_TRUE(net_.post("rank 0", {}));
  EXPECT_FALSE(net_.post("rank 1", {}));
  EXPECT_TRUE(net_.post("rank 2", {}));
}

TEST_F(NearPeersTest, AFarPeerDoesNotSteerWhereANearOneDoes) {
  meet({"here", "there"});
  ffn_.transport->set_control_sender(1);
  const std::array<std::byte, 5> message{};
  ASSERT_TRUE(attention_[0].channel->try_send_control(message));
  EXPECT_TRUE(await(*ffn_.transport, [&] { return !ffn_.channel->peek_control()->empty(); }));
  ASSERT_TRUE(attention_[1].channel->try_send_control(message));
  EXPECT_TRUE(await(*ffn_.transport, [&] { return ffn_.transport->fault().has_value(); }));
  EXPECT_THAT(ffn_.transport->fault()->message, HasSubstr("which it does not send here"));
}

TEST_F(NearPeersTest, NothingIsLeftInSharedMemoryOnceAllHaveMet) {
  meet({"here", "there"});
  for (const base::LeftSegment& segment : base::list_segments()) {
    EXPECT_NE(segment.creator, ::getpid()) << segment.name;
  }
}

TEST_F(NearPeersTest, WithoutAWireNearPeersAreReachedAndFarOnesSayWhy) {
  const ChannelGeometry sizes = geometry(1);
  for (const Way way : {Way::kNone, Way::kLoopback}) {
    const Rank ffn = make(kFfn, "here", way, 1);
    const Rank near = make(1, "here", way);
    const Result<Channel*> attached = near.transport->attach(kFfn, ffn.blob, &sizes);
    ASSERT_TRUE(attached) << attached.error().message;
    EXPECT_TRUE(ffn.transport->attach(1, near.blob, nullptr));

    const Rank far = make(2, "there");
    const Result<Channel*> from_far = far.transport->attach(kFfn, ffn.blob, &sizes);
    ASSERT_FALSE(from_far);
    EXPECT_EQ(from_far.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(from_far.error().message, HasSubstr("told no address beyond it"));
    const Result<Channel*> to_far = ffn.transport->attach(2, far.blob, nullptr);
    ASSERT_FALSE(to_far);
    EXPECT_EQ(to_far.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(to_far.error().message,
                HasSubstr(way == Way::kNone ? "it is on another host: no wire here"
                                            : "meets the others on loopback"));
    ffn.transport->leave_peers();
  }
}

TEST_F(NearPeersTest, RanksOnLoopbackThatKnowNoPlaceAreOnOneHost) {
  const ChannelGeometry sizes = geometry(1);
  const Rank ffn = make(kFfn, "", Way::kLoopback, 1);
  const Rank near = make(1, "", Way::kLoopback);
  EXPECT_TRUE(near.transport->attach(kFfn, ffn.blob, &sizes));
  // With a wire they are not: both sides may be wrong about each other's memory.
  const Rank other_ffn = make(kFfn, "", Way::kFake, 1);
  const Rank other = make(1, "", Way::kFake);
  EXPECT_TRUE(other.transport->attach(kFfn, other_ffn.blob, &sizes));
  EXPECT_EQ(other.transport->describe_path(kFfn), "fake rank 0");
  other.transport->forget(kFfn);
}

TEST_F(NearPeersTest, APeersFifoHasToBeOne) {
  const Rank ffn = make(kFfn, "here", Way::kFake, 1);
  const ChannelGeometry sizes = geometry(1);
  RemoteBlob blob = parse_remote_blob(ffn.blob).value();
  for (const std::string& fifo : {std::string("/etc/passwd"), std::string("x")}) {
    blob.fifo = fifo;
    const Rank near = make(1, "here");
    const auto attached = near.transport->attach(kFfn, format_remote_blob(blob), &sizes);
    ASSERT_FALSE(attached) << fifo;
    EXPECT_EQ(attached.error().code, ErrorCode::kProtocolMismatch) << attached.error().message;
  }
}

}  // namespace
}  // namespace afd::transport
