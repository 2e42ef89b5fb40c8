// What a peer sends as control payload: decoded or refused, never anything else.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <afd/control_payload.h>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const afd::Result<afd::ControlPayload> decoded = afd::decode_control_payload(text);
  if (!decoded) {
    if (decoded.error().code != afd::ErrorCode::kProtocolMismatch ||
        decoded.error().message.size() > 1000) {
      std::abort();
    }
    return 0;
  }
  // What was taken has to survive the way over the wire.
  const std::string encoded = afd::encode_control_payload(*decoded);
  const afd::Result<afd::ControlPayload> again = afd::decode_control_payload(encoded);
  if (!again || *again != *decoded || afd::encode_control_payload(*again) != encoded) {
    std::abort();
  }
  return 0;
}
