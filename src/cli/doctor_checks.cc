#include "cli/doctor_checks.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/cpu_place.h"
#include "base/dynamic_library.h"
#include "base/errno_text.h"
#include "base/shared_segment.h"
#include "cli/plugins.h"

namespace afd::cli {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
/// Below this, even a small model's windows may not fit.
constexpr std::uint64_t kSharedMemoryLow = 64 * kMiB;
constexpr const char* kCudaDriver = "libcuda.so.1";

__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...) {
  char buffer[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(buffer, sizeof(buffer), format, arguments);
  va_end(arguments);
  return std::string(buffer, std::min(static_cast<std::size_t>(length), sizeof(buffer) - 1));
}

/// A small file's first line, or empty.
std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

Finding shared_memory() {
  struct statvfs info {};
  if (::statvfs("/dev/shm", &info) != 0) {
    return {Health::kProblem, "/dev/shm: " + base::errno_text(errno)};
  }
  const std::uint64_t size = std::uint64_t{info.f_blocks} * info.f_frsize;
  const std::uint64_t available = std::uint64_t{info.f_bavail} * info.f_frsize;
  const Result<base::SharedSegment> segment = base::SharedSegment::create(4096);
  if (!segment) {
    return {Health::kProblem, segment.error().message};
  }
  return {available < kSharedMemoryLow ? Health::kNote : Health::kGood,
          text("%" PRIu64 " of %" PRIu64 " MiB free in /dev/shm", available / kMiB, size / kMiB)};
}

Finding leftovers(bool sweep) {
  std::size_t num_dead = 0;
  std::size_t num_alive = 0;
  std::size_t num_removed = 0;
  std::uint64_t dead_bytes = 0;
  for (const base::LeftSegment& segment : base::list_segments()) {
    if (segment.creator_alive) {
      ++num_alive;
      continue;
    }
    ++num_dead;
    dead_bytes += segment.size_bytes;
  }
  if (sweep) {
    num_removed = base::sweep_segments();
  }
  std::string found = text("%zu segments of dead processes, %" PRIu64 " KiB; %zu of live ones",
                           num_dead, dead_bytes / 1024, num_alive);
  if (num_dead == 0) {
    return {Health::kGood, std::move(found)};
  }
  if (sweep) {
    return {Health::kGood, found + text("; %zu removed", num_removed)};
  }
  return {Health::kNote, found + "; `afd doctor --sweep` removes the dead ones"};
}

Finding processors() {
  const std::vector<std::uint32_t> allowed = base::allowed_cpus();
  std::string list;
  for (const std::uint32_t cpu : allowed) {
    list += (list.empty() ? "" : ",") + std::to_string(cpu);
  }
  std::string found = text("%zu of %ld may be used (%s)", allowed.size(),
                           ::sysconf(_SC_NPROCESSORS_ONLN), list.c_str());
  const std::string quota = first_line("/sys/fs/cgroup/cpu.max");
  if (!quota.empty() && !quota.starts_with("max")) {
    found += "; the control group allows " + quota + " us";
  }
  return {allowed.size() < 2 ? Health::kNote : Health::kGood, std::move(found)};
}

Finding place() {
  const std::vector<std::uint32_t> cpus = base::allowed_cpus();
  if (cpus.size() < 2) {
    return {Health::kNote, text("one processor, %.2f GHz: ranks take turns", base::clock_ghz())};
  }
  const double busy = std::max(base::busy_share(cpus[0], 50), base::busy_share(cpus[1], 50));
  const Result<double> trip = base::line_round_trip_ns(cpus[0], cpus[1]);
  if (!trip) {
    return {Health::kNote, trip.error().message};
  }
  return {busy > 0.1 ? Health::kNote : Health::kGood,
          text("a line takes %.0f ns from processor %u to %u and back, %.2f GHz, %.0f %% busy",
               *trip, cpus[0], cpus[1], base::clock_ghz(), busy * 100)};
}

Finding clock() {
  const base::TickRate rate = base::calibrate_ticks();
  return rate.trusted
             ? Finding{Health::kGood, text("the counter runs evenly, %.4f ns a tick, the same on "
                                           "every processor",
                                           rate.ns_per_tick)}
             : Finding{Health::kNote, "one-way times use the slower system clock: " + rate.why_not};
}

Finding huge_pages() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::uint64_t total = 0;
  std::uint64_t size_kib = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::uint64_t value = 0;
    words >> key >> value;
    total = key == "HugePages_Total:" ? value : total;
    size_kib = key == "Hugepagesize:" ? value : size_kib;
  }
  return {Health::kGood,
          text("%" PRIu64 " of %" PRIu64 " KiB reserved; transparent: %s; shared memory: %s "
               "(not needed)",
               total, size_kib, first_line("/sys/kernel/mm/transparent_hugepage/enabled").c_str(),
               first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled").c_str())};
}

Finding locked_memory() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    return {Health::kNote, base::errno_text(errno)};
  }
  return {Health::kGood, limit.rlim_cur == RLIM_INFINITY
                             ? "unlimited"
                             : text("%" PRIu64 " KiB may be locked (RDMA needs more)",
                                    std::uint64_t{limit.rlim_cur} / 1024)};
}

