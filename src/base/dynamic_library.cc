#include "base/dynamic_library.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <utility>

namespace afd::base {
namespace {

std::string loader_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

}  // namespace

bool never_ends(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

Result<DynamicLibrary> DynamicLibrary::open(const std::string& path) {
  if (never_ends(path)) {
    return fail(ErrorCode::kUnavailable, "cannot open library " + path + ": not a regular file");
  }
  // Every symbol is bound now: a missing one is an error here, not a crash in some later call.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return fail(ErrorCode::kUnavailable, "cannot open library " + path + ": " + loader_error());
  }
  return DynamicLibrary(handle, path);
}

Result<void*> DynamicLibrary::symbol(const std::string& name) const {
  ::dlerror();
  void* address = ::dlsym(handle_, name.c_str());
  if (address == nullptr) {
    return fail(ErrorCode::kUnavailable,
                "library " + path_ + " exports no " + name + ": " + loader_error());
  }
  return address;
}

}  // namespace afd::base
