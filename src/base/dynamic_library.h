// A library opened at run time.
#pragma once

#include <string>

#include <afd/result.h>

namespace afd::base {

/// An opened shared object. Never closed: its code may still stand on some thread's stack, and its
/// thread-local destructors would have nowhere to return to. Copyable.
class DynamicLibrary {
 public:
  /// @param path  a file, or a name that the loader searches for
  /// @return kUnavailable  "cannot open it: " and the loader's own words, or that it is a FIFO, a
  ///                       socket or a device; the caller names the library
  static Result<DynamicLibrary> open(const std::string& path);

  /// @return kUnavailable  the library does not export `name`: the loader's own words
  Result<void*> symbol(const std::string& name) const;

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}

  void* handle_ = nullptr;
};

/// Whether open() failed because there is no such library, rather than one that does not load.
bool is_absent(const Error& error);

}  // namespace afd::base
