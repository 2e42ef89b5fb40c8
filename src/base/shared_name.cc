#include "base/shared_name.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "base/errno_text.h"

namespace afd::base {
namespace {

constexpr std::string_view kPrefix = "/afd-";
constexpr std::size_t kRandomBytes = 20;
// A name is given up where somebody looks at it in the moment before it is locked.
constexpr int kAttemptsMax = 100;

std::string path_of(std::string_view name) {
  return std::string(kSharedDirectory) + std::string(name);
}

constexpr const char* noun(SharedName::Kind kind) {
  return kind == SharedName::Kind::kMemory ? "shared memory" : "FIFO";
}

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

/// Whether the creator of the segment behind `fd` is dead. No, where that cannot be told.
bool is_left(int fd) {
  // Shared: who looks at the same time does not take this one for the creator.
  return ::flock(fd, LOCK_SH | LOCK_NB) == 0;
}

/// Calls `visit` for each of this user's segments that have a name, while a lock keeps the creator
/// of one that is left from beginning to use it.
template <typename Visit>
void for_each_segment(Visit visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(kSharedDirectory), ::closedir);
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
    if (looked != 0 || !(S_ISREG(status.st_mode) || S_ISFIFO(status.st_mode)) ||
        status.st_uid != ::geteuid()) {
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
    if (!segment.creator_alive && wanted(segment) && ::unlink(path_of(segment.name).c_str()) == 0) {
      ++num_removed;
    }
  });
  return num_removed;
}

}  // namespace

SharedName::SharedName(SharedName&& other) noexcept
    : text_(std::move(other.text_)),
      creator_(std::exchange(other.creator_, 0)),
      fd_(std::move(other.fd_)) {}

SharedName& SharedName::operator=(SharedName&& other) noexcept {
  std::swap(text_, other.text_);
  std::swap(creator_, other.creator_);
  std::swap(fd_, other.fd_);
  return *this;
}

Result<SharedName> SharedName::create(Kind kind) {
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    Result<std::string> text = new_name();
    if (!text) {
      return fail(std::move(text).error());
    }
    const std::string path = path_of(*text);
    constexpr int kFlags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    SharedName name;
    const bool made = kind == Kind::kMemory || ::mkfifo(path.c_str(), 0600) == 0;
    if (made) {
      name.fd_.reset(kind == Kind::kMemory ? ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0600)
                                           : ::open(path.c_str(), kFlags));
    }
    if (!name.fd_) {
      const int error_number = errno;
      if (made && error_number == ENOENT) {
        continue;  // A FIFO has a name before it can be locked: somebody's sweep was faster.
      }
      if (made && kind == Kind::kFifo) {
        ::unlink(path.c_str());
      }
      return fail(ErrorCode::kUnavailable, std::string("cannot create ") + noun(kind) + " " +
                                               *text + ": " + errno_text(error_number));
    }
    name.text_ = *std::move(text);
    name.creator_ = ::getpid();  // From here on the destructor removes it.
    // A file system without locks (any other error): nobody else can lock it either, nor sweeps it.
    const bool looked_at = ::flock(name.fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    struct stat status {};
    if (!looked_at && ::fstat(name.fd_.get(), &status) == 0 && status.st_nlink > 0) {
      return name;
    }
  }
  return fail(ErrorCode::kUnavailable,
              std::string("cannot create ") + noun(kind) + ": others take every new name away");
}

Fd SharedName::remove() noexcept {
  if (creator_ != 0 && creator_ == ::getpid()) {
    ::unlink(path_of(text_).c_str());
  }
  creator_ = 0;
  return std::move(fd_);
}

Result<Fd> open_shared_name(std::string_view name, SharedName::Kind kind) {
  if (!creator_of(name)) {
    return fail(ErrorCode::kProtocolMismatch,
                std::string("not the name of a ") +
                    (kind == SharedName::Kind::kMemory ? "shared-memory segment" : "FIFO of ours"));
  }
  const std::string what = std::string(noun(kind)) + " " + std::string(name);
  Fd fd(::open(path_of(name).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    return fail(ErrorCode::kUnavailable, "cannot open " + what + ": " + errno_text(errno) +
                                             "; both ranks must see the same " + kSharedDirectory);
  }
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    return fail(ErrorCode::kUnavailable, "cannot look at " + what + ": " + errno_text(errno));
  }
  const bool right_kind =
      kind == SharedName::Kind::kMemory ? S_ISREG(status.st_mode) : S_ISFIFO(status.st_mode);
  if (!right_kind || status.st_uid != ::geteuid()) {
    return fail(ErrorCode::kProtocolMismatch, what + " is not a file of this user");
  }
  return fd;
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

std::string shared_place() {
  struct stat status {};
  std::string boot_id;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!(file >> boot_id) || ::stat(kSharedDirectory, &status) != 0) {
    return {};
  }
  return boot_id + ':' + std::to_string(status.st_dev) + ':' + std::to_string(status.st_ino) + ':' +
         std::to_string(::geteuid());
}

}  // namespace afd::base
