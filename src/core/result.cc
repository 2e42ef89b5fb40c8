#include <afd/result.h>

namespace afd {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kFailedPrecondition:
      return "FailedPrecondition";
    case ErrorCode::kUnavailable:
      return "Unavailable";
    case ErrorCode::kWouldBlock:
      return "WouldBlock";
    case ErrorCode::kDeadlineExceeded:
      return "DeadlineExceeded";
    case ErrorCode::kPeerLost:
      return "PeerLost";
    case ErrorCode::kProtocolMismatch:
      return "ProtocolMismatch";
    case ErrorCode::kInternal:
      return "Internal";
  }
  return "Unknown";  // A number that was cast to the type, by a peer of another release.
}

Error Error::with_context(std::string_view context) && {
  message.insert(0, ": ");
  message.insert(0, context);
  return std::move(*this);
}

}  // namespace afd
