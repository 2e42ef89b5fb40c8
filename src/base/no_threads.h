// For tests: a system that has no thread left.
#pragma once

#include <cstddef>

#include <pthread.h>

namespace afd::base {

/// While it lives, no thread of this process starts: its stack would not fit any address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_t attributes;
    ::pthread_getattr_default_np(&before_);
    ::pthread_attr_init(&attributes);
    ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 60);
    ::pthread_setattr_default_np(&attributes);
    ::pthread_attr_destroy(&attributes);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace afd::base
