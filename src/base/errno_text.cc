#include "base/errno_text.h"

#include <system_error>

namespace afd::base {

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number) + " (errno " + std::to_string(error_number) +
         ")";
}

}  // namespace afd::base
