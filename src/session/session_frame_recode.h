// For tests and the fuzz target: one function over all decoders and encoders.
#pragma once

#include <string>
#include <string_view>

#include <afd/result.h>

#include "session/session_frame.h"

namespace afd::session::testing {

/// The payload decoded as the type says, and encoded again, header included. What is accepted has
/// to come out as it went in.
inline Result<std::string> recode(FrameType type, std::string_view payload) {
  const auto apply = [](auto&& decoded, auto&& encode) -> Result<std::string> {
    if (!decoded) {
      return fail(decoded.error());
    }
    return encode(*decoded);
  };
  switch (type) {
    case FrameType::kHello:
      return apply(decode_hello(payload), encode_hello);
    case FrameType::kWaiting:
      return apply(decode_waiting(payload), encode_waiting);
    case FrameType::kRefused:
      return apply(decode_refused(payload), encode_refused);
    case FrameType::kPeer:
      return apply(decode_peer(payload), encode_peer);
    case FrameType::kStart:
      return apply(decode_start(payload), encode_start);
    case FrameType::kBarrier:
      return apply(decode_barrier(payload), encode_barrier);
    case FrameType::kBarrierReleased:
      return apply(decode_barrier(payload), encode_barrier_released);
    case FrameType::kGather:
      return apply(decode_gather(payload),
                   [](const Gather& g) { return encode_gather(g.round, g.contribution); });
    case FrameType::kGathered:
      return apply(decode_gathered(payload), encode_gathered);
    case FrameType::kQuery:
      return apply(decode_query(payload), encode_query);
    case FrameType::kGone:
      return apply(decode_gone(payload), encode_gone);
    case FrameType::kGoodbye:
      return apply(decode_goodbye(payload), encode_goodbye);
    case FrameType::kNonce:
      return apply(decode_nonce(payload), encode_nonce);
    case FrameType::kProof:
      return apply(decode_proof(payload), encode_proof);
    case FrameType::kDenied:
      return apply(decode_denied(payload), encode_denied);
  }
  return fail(ErrorCode::kInternal, "unknown type");
}

}  // namespace afd::session::testing
