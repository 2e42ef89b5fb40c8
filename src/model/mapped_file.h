// A file mapped read-only. Threads: immutable; the pages are shared.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <afd/result.h>

namespace afd::model {

class MappedFile {
 public:
  /// @return kInvalidArgument  it cannot be opened or mapped, or is not a regular file; names the
  ///                           path and the system's reason
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}

  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace afd::model
