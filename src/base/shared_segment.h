// Named shared memory under /dev/shm, and what dead processes left of it.
//
// A segment is called "/afd-<pid of its creator>-<40 hex digits>": nobody guesses it. It is 0600.
// The name goes as soon as every peer has mapped it (remove_name), so a healthy job leaves nothing
// however it dies.
//
// A creator that dies before leaves the file. While the name exists the creator holds an exclusive
// flock() on it, which ends with the process: a file that can be locked is a dead creator's. That
// holds whoever has the creator's number by now, and where processes of several containers share
// /dev/shm and do not know each other's numbers. sweep_segments() removes such files.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "base/fd.h"
#include "base/mapping.h"

namespace afd::base {

/// One mapped segment. Movable. The destructor unmaps; the creator's also removes the name, except
/// in a process forked from it.
class SharedSegment {
 public:
  SharedSegment() = default;
  ~SharedSegment() { remove_name(); }
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

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
  const std::string& name() const { return name_; }

  /// Removes the name, once, if this process created it. The memory stays mapped.
  void remove_name() noexcept;

 private:
  static Result<SharedSegment> create_empty();

  std::string name_;
  pid_t creator_ = 0;  ///< 0: not the creator, or the name is gone already
  Fd lock_;            ///< while the name exists: says that its creator lives
  Mapping mapping_;
};

struct LeftSegment {
  std::string name;
  pid_t creator = 0;
  std::uint64_t size_bytes = 0;
  bool creator_alive = false;  ///< It, or a process forked from it, holds the lock.
};

/// This user's segments that have a name at this moment: of jobs that are starting, and left by
/// processes that died while they were.
std::vector<LeftSegment> list_segments();

/// Removes the segments whose creator is dead, or only those of one dead creator.
/// @return how many
std::size_t sweep_segments();
std::size_t sweep_segments(pid_t creator);

}  // namespace afd::base
