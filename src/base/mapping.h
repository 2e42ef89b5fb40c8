// A mapped range of memory that unmaps itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <afd/result.h>

namespace afd::base {

/// What the kernel thinks it can give without swapping (MemAvailable). All ones if it does not say.
std::uint64_t available_memory_bytes();

/// Owns one mapping, or none. Movable, not copyable. Every page is there from the start, so that
/// using the memory causes no page fault.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping();
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Zeroed memory of this process, in huge pages where the kernel likes to.
  /// @return kUnavailable  too little memory (bytes needed, free and missing)
  static Result<Mapping> anonymous(std::uint64_t size_bytes);

  /// `size_bytes` of the file behind `fd`, shared, to read and write.
  /// @return kUnavailable  too little memory or address space
  static Result<Mapping> shared_file(int fd, std::uint64_t size_bytes);

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  Mapping(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace afd::base
