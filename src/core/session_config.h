// The `session` object of an `afd` section, which the reference does not have: how ranks meet
// beyond one host.
//
// Threads: plain functions.
#pragma once

#include <afd/config.h>
#include <afd/result.h>

#include "core/json.h"

namespace afd {

/// @return kInvalidArgument  no mapping, an unknown key, a type, then as validate_session_config()
Result<SessionConfig> parse_session_config(const JsonValue& raw);

/// Every key, in the struct's order.
JsonValue session_config_json(const SessionConfig& config);

}  // namespace afd
