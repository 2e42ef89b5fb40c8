#include "transport/remote/remote_message.h"

#include <cstring>

#include <gtest/gtest.h>

namespace afd::transport {
namespace {

RemoteHeader piece() {
  return {.kind = RemoteMessageKind::kPiece,
          .direction = Direction::kF2a,
          .part = 1,
          .token = 0x0123'4567'89ab'cdef,
          .source = 2,
          .channel = 1,
          .stage_idx = 3,
          .peer_idx = 4,
          .sequence = 5,
          .offset_bytes = 64,
          .size_bytes = 128,
          .total_bytes = 256,
          .rows_offset_bytes = 0,
          .rows_bytes = 128,
          .transfer = {.step = 9, .epoch = 8, .layer_idx = 7}};
}

RemoteHeader of_kind(RemoteMessageKind kind) {
  return {.kind = kind, .token = 1, .source = 2};
}

TEST(RemoteMessageTest, EveryKindComesBackAsItWas) {
  RemoteHeader control = of_kind(RemoteMessageKind::kControl);
  control.channel = 1;
  control.sequence = 3;
  control.size_bytes = 10;
  RemoteHeader credit = of_kind(RemoteMessageKind::kCredit);
  credit.channel = 1;
  credit.sequence = 3;
  for (const RemoteHeader& header :
       {piece(), control, credit, of_kind(RemoteMessageKind::kHello),
        of_kind(RemoteMessageKind::kBye), of_kind(RemoteMessageKind::kByeSeen)}) {
    const std::optional<RemoteHeader> decoded = decode_remote_header(encode_remote_header(header));
    ASSERT_TRUE(decoded) << static_cast<int>(header.kind);
    EXPECT_EQ(*decoded, header);
  }
}

TEST(RemoteMessageTest, TheBytesAreThoseOfTheDocumentedLayout) {
  const RemoteHeaderBytes bytes = encode_remote_header(piece());
  const auto at = [&](std::size_t offset) { return std::to_integer<int>(bytes[offset]); };
  EXPECT_EQ(at(0), 'a');  // the magic, "adx2"
  EXPECT_EQ(at(3), '2');
  EXPECT_EQ(at(4), 2);     // kind
  EXPECT_EQ(at(5), 1);     // direction
  EXPECT_EQ(at(6), 1);     // part
  EXPECT_EQ(at(8), 0xef);  // token, little-endian
  EXPECT_EQ(at(16), 2);    // source
  EXPECT_EQ(at(20), 1);    // channel
  EXPECT_EQ(at(24), 3);    // stage
  EXPECT_EQ(at(26), 4);    // peer
  EXPECT_EQ(at(28), 5);    // sequence
  EXPECT_EQ(at(32), 64);   // offset
  EXPECT_EQ(at(40), 128);  // size
  EXPECT_EQ(at(49), 1);    // total, 256
  EXPECT_EQ(at(64), 128);  // bytes of part 0
  EXPECT_EQ(at(72), 9);    // the transfer's header: step
  EXPECT_EQ(bytes.size(), 128u);
}

TEST(RemoteMessageTest, RefusesWhatNoTransportWrites) {
  const auto refused = [](auto change) {
    RemoteHeader header = piece();
    change(header);
    return !decode_remote_header(encode_remote_header(header));
  };
  EXPECT_FALSE(refused([](RemoteHeader&) {}));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.magic ^= 1; }));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.part = kPartsMax; }));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.size_bytes = 0; }));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.size_bytes = 257; }));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.rows_bytes = 257; }));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.transfer.stamp = 1; }));
  EXPECT_TRUE(refused([](RemoteHeader& header) { header.transfer.reserved = 1; }));

  RemoteHeader bye = of_kind(RemoteMessageKind::kBye);
  bye.sequence = 1;
  EXPECT_FALSE(decode_remote_header(encode_remote_header(bye))) << "a field that is not its kind's";
  RemoteHeader empty = of_kind(RemoteMessageKind::kControl);
  EXPECT_FALSE(decode_remote_header(encode_remote_header(empty))) << "a control message of nothing";

  RemoteHeaderBytes bytes = encode_remote_header(piece());
  for (const int kind : {0, 7, 255}) {
    bytes[4] = static_cast<std::byte>(kind);
    EXPECT_FALSE(decode_remote_header(bytes)) << kind;
  }
  bytes = encode_remote_header(piece());
  bytes[5] = std::byte{2};
  EXPECT_FALSE(decode_remote_header(bytes)) << "direction";
  bytes = encode_remote_header(piece());
  EXPECT_FALSE(decode_remote_header(std::span(bytes).first(127)));
  EXPECT_FALSE(decode_remote_header({}));
}

}  // namespace
}  // namespace afd::transport
