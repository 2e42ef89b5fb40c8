#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/errno_text.h"

namespace afd::model {

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Without O_NONBLOCK a FIFO waits here for a writer. A regular file does not know it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
  }
  struct stat status = {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    return fail(ErrorCode::kInvalidArgument, path + ": not a regular file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int map_errno = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    return fail(ErrorCode::kInvalidArgument, path + ": cannot map " + std::to_string(size) +
                                                 " bytes: " + base::errno_text(map_errno));
  }
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace afd::model
