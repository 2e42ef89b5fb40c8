// What a peer, or a stranger, sends to a remote transport: taken, dropped, or a fault, never a byte
// outside of the windows. The input is a list of messages, each 2 bytes of length, a header, and
// that many bytes of data; every second header gets the right token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "transport/remote/fake_wire.h"
#include "transport/remote/remote_message.h"
#include "transport/remote/remote_transport.h"

namespace {

using afd::transport::ChannelGeometry;
using afd::transport::RemoteHeader;

constexpr std::size_t kTokenOffset = offsetof(RemoteHeader, token);

void insist(bool holds) {
  if (!holds) {
    std::abort();
  }
}

/// "afd-remote 2 <16 digits> ...": as the peers read it.
std::uint64_t token_of(const std::string& blob) {
  std::uint64_t token = 0;
  const std::string digits = blob.substr(blob.find(" 2 ") + 3, 16);
  for (std::size_t i = 8; i-- > 0;) {
    token = token << 8 | std::stoul(digits.substr(2 * i, 2), nullptr, 16);
  }
  return token;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  afd::transport::testing::FakeNet net;
  net.fetch_from(100);
  const std::unique_ptr<afd::transport::Transport> transport =
      afd::transport::make_remote_transport(
          {.world_rank = 0,
           .wire_maker = std::make_unique<afd::transport::testing::FakeWireMaker>(net, "own")});
  const ChannelGeometry geometry{.num_peers = 2,
                                 .num_stages = 2,
                                 .a2f_bytes = {1024, 256, 0, 0},
                                 .f2a_bytes = {1024, 0, 0, 0},
                                 .control_slots = 2,
                                 .control_bytes_max = 100};
  const afd::Result<std::string> blob = transport->create(&geometry);
  insist(blob.has_value());
  for (const std::uint32_t peer : {1U, 2U}) {
    insist(transport->attach(peer, *blob, nullptr).has_value());
    transport->set_doorbell(transport->own_channel(), afd::transport::Direction::kF2a,
                            static_cast<std::uint16_t>(peer - 1), peer);
    transport->set_control_sender(1);
  }
  const std::uint64_t token = token_of(*blob);
  bool right_token = true;
  while (size >= 2 + sizeof(RemoteHeader)) {
    const std::size_t bytes =
        std::min<std::size_t>(data[0] | data[1] << 8, size - 2 - sizeof(RemoteHeader));
    afd::transport::testing::FakeNet::Message message;
    message.header.resize(sizeof(RemoteHeader));
    std::memcpy(message.header.data(), data + 2, sizeof(RemoteHeader));
    if (right_token) {
      std::memcpy(message.header.data() + kTokenOffset, &token, sizeof(token));
    }
    right_token = !right_token;
    message.data.resize(bytes);
    if (bytes > 0) {
      std::memcpy(message.data.data(), data + 2 + sizeof(RemoteHeader), bytes);
    }
    data += 2 + sizeof(RemoteHeader) + bytes;
    size -= 2 + sizeof(RemoteHeader) + bytes;
    net.post("own", std::move(message));
    transport->has_drained(1);
    if (const auto control = transport->own_channel()->peek_control();
        control && !control->empty()) {
      insist(control->size() <= geometry.control_bytes_max);
    }
  }
  if (const auto fault = transport->fault()) {
    insist(fault->code == afd::ErrorCode::kProtocolMismatch && fault->message.size() < 1000);
  }
  for (const std::uint32_t peer : {1U, 2U}) {
    transport->forget(peer);  // nobody lingers
  }
  return 0;
}
