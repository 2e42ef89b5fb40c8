// Text for an errno value, from any thread.
#pragma once

#include <string>

namespace afd::base {

/// "No space left on device (errno 28)".
std::string errno_text(int error_number);

}  // namespace afd::base
