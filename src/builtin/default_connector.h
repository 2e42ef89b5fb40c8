// The connector that programs use where nobody chooses one: it needs nothing that a Linux machine
// lacks, and its ranks may be processes.
#pragma once

#include <string_view>

namespace afd {

inline constexpr std::string_view kDefaultConnector = "P2pAFDConnector";

}  // namespace afd
