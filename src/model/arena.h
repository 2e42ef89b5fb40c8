// Memory for weights: given out in one piece after another and returned as a whole.
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <vector>

#include <afd/result.h>

#include "base/mapping.h"

namespace afd::model {

class Arena {
 public:
  /// Zeroed, 64-byte aligned, alive as long as the arena, in huge pages where there are any.
  /// @return kUnavailable  too little memory
  Result<std::byte*> allocate(std::size_t size_bytes);

 private:
  std::vector<base::Mapping> chunks_;
  std::size_t used_bytes_ = 0;  ///< Of the last chunk.
};

}  // namespace afd::model
