#include "base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

#include "base/errno_text.h"

namespace afd::base {
namespace {

constexpr std::uint64_t kPageBytes = 4096;

/// Brings every page into the page table, writable. MAP_POPULATE brings them in readable only where
/// the file system tracks writes, and ignores errors; MADV_POPULATE_WRITE (Linux 5.14) does
/// neither.
Result<void> populate(std::byte* data, std::uint64_t size_bytes) {
#if !defined(MADV_POPULATE_WRITE)
  constexpr int MADV_POPULATE_WRITE = 23;
#endif
  int result = 0;
  do {
    result = ::madvise(data, size_bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && errno == EINTR);
  if (result == 0) {
    return {};
  }
  if (errno != EINVAL) {
    return fail(ErrorCode::kUnavailable, "cannot fault in " + std::to_string(size_bytes) +
                                             " bytes of memory: " + errno_text(errno));
  }
  // An older kernel: write to every page what is there already. Atomically, since a peer may be
  // writing too.
  for (std::uint64_t offset = 0; offset < size_bytes; offset += kPageBytes) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(data + offset), 0, __ATOMIC_RELAXED);
  }
  return {};
}

}  // namespace

std::uint64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib && std::getline(meminfo, unit)) {
    if (key == "MemAvailable:") {
      return kib * 1024;
    }
  }
  return std::numeric_limits<std::uint64_t>::max();
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

Result<Mapping> Mapping::anonymous(std::uint64_t size_bytes) {
  // mmap would promise it, and bringing the pages in would then end some process.
  if (const std::uint64_t free = available_memory_bytes(); size_bytes > free) {
    return fail(ErrorCode::kUnavailable, "too little memory: " + std::to_string(size_bytes) +
                                             " bytes needed, " + std::to_string(free) + " free, " +
                                             std::to_string(size_bytes - free) + " missing");
  }
  void* address =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) {
    return fail(ErrorCode::kUnavailable,
                "cannot map " + std::to_string(size_bytes) + " bytes: " + errno_text(errno));
  }
  Mapping mapping(static_cast<std::byte*>(address), size_bytes);
  ::madvise(address, size_bytes,
            MADV_HUGEPAGE);  // A wish: fewer faults at set-up, fewer TLB misses.
  if (Result<void> populated = populate(mapping.data(), size_bytes); !populated) {
    return fail(std::move(populated).error());
  }
  return mapping;
}

Result<Mapping> Mapping::shared_file(int fd, std::uint64_t size_bytes) {
  void* address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    return fail(ErrorCode::kUnavailable,
                "cannot map " + std::to_string(size_bytes) + " bytes: " + errno_text(errno));
  }
  Mapping mapping(static_cast<std::byte*>(address), size_bytes);
  if (Result<void> populated = populate(mapping.data(), size_bytes); !populated) {
    return fail(std::move(populated).error());
  }
  return mapping;
}

}  // namespace afd::base
