#include "base/shared_segment.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "base/errno_text.h"

namespace afd::base {
namespace {

/// What can still be put into shared memory: the file system's room, and no more than there is
/// memory (the file system may claim all of it).
std::uint64_t free_bytes() {
  const std::uint64_t memory = available_memory_bytes();
  struct statvfs room {};
  if (::statvfs(kSharedDirectory, &room) != 0 || room.f_blocks == 0) {
    return memory;
  }
  return std::min(memory, std::uint64_t{room.f_bavail} * room.f_frsize);
}

tl::unexpected<Error> too_little(std::uint64_t size_bytes) {
  const std::uint64_t free = free_bytes();
  return fail(ErrorCode::kUnavailable,
              "too little shared memory: " + std::to_string(size_bytes) + " bytes needed, " +
                  std::to_string(free) + " free in " + kSharedDirectory + ", " +
                  std::to_string(size_bytes > free ? size_bytes - free : 0) + " missing");
}

}  // namespace

Result<SharedSegment> SharedSegment::create(std::uint64_t size_bytes) {
  if (size_bytes > free_bytes() || size_bytes > std::uint64_t{std::numeric_limits<off_t>::max()}) {
    return too_little(size_bytes);
  }
  Result<SharedName> created = SharedName::create(SharedName::Kind::kMemory);
  if (!created) {
    return fail(std::move(created).error());
  }
  SharedSegment segment;
  segment.name_ = *std::move(created);
  const int fd = segment.name_.fd();

  // Reserves every page now: a page that is missing later would be a SIGBUS.
  int error_number = 0;
  do {
    error_number = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes));
  } while (error_number == EINTR);
  if (error_number == ENOSPC) {
    return too_little(size_bytes);
  }
  if (error_number != 0) {
    return fail(ErrorCode::kUnavailable,
                "cannot reserve " + std::to_string(size_bytes) +
                    " bytes of shared memory: " + errno_text(error_number));
  }
  Result<Mapping> mapping = Mapping::shared_file(fd, size_bytes);
  if (!mapping) {
    return fail(std::move(mapping).error());
  }
  segment.mapping_ = *std::move(mapping);
  return segment;
}

Result<SharedSegment> SharedSegment::open(std::string_view name, std::uint64_t size_bytes) {
  const Result<Fd> fd = open_shared_name(name, SharedName::Kind::kMemory);
  if (!fd) {
    return fail(fd.error());
  }
  const std::string what = "shared memory " + std::string(name);
  struct stat status {};
  if (::fstat(fd->get(), &status) != 0) {
    return fail(ErrorCode::kUnavailable, "cannot look at " + what + ": " + errno_text(errno));
  }
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) != size_bytes) {
    return fail(ErrorCode::kProtocolMismatch, what + " has " + std::to_string(status.st_size) +
                                                  " bytes, expected " + std::to_string(size_bytes));
  }
  Result<Mapping> mapping = Mapping::shared_file(fd->get(), size_bytes);
  if (!mapping) {
    return fail(std::move(mapping).error());
  }
  SharedSegment segment;
  segment.mapping_ = *std::move(mapping);
  return segment;
}

}  // namespace afd::base
