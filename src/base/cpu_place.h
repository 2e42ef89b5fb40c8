// Where two processors stand: how long a cache line takes between them, and how fast each runs.
//
// Virtual machines move their processors and change their clocks within seconds, so a benchmark
// prints both beside each result: only figures of one run compare.
#pragma once

#include <cstdint>

#include <afd/result.h>

namespace afd::base {

/// Median round trip of one cache line between two pinned threads, in nanoseconds. Takes about 5
/// ms.
/// @return kInvalidArgument  a processor cannot be used
Result<double> line_round_trip_ns(std::uint32_t cpu_a, std::uint32_t cpu_b);

/// Clock of the processor that this thread runs on, in GHz, from a chain of dependent additions.
/// Takes about 1 ms.
double clock_ghz() noexcept;

/// Share of the last `window_ms` milliseconds in which a processor did something, 0 to 1, from
/// /proc/stat. Sleeps that long. Negative if it cannot be read.
double busy_share(std::uint32_t cpu, std::uint32_t window_ms);

}  // namespace afd::base
