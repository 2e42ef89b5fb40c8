// Processors: how many this process may use, and pinning.
#pragma once

#include <cstdint>
#include <vector>

#include <afd/result.h>

namespace afd::base {

/// Numbers of the processors that the calling thread may run on, ascending. Never empty.
std::vector<std::uint32_t> allowed_cpus();

/// Restricts the calling thread to these processors.
/// @return kInvalidArgument  empty, or none of them can be used
Result<void> pin_this_thread(const std::vector<std::uint32_t>& cpus);

}  // namespace afd::base
