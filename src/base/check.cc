#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace afd::base {

void check_failed(const char* file, int line, const char* condition, const char* names,
                  const std::string& values) noexcept {
  if (values.empty()) {
    std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  } else {
    std::fprintf(stderr, "%s:%d: check failed: %s (%s = %s)\n", file, line, condition, names,
                 values.c_str());
  }
  std::abort();
}

}  // namespace afd::base
