#include "cli/ready_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/errno_text.h"
#include "base/fd.h"

namespace afd::cli {

Result<void> ReadyFile::prepare() {
  if (path_.empty()) {
    return {};
  }
  struct stat info {};
  if (::lstat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kInvalidArgument,
                path_ + " is there and is no file, expected a name for a new one");
  }
  const std::string trial = path_ + ".tmp." + std::to_string(::getpid());
  if (Result<void> made = make(trial, ""); !made) {
    return fail(ErrorCode::kInvalidArgument, made.error().message);
  }
  ::unlink(trial.c_str());
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot remove " + path_ + " of an earlier run: " + base::errno_text(errno));
  }
  return {};
}

Result<void> ReadyFile::make(const std::string& path, std::string_view text) const {
  ::unlink(path.c_str());  // of an earlier process of this number
  const base::Fd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
  if (!file) {
    return fail(ErrorCode::kUnavailable, "cannot make " + path + ": " + base::errno_text(errno));
  }
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const Error error{ErrorCode::kUnavailable,
                      "cannot write " + path + ": " + base::errno_text(errno)};
    ::unlink(path.c_str());
    return fail(error);
  }
  return {};
}

Result<void> ReadyFile::write(std::string_view text) {
  if (path_.empty() || over_) {
    return {};
  }
  const std::string next = path_ + ".tmp." + std::to_string(::getpid());
  if (Result<void> made = make(next, text); !made) {
    return made;
  }
  if (std::rename(next.c_str(), path_.c_str()) != 0) {
    const Error error{ErrorCode::kUnavailable,
                      "cannot make " + path_ + ": " + base::errno_text(errno)};
    ::unlink(next.c_str());
    return fail(error);
  }
  there_ = true;
  // remove() came in between: either it saw the file, or this sees that it is over.
  if (over_) {
    remove();
  }
  return {};
}

void ReadyFile::remove() noexcept {
  over_ = true;
  if (there_.exchange(false)) {
    ::unlink(path_.c_str());
  }
}

}  // namespace afd::cli
