#include "base/shared_segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"

namespace afd::base {
namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr std::string_view kPrefix = "/afd-";
constexpr std::size_t kRandomBytes = 20;
// A name is given up where somebody looks at it in the moment before it is locked.
constexpr int kAttemptsMax = 100;

Result<std::string> new_name() {
  std::array<unsigned char, kRandomBytes> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return fail(ErrorCode::kUnavailable, "no random bytes: " + errno_text(errno));
  }
  std::string name = std::string(kPrefix) + std::to_string(::getpid()) + "-";
  for (const unsigned char byte : bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name;
}

/// The process in a segment's name, or nothing if it is not exactly such a name. So no name that
/// passes has a second slash or a dot in it.
std::optional<pid_t> creator_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  pid_t creator = 0;
  const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), creator);
  if (error != std::errc() || creator <= 0 || name.front() == '0') {
    return std::nullopt;
  }
  name.remove_prefix(static_cast<std::size_t>(rest - name.data()));
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (name.size() != 1 + 2 * kRandomBytes || name.front() != '-' ||
      !std::all_of(name.begin() + 1, name.end(), is_hex)) {
    return std::nullopt;
  }
  return creator;
}

/// What can still be put into shared memory: the file system's room, and no more than there is
/// memory (the file system may claim all of it).
std::uint64_t free_bytes() {
  const std::uint64_t memory = available_memory_bytes();
  struct statvfs room {};
  if (::statvfs(kDirectory, &room) != 0 || room.f_blocks == 0) {
    return memory;
  }
  return std::min(memory, std::uint64_t{room.f_bavail} * room.f_frsize);
}

tl::unexpected<Error> too_little(std::uint64_t size_bytes) {
  const std::uint64_t free = free_bytes();
  return fail(ErrorCode::kUnavailable,
              "too little shared memory: " + std::to_string(size_bytes) + " bytes needed, " +
                  std::to_string(free) + " free in " + kDirectory + ", " +
                  std::to_string(size_bytes > free ? size_bytes - free : 0) + " missing");
}

/// Whether the creator of the segment behind `fd` is dead. No, where that cannot be told.
bool is_left(int fd) {
  // Shared: who looks at the same time does not take this one for the creator.
  return ::flock(fd, LOCK_SH | LOCK_NB) == 0;
}

/// Calls `visit` for each of this user's segments that have a name, while a lock keeps the creator
/// of one that is left from beginning to use it.
template <typename Visit>
void for_each_segment(Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(kDirectory), ::closedir);
  if (!directory) {
    return;
  }
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string name = std::string("/") + entry->d_name;
    const std::optional<pid_t> creator = creator_of(name);
    if (!creator) {
      continue;
    }
    const int directory_fd = ::dirfd(directory.get());
    const Fd fd(
        ::openat(directory_fd, entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    const int looked = fd ? ::fstat(fd.get(), &status)
                          : ::fstatat(directory_fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW);
    if (looked != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
      continue;
    }
    const LeftSegment segment{.name = name,
                              .creator = *creator,
                              .size_bytes = static_cast<std::uint64_t>(status.st_size),
                              .creator_alive = !fd || !is_left(fd.get())};
    visit(segment);
  }
}

std::size_t sweep_if(const std::function<bool(const LeftSegment&)>& wanted) {
  std::size_t num_removed = 0;
  // Removed while the lock is held: a creator that has not locked it yet finds it gone.
  for_each_segment([&](const LeftSegment& segment) {
    if (!segment.creator_alive && wanted(segment) && ::shm_unlink(segment.name.c_str()) == 0) {
      ++num_removed;
    }
  });
  return num_removed;
}

}  // namespace

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : name_(std::move(other.name_)),
      creator_(std::exchange(other.creator_, 0)),
      lock_(std::move(other.lock_)),
      mapping_(std::move(other.mapping_)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(creator_, other.creator_);
  std::swap(lock_, other.lock_);
  std::swap(mapping_, other.mapping_);
  return *this;
}

Result<SharedSegment> SharedSegment::create_empty() {
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    Result<std::string> name = new_name();
    if (!name) {
      return fail(std::move(name).error());
    }
    Fd fd(::shm_open(name->c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
    if (!fd) {
      return fail(ErrorCode::kUnavailable,
                  "cannot create shared memory " + *name + ": " + errno_text(errno));
    }
    SharedSegment segment;
    segment.name_ = *std::move(name);
    segment.creator_ = ::getpid();  // From here on the destructor removes it.
    segment.lock_ = std::move(fd);
    // A file system without locks (any other error): nobody else can lock it either, nor sweeps it.
    const bool looked_at =
        ::flock(segment.lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat status {};
    if (!looked_at && ::fstat(segment.lock_.get(), &status) == 0 && status.st_nlink > 0) {
      return segment;
    }
  }
  return fail(ErrorCode::kUnavailable,
              "cannot create shared memory: others take every new name away");
}

Result<SharedSegment> SharedSegment::create(std::uint64_t size_bytes) {
  if (size_bytes > free_bytes() || size_bytes > std::uint64_t{std::numeric_limits<off_t>::max()}) {
    return too_little(size_bytes);
  }
  Result<SharedSegment> created = create_empty();
  if (!created) {
    return created;
  }
  SharedSegment segment = *std::move(created);
  const int fd = segment.lock_.get();

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
  if (!creator_of(name)) {
    return fail(ErrorCode::kProtocolMismatch, "not the name of a shared-memory segment");
  }
  SharedSegment segment;
  segment.name_ = std::string(name);
  const Fd fd(::shm_open(segment.name_.c_str(), O_RDWR, 0));  // Follows no link.
  if (!fd) {
    return fail(ErrorCode::kUnavailable, "cannot open shared memory " + segment.name_ + ": " +
                                             errno_text(errno) +
                                             "; both ranks must see the same /dev/shm");
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    return fail(ErrorCode::kUnavailable,
                "cannot look at shared memory " + segment.name_ + ": " + errno_text(errno));
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    return fail(ErrorCode::kProtocolMismatch,
                "shared memory " + segment.name_ + " is not a file of this user");
  }
  if (status.st_size < 0 || static_cast<std::uint64_t>(status.st_size) != size_bytes) {
    return fail(ErrorCode::kProtocolMismatch, "shared memory " + segment.name_ + " has " +
                                                  std::to_string(status.st_size) +
                                                  " bytes, expected " + std::to_string(size_bytes));
  }
  Result<Mapping> mapping = Mapping::shared_file(fd.get(), size_bytes);
  if (!mapping) {
    return fail(std::move(mapping).error());
  }
  segment.mapping_ = *std::move(mapping);
  return segment;
}

void SharedSegment::remove_name() noexcept {
  if (creator_ != 0 && creator_ == ::getpid()) {
    ::shm_unlink(name_.c_str());
  }
  creator_ = 0;
  lock_.reset();
}

std::vector<LeftSegment> list_segments() {
  std::vector<LeftSegment> segments;
  for_each_segment([&](const LeftSegment& segment) { segments.push_back(segment); });
  return segments;
}

std::size_t sweep_segments() {
  return sweep_if([](const LeftSegment&) { return true; });
}

std::size_t sweep_segments(pid_t creator) {
  return sweep_if([&](const LeftSegment& segment) { return segment.creator == creator; });
}

}  // namespace afd::base
