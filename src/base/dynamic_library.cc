#include "base/dynamic_library.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <cstddef>
#include <string_view>

namespace afd::base {
namespace {

constexpr std::string_view kCannotOpen = "cannot open it: ";

/// What went wrong in the calling thread's last call of dlopen or dlsym.
std::string loader_error() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

/// Less the library's own name in front: whoever reports it names the library. The name of another
/// one, on which it depends, stays.
std::string loader_error_about(const std::string& path) {
  std::string why = loader_error();
  const std::string prefix = path + ": ";
  return why.starts_with(prefix) ? why.substr(prefix.size()) : why;
}

/// A FIFO, a socket or a device, such as a terminal: the loader would wait there for bytes.
bool is_no_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

/// Puts back what the program does on a fatal signal: a library's constructors may have taken it
/// over (UCX prints a backtrace and exits), which is for the program to decide.
class KeptSignals {
 public:
  KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
    }
  }
  ~KeptSignals() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  KeptSignals(const KeptSignals&) = delete;
  KeptSignals& operator=(const KeptSignals&) = delete;

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open(const std::string& path) {
  if (is_no_file(path)) {
    return fail(ErrorCode::kUnavailable, std::string(kCannotOpen) + "not a regular file");
  }
  const KeptSignals kept;
  // RTLD_NOW: a missing function is found here, not in the middle of a transfer. RTLD_LOCAL: two
  // libraries may have functions of the same name.
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return fail(ErrorCode::kUnavailable, std::string(kCannotOpen) + loader_error_about(path));
  }
  return DynamicLibrary(handle);
}

Result<void*> DynamicLibrary::symbol(const std::string& name) const {
  ::dlerror();
  void* address = ::dlsym(handle_, name.c_str());
  if (address == nullptr) {
    return fail(ErrorCode::kUnavailable, loader_error());
  }
  return address;
}

bool is_absent(const Error& error) {
  // The loader's words, which it puts after the library that it means.
  return error.message.starts_with(std::string(kCannotOpen) +
                                   "cannot open shared object file: No such");
}

}  // namespace afd::base
