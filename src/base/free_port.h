// A port for ranks of this machine to meet at, where the user named none.
#pragma once

#include <cstdint>
#include <string>

#include <afd/result.h>

namespace afd::base {

/// A TCP port of `host` that is free at this moment; another program may take it in the next.
/// @return kInvalidArgument  the host cannot be resolved;  kUnavailable  nothing there can be bound
Result<std::uint16_t> find_free_port(const std::string& host);

}  // namespace afd::base
