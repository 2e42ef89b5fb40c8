#include "base/cpu_place.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/fence.h"
#include "base/thread.h"

namespace afd::base {
namespace {

constexpr std::uint32_t kRounds = 4000;

struct Line {
  // Ball of the ping-pong: odd belongs to the echo, even to the caller. Release and acquire only
  // because there is no cheaper way to say it; nothing else is ordered by it.
  alignas(64) std::atomic<std::uint32_t> ball{0};
  alignas(64) std::atomic<bool> stop{false};
};

void echo(Line& line) {
  while (!line.stop.load(std::memory_order_relaxed)) {
    const std::uint32_t ball = line.ball.load(std::memory_order_acquire);
    if (ball % 2 == 1) {
      line.ball.store(ball + 1, std::memory_order_release);
    }
    spin_pause();
  }
}

struct CpuTimes {
  std::uint64_t busy = 0;
  std::uint64_t total = 0;
};

CpuTimes read_times(std::uint32_t cpu) {
  std::ifstream stat("/proc/stat");
  const std::string wanted = "cpu" + std::to_string(cpu);
  for (std::string name; stat >> name;) {
    if (name == wanted) {
      CpuTimes times;
      std::uint64_t value = 0;
      for (int field = 0; field < 8 && stat >> value; ++field) {
        times.total += value;
        times.busy += field == 3 || field == 4 ? 0 : value;  // idle, iowait
      }
      return times;
    }
    stat.ignore(4096, '\n');
  }
  return {};
}

}  // namespace

Result<double> line_round_trip_ns(std::uint32_t cpu_a, std::uint32_t cpu_b) {
  Line line;
  std::vector<std::uint64_t> ticks_taken;
  Result<void> pinned_a;
  Result<void> pinned_b;
  std::atomic<bool> echo_ready{false};  // release after pinning, acquired before the first ball
  Result<std::thread> other = start_thread([&] {
    pinned_b = pin_this_thread({cpu_b});
    echo_ready.store(true, std::memory_order_release);
    if (pinned_b) {
      echo(line);
    }
  });
  if (!other) {
    return fail(std::move(other).error());
  }
  Result<std::thread> caller = start_thread([&] {
    pinned_a = pin_this_thread({cpu_a});
    while (!echo_ready.load(std::memory_order_acquire)) {
      std::this_thread::yield();
    }
    if (pinned_a && pinned_b) {
      ticks_taken.reserve(kRounds);
      for (std::uint32_t round = 0; round < kRounds; ++round) {
        const std::uint64_t start = ticks();
        line.ball.store(2 * round + 1, std::memory_order_release);
        while (line.ball.load(std::memory_order_acquire) != 2 * round + 2) {
          spin_pause();
        }
        ticks_taken.push_back(ticks() - start);
      }
    }
    line.stop.store(true, std::memory_order_relaxed);
  });
  if (caller) {
    caller->join();
  } else {
    line.stop.store(true, std::memory_order_relaxed);
  }
  other->join();
  if (!caller) {
    return fail(std::move(caller).error());
  }
  if (!pinned_a) {
    return fail(std::move(pinned_a).error());
  }
  if (!pinned_b) {
    return fail(std::move(pinned_b).error());
  }
  std::nth_element(ticks_taken.begin(), ticks_taken.begin() + kRounds / 2, ticks_taken.end());
  return static_cast<double>(ticks_taken[kRounds / 2]) * ns_per_tick();
}

double clock_ghz() noexcept {
  constexpr std::uint64_t kAdds = 2'000'000;
  const std::int64_t start = steady_ns();
  std::uint64_t sum = static_cast<std::uint64_t>(start);
  for (std::uint64_t i = 0; i < kAdds; i += 8) {
    // Eight dependent additions that the compiler can neither merge nor reorder: one cycle each.
#if defined(__x86_64__)
    asm volatile(
        "add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\t"
        "add $1, %0\n\tadd $1, %0\n\tadd $1, %0\n\tadd $1, %0"
        : "+r"(sum));
#else
    for (int j = 0; j < 8; ++j) {
      asm volatile("" : "+r"(sum));
      sum += 1;
    }
#endif
  }
  asm volatile("" : : "r"(sum));
  return static_cast<double>(kAdds) / static_cast<double>(steady_ns() - start);
}

double busy_share(std::uint32_t cpu, std::uint32_t window_ms) {
  const CpuTimes before = read_times(cpu);
  std::this_thread::sleep_for(std::chrono::milliseconds(window_ms));
  const CpuTimes after = read_times(cpu);
  if (after.total <= before.total) {
    return -1;
  }
  return static_cast<double>(after.busy - before.busy) /
         static_cast<double>(after.total - before.total);
}

}  // namespace afd::base
