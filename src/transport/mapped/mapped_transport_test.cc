// Set-up and what can go wrong with it, over both kinds of memory.
#include "transport/mapped/mapped_transport.h"

#include <unistd.h>

#include <cstring>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/shared_segment.h"
#include "transport/mapped/test_group.h"
#include "transport/mapped/window_layout.h"

namespace afd::transport {
namespace {

using ::testing::MatchesRegex;

ChannelGeometry small_geometry() {
  ChannelGeometry geometry;
  geometry.a2f_bytes[0] = geometry.f2a_bytes[0] = 8192;
  geometry.control_bytes_max = 64;
  return geometry;
}

class MappedTransportTest : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, MappedTransportTest, ::testing::Values(Kind::kInproc, Kind::kShm),
                         kind_name);

TEST_P(MappedTransportTest, BlobsAreShortAndAttentionRanksOwnNoChannel) {
  const auto transport = make_transport(GetParam());
  EXPECT_EQ(transport->own_channel(), nullptr);
  const Result<std::string> blob = transport->create(nullptr);
  ASSERT_TRUE(blob) << why(blob);
  EXPECT_LE(blob->size(), 1024U);
  EXPECT_EQ(transport->own_channel(), nullptr);
}

TEST_P(MappedTransportTest, LandingMemoryIsZeroedAndAligned) {
  ChannelGeometry geometry = small_geometry();
  geometry.num_stages = 3;
  geometry.a2f_bytes[1] = 70;
  const Group group = connect(GetParam(), geometry);
  for (std::uint32_t stage = 0; stage < 3; ++stage) {
    for (const std::size_t part : {0U, 1U}) {
      const std::byte* const landing = group.to_ffn[0]->landing(Direction::kA2f, stage, part);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(landing) % 64, 0U);
      EXPECT_EQ(landing[0], std::byte{0});
    }
  }
}

TEST_P(MappedTransportTest, RefusesAGeometryThatCannotBe) {
  ChannelGeometry geometry = small_geometry();
  geometry.num_stages = 0;
  const Result<std::string> blob = make_transport(GetParam())->create(&geometry);
  ASSERT_FALSE(blob);
  EXPECT_EQ(blob.error().code, ErrorCode::kInvalidArgument);
}

