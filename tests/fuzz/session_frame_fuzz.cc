// What arrives on a session's connection: found frame by frame, decoded or refused, and what is
// accepted encodes to the bytes that came.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "session/session_frame.h"
#include "session/session_frame_recode.h"

namespace {

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void require_refusal(const afd::Error& error) {
  require(error.code == afd::ErrorCode::kProtocolMismatch);
  require(error.message.size() < 1000 && afd::session::is_printable(error.message));
}

// The bytes as a stream that arrives in pieces of `piece` bytes. Returns the frames, header and
// all, and then what ended it.
std::string read_stream(std::string_view bytes, std::size_t piece) {
  afd::session::FrameBuffer buffer(afd::session::kAllFrames);
  std::string seen;
  for (std::size_t at = 0; at < bytes.size(); at += piece) {
    buffer.append(bytes.substr(at, piece));
    while (true) {
      const auto frame = buffer.next();
      if (!frame) {
        require_refusal(frame.error());
        return seen + frame.error().message;
      }
      if (!*frame) {
        break;
      }
      const afd::session::FrameHeader header = (*frame)->header;
      require((*frame)->payload.size() == header.payload_bytes);
      require(header.payload_bytes <= afd::session::payload_bytes_max(header.type));
      std::string whole = afd::session::encode_header(header);
      whole += (*frame)->payload;
      const auto again = afd::session::testing::recode(header.type, (*frame)->payload);
      if (!again) {
        require_refusal(again.error());
      } else if (header.version == afd::session::kProtocolVersion) {
        require(*again == whole);
      }
      if (header.type == afd::session::FrameType::kHello && again) {
        require(afd::session::decode_hello_identity((*frame)->payload).has_value());
      }
      seen += whole;
    }
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string at_once = read_stream(bytes, size == 0 ? 1 : size);
  require(read_stream(bytes, 1) == at_once);
  return 0;
}
