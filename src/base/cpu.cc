#include "base/cpu.h"

#include <sched.h>

#include <cerrno>
#include <string>

#include "base/errno_text.h"

namespace afd::base {

std::vector<std::uint32_t> allowed_cpus() {
  std::vector<std::uint32_t> cpus;
  // The kernel refuses a mask smaller than its own with EINVAL, so it grows until it fits.
  for (int num_cpus = 1024; num_cpus <= 1 << 16; num_cpus *= 2) {
    cpu_set_t* mask = CPU_ALLOC(static_cast<std::size_t>(num_cpus));
    const std::size_t mask_bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(num_cpus));
    const bool fits = ::sched_getaffinity(0, mask_bytes, mask) == 0;
    for (int cpu = 0; fits && cpu < num_cpus; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), mask_bytes, mask)) {
        cpus.push_back(static_cast<std::uint32_t>(cpu));
      }
    }
    CPU_FREE(mask);
    if (fits) {
      break;
    }
  }
  if (cpus.empty()) {
    cpus.push_back(0);
  }
  return cpus;
}

Result<void> pin_this_thread(const std::vector<std::uint32_t>& cpus) {
  constexpr std::uint32_t kCpusMax = 1 << 16;
  std::string names;
  cpu_set_t* mask = CPU_ALLOC(kCpusMax);
  const std::size_t mask_bytes = CPU_ALLOC_SIZE(kCpusMax);
  CPU_ZERO_S(mask_bytes, mask);
  for (const std::uint32_t cpu : cpus) {
    names += (names.empty() ? "" : ", ") + std::to_string(cpu);
    if (cpu < kCpusMax) {
      CPU_SET_S(cpu, mask_bytes, mask);
    }
  }
  const int result = ::sched_setaffinity(0, mask_bytes, mask);
  const int error_number = errno;
  CPU_FREE(mask);
  if (result != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot run on processors [" + names + "]: " + errno_text(error_number));
  }
  return {};
}

}  // namespace afd::base