TEST_P(MappedTransportTest, TooLittleMemoryIsAnErrorAtCreate) {
  ChannelGeometry geometry = small_geometry();
  geometry.num_stages = 8;
  geometry.a2f_bytes[0] = std::uint64_t{1} << 39;  // 4 TiB in all
  const auto transport = make_transport(GetParam());
  const Result<std::string> blob = transport->create(&geometry);
  ASSERT_FALSE(blob);
  EXPECT_EQ(blob.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(blob.error().message,
              MatchesRegex("too little (shared )?memory: 43980465[0-9]+ bytes needed, [0-9]+ free"
                           ".*, [0-9]+ missing"));
  // The same transport may be tried again with less.
  geometry = small_geometry();
  EXPECT_TRUE(transport->create(&geometry));
}

TEST_P(MappedTransportTest, RefusesAnotherGeometryNamingBoth) {
  const ChannelGeometry geometry = small_geometry();
  const auto owner = make_transport(GetParam());
  const Result<std::string> blob = owner->create(&geometry);
  ASSERT_TRUE(blob);
  ChannelGeometry other = geometry;
  other.a2f_bytes[0] = 8191;  // The same pages.
  const Result<Channel*> channel = make_transport(GetParam())->attach(0, *blob, &other);
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_EQ(channel.error().message,
            "the peer's window cannot be used: its geometry differs: 1 peers, 1 stages, a2f 8192 0 "
            "0 0 bytes, f2a 8192 0 0 0 bytes, 16 control messages of 64 bytes, expected 1 peers, 1 "
            "stages, a2f 8191 0 0 0 bytes, f2a 8192 0 0 0 bytes, 16 control messages of 64 bytes");
  other.num_stages = 2;
  const Result<Channel*> larger = make_transport(GetParam())->attach(0, *blob, &other);
  ASSERT_FALSE(larger);
  EXPECT_EQ(larger.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_THAT(larger.error().message,
              MatchesRegex("the peer's window has [0-9]+ bytes, expected [0-9]+: the two sides' "
                           "sizes differ"));
  const Result<Channel*> none = make_transport(GetParam())->attach(0, *blob, nullptr);
  EXPECT_FALSE(none) << "an FFN rank's window where an attention rank's was expected";
}

TEST_P(MappedTransportTest, RefusesAWindowOfAnotherLayout) {
  const ChannelGeometry geometry = small_geometry();
  const auto owner = make_transport(GetParam());
  const Result<std::string> blob = owner->create(&geometry);
  ASSERT_TRUE(blob);
  const WindowLayout layout = *layout_window(&geometry);
  auto* const header = reinterpret_cast<WindowHeader*>(
      owner->own_channel()->landing(Direction::kA2f, 0, 0) - layout.landing[0][0]);
  const WindowHeader good = *header;
  const auto attach = [&] { return make_transport(GetParam())->attach(0, *blob, &geometry); };
  ASSERT_TRUE(attach());
  for (const auto change :
       {+[](WindowHeader& h) { h.magic ^= 1; }, +[](WindowHeader& h) { h.layout_version += 1; },
        +[](WindowHeader& h) { h.window_bytes *= 2; }, +[](WindowHeader& h) { h.has_channel = 0; },
        +[](WindowHeader& h) { h.control_slots = ~0U; },
        +[](WindowHeader& h) { h.num_peers = 0; }}) {
    *header = good;
    change(*header);
    const Result<Channel*> channel = attach();
    ASSERT_FALSE(channel);
    EXPECT_EQ(channel.error().code, ErrorCode::kProtocolMismatch);
  }
}

TEST_P(MappedTransportTest, RefusesABlobThatIsNone) {
  const ChannelGeometry geometry = small_geometry();
  const auto owner = make_transport(GetParam());
  const Result<std::string> blob = owner->create(&geometry);
  ASSERT_TRUE(blob);
  const std::string kind = GetParam() == Kind::kShm ? "shm" : "inproc";
  const std::string other_kind = GetParam() == Kind::kShm ? "inproc" : "shm";
  std::string renamed = *blob;
  renamed.replace(renamed.find(kind), kind.size(), other_kind);
  const std::vector<std::string> blobs = {
      "",
      " ",
      "x",
      std::string(1, '\0'),
      std::string(5000, 'a'),
      *blob + " ",
      *blob + " x",
      " " + *blob,
      *blob + "0",
      blob->substr(0, blob->size() - 1),
      renamed,
      "afd-window 3" + blob->substr(12),
      "afd-window 2 " + kind,
      "afd-window 2 " + kind + " x",
      "afd-window 2 " + kind + " x -1",
      "afd-window 2 " + kind + " x 0",
      "afd-window 2 " + kind + " ../../../etc/passwd 2838",
      "afd-window 2 " + kind + " x 99999999999999999999999999",
  };
  for (const std::string& text : blobs) {
    const Result<Channel*> channel = make_transport(GetParam())->attach(0, text, &geometry);
    ASSERT_FALSE(channel) << text;
    EXPECT_EQ(channel.error().code, ErrorCode::kProtocolMismatch) << text;
  }
}

TEST_P(MappedTransportTest, NoChangedBlobFindsAnythingElse) {
  const ChannelGeometry geometry = small_geometry();
  const auto owner = make_transport(GetParam());
  const Result<std::string> blob = owner->create(&geometry);
  ASSERT_TRUE(blob);
  std::mt19937 random(9);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = *blob;
    for (std::uint32_t change = random() % 3 + 1; change > 0; --change) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, 1, static_cast<char>(random() % 2 == 0 ? random() : '/'));
      }
    }
    if (text != *blob) {
      ASSERT_FALSE(make_transport(GetParam())->attach(0, text, &geometry)) << text;
    }
  }
}

TEST_P(MappedTransportTest, AWindowCannotBeFoundAfterSealOrClose) {
  const ChannelGeometry geometry = small_geometry();
  auto owner = make_transport(GetParam());
  const Result<std::string> blob = owner->create(&geometry);
  ASSERT_TRUE(blob);
  const auto early = make_transport(GetParam());
  const Result<Channel*> channel = early->attach(0, *blob, &geometry);
  ASSERT_TRUE(channel);
  owner->seal();
  owner->seal();
  const Result<Channel*> late = make_transport(GetParam())->attach(0, *blob, &geometry);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
  // Whoever attached keeps the memory, also when the owner has gone.
  owner.reset();
  (*channel)->landing(Direction::kA2f, 0, 0)[0] = std::byte{1};
  EXPECT_FALSE((*channel)->poll({}).complete);
}

TEST_P(MappedTransportTest, AnUnsealedWindowGoesWithItsOwner) {
  const ChannelGeometry geometry = small_geometry();
  auto owner = make_transport(GetParam());
  const Result<std::string> blob = owner->create(&geometry);
  ASSERT_TRUE(blob);
  owner.reset();
  const Result<Channel*> late = make_transport(GetParam())->attach(0, *blob, &geometry);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(base::sweep_segments(::getpid()), 0U);
}

TEST_P(MappedTransportTest, WakeWorksBeforeCreate) {
  const auto transport = make_transport(GetParam());
  transport->wake();
  const Condition never{.holds = [](void*) { return false; }};
  EXPECT_FALSE(transport->wait(never, Deadline::never()));
}

}  // namespace
}  // namespace afd::transport
