// `afd bench hop`: what one hop of a layer costs, by the fair measure, beside the bare floor.
//
// The measure is the one-way delivery of a fresh payload that is fully read: the sender has just
// rewritten its rows (untimed), both sides say that they are ready, the sender stamps t0 and sends;
// the receiver stamps t1 (same clock) when it has read every byte. One cycle measures both
// directions. All ways alternate in short blocks within one run, since the machine changes under
// it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <afd/factory.h>
#include <afd/result.h>

namespace afd::cli {

/// The ways in which a payload crosses.
enum class HopWay : std::uint8_t {
  kCopy,             ///< sent from the caller's buffer, read in place behind the sender
  kInPlace,          ///< written in the landing memory beforehand (untimed), then handed over
  kFloorMemcpy,      ///< a bare pipelined ring on the same kind of pages, filled by memcpy
  kFloorStreaming,   ///< the same, filled by streaming stores
  kFlag,             ///< the floor's signal alone, without a payload
  kProducedCopy,     ///< produced in a private buffer (timed), then as kCopy
  kProducedInPlace,  ///< produced in the landing memory by a RowSource (timed)
};
inline constexpr std::size_t kNumHopWays = 7;

struct HopBenchOptions {
  std::string connector;
  std::string extra_config = "{}";   ///< the connector's own settings, a JSON object
  std::vector<std::uint64_t> sizes;  ///< bytes, multiples of 64
  std::uint32_t num_samples = 400;   ///< per size, way and direction
};

struct HopTimes {
  double p50_us = 0;
  double p99_us = 0;
};

struct HopResult {
  std::string direction;  ///< "a2f" or "f2a"
  std::uint64_t bytes = 0;
  std::array<HopTimes, kNumHopWays> ways;

  const HopTimes& operator[](HopWay way) const { return ways[static_cast<std::size_t>(way)]; }
  /// The floor: the bare ring by the better way to copy, whichever the transport has chosen.
  const HopTimes& floor() const {
    const HopTimes& memcpy = (*this)[HopWay::kFloorMemcpy];
    const HopTimes& streaming = (*this)[HopWay::kFloorStreaming];
    return memcpy.p50_us <= streaming.p50_us ? memcpy : streaming;
  }
};

/// How the machine was: figures of different runs do not compare without it.
struct HopPlace {
  std::array<std::uint32_t, 2> cpus{};
  std::array<double, 2> line_round_trip_us{};  ///< before and after
  std::array<double, 2> ghz{};                 ///< of each processor
  double busy_share = 0;                       ///< the busier processor's, before the start
  std::string clock;                           ///< "tsc" or "clock_gettime"
};

struct HopReport {
  HopPlace place;
  std::string path;  ///< what carried the rows: "shared memory", "UCX tcp/lo"; empty: not told
  /// Of the kernel's new TCP connections: loopback differs by a factor of three with it. Empty:
  /// no TCP carried the rows, or it cannot be read.
  std::string congestion_control;
  std::array<bool, kNumHopWays> measured{};  ///< false: a way that the connector does not have
  std::vector<HopResult> results;            ///< by size, a2f then f2a
};

/// Runs two pinned processes (threads for a connector that cannot cross processes). The other one
/// is gone when this returns, and dies with this one.
/// @return kInvalidArgument  sizes, connector;  kUnavailable  fewer than two processors
Result<HopReport> run_hop_bench(const ConnectorFactory& factory, const HopBenchOptions& options);

}  // namespace afd::cli
