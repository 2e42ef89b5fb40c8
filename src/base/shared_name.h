// Names under /dev/shm, and what dead processes left of them.
//
// A name is "/afd-<pid of its creator>-<40 hex digits>": nobody guesses it. What it names is 0600.
// The name goes as soon as every peer has opened it (remove), so a healthy job leaves nothing
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

namespace afd::base {

/// A name of this process. Movable. The destructor removes it, except in a process forked from its
/// creator.
class SharedName {
 public:
  enum class Kind : std::uint8_t { kMemory, kFifo };

  SharedName() = default;
  ~SharedName() { remove(); }
  SharedName(SharedName&& other) noexcept;
  SharedName& operator=(SharedName&& other) noexcept;
  SharedName(const SharedName&) = delete;
  SharedName& operator=(const SharedName&) = delete;

  /// A new, empty file or FIFO, open for both ways; a FIFO without blocking.
  /// @return kUnavailable  /dev/shm takes none
  static Result<SharedName> create(Kind kind);

  const std::string& text() const { return text_; }
  /// -1 once the name is gone.
  int fd() const { return fd_.get(); }
  /// Removes the name, once, if this process created it.
  /// @return the descriptor that was its lock
  Fd remove() noexcept;

 private:
  std::string text_;
  pid_t creator_ = 0;  ///< 0: not the creator, or the name is gone already
  Fd fd_;              ///< while the name exists: says that its creator lives
};

/// Opens what a peer's name stands for.
/// @param name  as a peer told it: anything but such a name is refused
/// @return kProtocolMismatch  not such a name, or not this user's, or of another kind
///         kUnavailable       there is no such file, or it cannot be opened
Result<Fd> open_shared_name(std::string_view name, SharedName::Kind kind);

struct LeftSegment {
  std::string name;
  pid_t creator = 0;
  std::uint64_t size_bytes = 0;
  bool creator_alive = false;  ///< It, or a process forked from it, holds the lock.
};

/// This user's names at this moment: of jobs that are starting, and left by processes that died
/// while they were.
std::vector<LeftSegment> list_segments();

/// Removes the names whose creator is dead, or only those of one dead creator.
/// @return how many
std::size_t sweep_segments();
std::size_t sweep_segments(pid_t creator);

/// The directory, as messages name it.
inline constexpr const char* kSharedDirectory = "/dev/shm";

/// Where this process's names can be opened: the same text in every process of this user that sees
/// the same /dev/shm under the same kernel, and in no other. No space in it. Empty: unknown.
std::string shared_place();

}  // namespace afd::base
