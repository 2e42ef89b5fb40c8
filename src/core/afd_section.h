// The `afd` section after keys and types were checked and before its values are: what the reference
// has when it parses without validation.
//
// Threads: plain values.
#pragma once

#include <optional>

#include <afd/config.h>
#include <afd/result.h>

#include "core/coerce.h"
#include "core/json.h"

namespace afd {

struct AfdSection {
  JsonValue connector;  ///< Of any kind, as are role and host: only their values are judged.
  JsonValue role;
  JsonValue host;
  bool async_dp = false;
  WideInteger port;
  WideInteger num_attention_ranks;
  WideInteger num_ffn_ranks;
  bool compute_gate_on_attention = false;
  std::optional<JsonValue> session;  ///< Of any kind.
  JsonValue connector_extra_config;  ///< An object.
};

/// Steps 1 to 4: a mapping, known keys, none twice, then the types, with defaults for absent keys.
/// @return kInvalidArgument
Result<AfdSection> read_section(const JsonValue& raw);

/// Step 5: the values.
/// @return kInvalidArgument
Result<AfdConfig> validate_section(const AfdSection& section, const ParseConfigOptions& options);

}  // namespace afd
