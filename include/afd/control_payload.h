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
/// More stages, or counts in one stage, than this are refused.
inline constexpr std::size_t kControlStagesMax = 1024;
inline constexpr std::size_t kControlRanksMax = std::size_t{1} << 16;
/// Arrays and objects inside each other, in a value under an unknown key.
inline constexpr std::size_t kControlDepthMax = 16;

AFD_EXPORT std::string encode_control_payload(const ControlPayload& payload);

/// Accepts white space, any order of keys, unknown keys at every level (they are passed over),
/// missing flags (false), an empty list of counts, and a maximum that is not the counts' own.
/// Refuses anything but integers in [0, 2^31) as counts, anything but booleans as flags, stage keys
/// that are not plain decimal, known keys that stand twice, bytes that are not UTF-8, and what is
/// too long, too deep or too many.
///
/// @return kProtocolMismatch  naming what was found, where, and what was wanted: "control payload:
///         line 1, column 60: dp_metadata_list["0"].num_tokens_across_dp_cpu[0] is "3", expected an
///         integer in [0, 2147483647]"
AFD_EXPORT Result<ControlPayload> decode_control_payload(std::span<const std::byte> bytes);
AFD_EXPORT Result<ControlPayload> decode_control_payload(std::string_view text);

}  // namespace afd
