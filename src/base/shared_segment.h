// Named shared memory under /dev/shm. The name's life is shared_name.h's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include <afd/result.h>

#include "base/mapping.h"
#include "base/shared_name.h"

namespace afd::base {

/// One mapped segment. Movable. The destructor unmaps; the creator's also removes the name.
class SharedSegment {
 public:
  /// A new zeroed segment, every page of it there.
  /// @return kUnavailable  too little shared memory (bytes needed, free and missing), or none
  static Result<SharedSegment> create(std::uint64_t size_bytes);

  /// Maps a peer's segment.
  /// @param name  as a peer told it: anything but a segment's name is refused.
  /// @return kProtocolMismatch  not a segment's name, not ours, or not of `size_bytes`
  ///         kUnavailable       there is no such segment, or it cannot be mapped
  static Result<SharedSegment> open(std::string_view name, std::uint64_t size_bytes);

  std::byte* data() const { return mapping_.data(); }
  std::uint64_t size() const { return mapping_.size(); }
  /// The creator's. Empty for a peer.
  const std::string& name() const { return name_.text(); }

  /// Removes the name, once, if this process created it. The memory stays mapped.
  void remove_name() noexcept { static_cast<void>(name_.remove()); }

 private:
  SharedName name_;
  Mapping mapping_;
};

}  // namespace afd::base
