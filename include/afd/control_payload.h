// The control payload's bytes: compact JSON with sorted keys, as on the seed page (four flags).
//
//   {"dp_metadata_list":{"<stage>":{"max_tokens_across_dp_cpu":N,"num_tokens_across_dp_cpu":[..]},..},
//    "is_graph_capturing":b,"is_graph_replaying":b,"is_profile":b,"is_warmup":b}
//
// Stage keys sort as strings ("0","1","10","2"). Encoding is exact: the same payload gives the same
// bytes as the reference. Decoding is strict and bounded (docs/wire-format.md): a control message
// from a peer is checked, not guessed.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <afd/export.h>
#include <afd/metadata.h>
#include <afd/result.h>

namespace afd {

/// A payload longer than this is refused before it is parsed.
inline constexpr std::size_t kControlPayloadBytesMax = std::size_t{1} << 20;

AFD_EXPORT std::string encode_control_payload(const ControlPayload& payload);

/// @return kProtocolMismatch  naming what was found, where, and what was wanted
AFD_EXPORT Result<ControlPayload> decode_control_payload(std::span<const std::byte> bytes);
AFD_EXPORT Result<ControlPayload> decode_control_payload(std::string_view text);

}  // namespace afd