/// A library that some connector needs, and what `describe` says of it once it is open.
Finding library(const char* name, const std::function<Finding(const base::DynamicLibrary&)>& look) {
  const Result<base::DynamicLibrary> opened = base::DynamicLibrary::open(name);
  if (opened) {
    return look(*opened);
  }
  return {Health::kNote, base::is_absent(opened.error())
                             ? std::string(name) + " not found"
                             : std::string(name) + ": " + opened.error().message};
}

template <typename Function>
Function* function(const base::DynamicLibrary& library, const char* name) {
  const Result<void*> symbol = library.symbol(name);
  return symbol ? reinterpret_cast<Function*>(*symbol) : nullptr;
}

Finding ucx() {
  return library("libucp.so.0", [](const base::DynamicLibrary& opened) -> Finding {
    auto* const version = function<const char*()>(opened, "ucp_get_version_string");
    return {Health::kGood, std::string("library found") +
                               (version == nullptr ? "" : std::string(", version ") + version())};
  });
}

Finding nccl() {
  return library("libnccl.so.2", [](const base::DynamicLibrary& opened) -> Finding {
    auto* const version = function<int(int*)>(opened, "ncclGetVersion");
    int number = 0;
    if (version == nullptr || version(&number) != 0) {
      return {Health::kNote, "library found, without a version"};
    }
    const std::string found =
        text("library found, version %d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    return base::DynamicLibrary::open(kCudaDriver)
               ? Finding{Health::kGood, found}
               : Finding{Health::kNote, found + ", of no use without a CUDA driver"};
  });
}

Finding cuda_devices() {
  return library(kCudaDriver, [](const base::DynamicLibrary& opened) -> Finding {
    auto* const init = function<int(unsigned)>(opened, "cuInit");
    auto* const count = function<int(int*)>(opened, "cuDeviceGetCount");
    if (init == nullptr || count == nullptr) {
      return {Health::kNote, std::string(kCudaDriver) + " is no CUDA driver"};
    }
    if (const int error = init(0); error != 0) {
      return {Health::kNote, text("the driver is there, but cuInit says %d", error)};
    }
    int num_devices = 0;
    if (const int error = count(&num_devices); error != 0) {
      return {Health::kNote, text("the driver is there, but cuDeviceGetCount says %d", error)};
    }
    return {num_devices > 0 ? Health::kGood : Health::kNote, text("%d", num_devices)};
  });
}

Finding cann() {
  return library("libascendcl.so", [](const base::DynamicLibrary&) -> Finding {
    return {Health::kGood, "libascendcl.so is there"};
  });
}

Finding connectors() {
  std::string found;
  for (const ConnectorInfo& info : known_connectors().describe()) {
    if (info.available) {
      found += (found.empty() ? "" : ", ") + info.name;
    }
  }
  return found.empty() ? Finding{Health::kProblem, "none can run; see `afd connectors`"}
                       : Finding{Health::kGood, found + " can run"};
}

}  // namespace

std::string_view to_string(Health health) {
  switch (health) {
    case Health::kGood:
      return "good";
    case Health::kNote:
      return "note";
    case Health::kProblem:
      return "problem";
  }
  return "unknown";
}

std::vector<DoctorCheck> doctor_checks(const DoctorOptions& options) {
  const bool sweep = options.sweep;
  return {{"shared memory", shared_memory},
          {"leftovers", [sweep] { return leftovers(sweep); }},
          {"processors", processors},
          {"place", place},
          {"clock", clock},
          {"huge pages", huge_pages},
          {"locked memory", locked_memory},
          {"UCX", ucx},
          {"NCCL", nccl},
          {"CUDA devices", cuda_devices},
          {"Ascend CANN", cann},
          {"connectors", connectors}};
}

}  // namespace afd::cli
