// A library opened at run time.
#pragma once

#include <string>
#include <string_view>

#include <afd/result.h>

namespace afd::base {

/// Whether `path` is a FIFO, a socket or a device: the loader would wait for its other end, or read
/// on for ever.
bool never_ends(const std::string& path);

/// An opened shared object. Never closed: its code may still stand on some thread's stack, and its
/// thread-local destructors would have nowhere to return to. Copyable.
class DynamicLibrary {
 public:
  /// @param path  a file, or a name that the loader searches for
  /// @return kUnavailable  the loader's own words
  static Result<DynamicLibrary> open(const std::string& path);

  /// @return kUnavailable  the library does not export `name`
  Result<void*> symbol(const std::string& name) const;

 private:
  DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  void* handle_ = nullptr;
  std::string path_;
};

}  // namespace afd::base
