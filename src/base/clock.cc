#include "base/clock.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/cpu.h"
#include "base/fence.h"

namespace afd::base {
namespace {

struct Pair {
  std::int64_t ns;
  std::uint64_t ticks;
};

/// Both clocks read close together: the tightest of several tries, so that an interrupt between the
/// reads does not count.
Pair read_both() {
  Pair best{};
  std::int64_t best_gap = std::numeric_limits<std::int64_t>::max();
  for (int attempt = 0; attempt < 32; ++attempt) {
    const std::int64_t before = steady_ns();
    const std::uint64_t middle = stamp();
    const std::int64_t after = steady_ns();
    if (after - before < best_gap) {
      best_gap = after - before;
      best = {before + (after - before) / 2, middle};
    }
  }
  return best;
}

double rate_between(const Pair& first, const Pair& last) {
  return static_cast<double>(last.ns - first.ns) / static_cast<double>(last.ticks - first.ticks);
}

void spin_until(std::int64_t when_ns) {
  while (steady_ns() < when_ns) {
    spin_pause();
  }
}

}  // namespace

namespace {

TickRate calibrate_once() {
  constexpr std::int64_t kHalfNs = 10'000'000;
  constexpr double kSkewNsMax = 200;
  constexpr double kDriftMax = 1e-4;

  TickRate rate;
  const Pair first = read_both();
  spin_until(first.ns + kHalfNs);
  const Pair middle = read_both();
  spin_until(middle.ns + kHalfNs);
  const Pair last = read_both();
  if (last.ticks <= middle.ticks || middle.ticks <= first.ticks) {
    rate.why_not = "the counter does not ascend";
    return rate;
  }
  rate.ns_per_tick = rate_between(first, last);
  const double drift =
      std::abs(rate_between(first, middle) - rate_between(middle, last)) / rate.ns_per_tick;
  if (drift > kDriftMax) {
    rate.why_not = "the counter's rate changed by " + std::to_string(drift * 100) + " % in 10 ms";
    return rate;
  }

  const std::vector<std::uint32_t> cpus = allowed_cpus();
  for (const std::uint32_t cpu : cpus) {
    if (!pin_this_thread({cpu})) {
      continue;  // Taken offline meanwhile: nobody will stamp there either.
    }
    const Pair here = read_both();
    const double expected_ns = static_cast<double>(here.ticks - last.ticks) * rate.ns_per_tick;
    const double skew = std::abs(expected_ns - static_cast<double>(here.ns - last.ns));
    // The rate's own error grows with the distance from where it was taken.
    if (skew > kSkewNsMax + kDriftMax * std::abs(expected_ns)) {
      rate.why_not = "the counter of processor " + std::to_string(cpu) + " is " +
                     std::to_string(skew) + " ns off";
      break;
    }
  }
  // Fails only if all processors of before are gone; then the thread stays where it can run.
  (void)pin_this_thread(cpus);
  rate.trusted = rate.why_not.empty();
  return rate;
}

}  // namespace

TickRate calibrate_ticks() {
  TickRate rate = calibrate_once();
  // A host that takes the processor away between two reads looks like a bad counter, once.
  for (int attempt = 1; attempt < 3 && !rate.trusted; ++attempt) {
    rate = calibrate_once();
  }
  return rate;
}

double ns_per_tick() noexcept {
  static const double rate = [] {
    const Pair first = read_both();
    spin_until(first.ns + 1'000'000);
    const Pair last = read_both();
    return last.ticks > first.ticks ? rate_between(first, last) : 1.0;
  }();
  return rate;
}

}  // namespace afd::base
