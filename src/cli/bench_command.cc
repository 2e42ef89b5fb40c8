// `afd bench hop`: round trips of one layer by size, beside the floor measured in the same run.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "builtin/default_connector.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/hop_bench.h"
#include "cli/plugins.h"

namespace afd::cli {
namespace {

using Json = nlohmann::ordered_json;

// Above this share of work by others the figures are of them, not of the connector.
constexpr double kBusyShare = 0.1;

constexpr std::array<const char*, kNumHopWays> kWayKeys = {
    "copy", "in_place",      "floor_memcpy",     "floor_streaming",
    "flag", "produced_copy", "produced_in_place"};

struct BenchFlags {
  HopBenchOptions options;
  bool json = false;
};

Json to_json(const HopTimes& times) {
  return {{"p50_us", times.p50_us}, {"p99_us", times.p99_us}};
}

Json to_json(const std::string& connector, const HopReport& report) {
  Json results = Json::array();
  for (const HopResult& result : report.results) {
    Json line = {
        {"connector", connector}, {"direction", result.direction}, {"bytes", result.bytes}};
    for (std::size_t way = 0; way < kNumHopWays; ++way) {
      if (report.measured[way]) {
        line[kWayKeys[way]] = to_json(result.ways[way]);
      }
    }
    line["floor"] = to_json(result.floor());
    results.push_back(std::move(line));
  }
  const HopPlace& place = report.place;
  return {{"results", std::move(results)},
          {"place",
           {{"cpus", place.cpus},
            {"line_round_trip_us", place.line_round_trip_us},
            {"ghz", place.ghz},
            {"busy_share", place.busy_share},
            {"clock", place.clock},
            {"path", report.path},
            {"congestion_control", report.congestion_control}}}};
}

std::string size_text(std::uint64_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) {
    return std::to_string(bytes >> 20) + " MiB";
  }
  return bytes >= 1 << 10 && bytes % (1 << 10) == 0 ? std::to_string(bytes >> 10) + " KiB"
                                                    : std::to_string(bytes) + " B";
}

void print_report(const std::string& connector, const HopReport& report) {
  const HopPlace& place = report.place;
  std::printf("%s, one way, fresh and fully read, p50 in us (p99)\n", connector.c_str());
  std::printf(
      "cores %u and %u: line round trip %.2f us before, %.2f after; %.2f and %.2f GHz; clock "
      "%s\n",
      place.cpus[0], place.cpus[1], place.line_round_trip_us[0], place.line_round_trip_us[1],
      place.ghz[0], place.ghz[1], place.clock.c_str());
  std::printf("path: %s%s%s\n\n", report.path.empty() ? "not told" : report.path.c_str(),
              report.congestion_control.empty() ? "" : "; TCP congestion control ",
              report.congestion_control.c_str());
  std::printf("%8s %9s %18s %8s %18s %18s %8s %18s %18s\n", "size", "direction", "copy", "/floor",
              "in place", "floor", "flag", "produced, copy", "produced in place");
  for (const HopResult& result : report.results) {
    const auto cell = [&](const HopTimes& times) {
      if (times.p50_us == 0) {
        return std::string("-");  // not measured
      }
      char text[32];
      std::snprintf(text, sizeof(text), "%.2f (%.1f)", times.p50_us, times.p99_us);
      return std::string(text);
    };
    std::printf("%8s %9s %18s %8.2f %18s %18s %8.2f %18s %18s\n", size_text(result.bytes).c_str(),
                result.direction.c_str(), cell(result[HopWay::kCopy]).c_str(),
                result[HopWay::kCopy].p50_us / result.floor().p50_us,
                cell(result[HopWay::kInPlace]).c_str(), cell(result.floor()).c_str(),
                result[HopWay::kFlag].p50_us, cell(result[HopWay::kProducedCopy]).c_str(),
                cell(result[HopWay::kProducedInPlace]).c_str());
  }
}

int run_bench_hop(const BenchFlags& flags) {
  if (Result<void> checked = check_plugins(); !checked) {
    return report_usage("bench hop", checked.error());
  }
  const ConnectorFactory factory = known_connectors();
  Result<HopReport> done = run_hop_bench(factory, flags.options);
  if (!done) {
    return report("bench hop", done.error());
  }
  if (done->place.busy_share > kBusyShare) {
    std::fprintf(stderr,
                 "afd bench hop: WARNING: the cores were %.0f %% busy with other work before the "
                 "start; these figures are not fit to compare\n",
                 100 * done->place.busy_share);
  }
  if (flags.json) {
    std::printf("%s\n", to_json(flags.options.connector, *done).dump(2).c_str());
  } else {
    print_report(flags.options.connector, *done);
  }
  return kExitOk;
}

}  // namespace

void add_bench_command(CLI::App& app, int& exit_status) {
  CLI::App* bench = app.add_subcommand("bench", "Measurements");
  bench->require_subcommand(1);
  CLI::App* hop = bench->add_subcommand(
      "hop",
      "One-way time of one layer's rows by size, against the floor measured in the same run.\n"
      "Two pinned processes; every payload is freshly written and fully read. docs/benchmarks.md "
      "says "
      "what each column is.");
  auto flags = std::make_shared<BenchFlags>();
  flags->options.connector = kDefaultConnector;
  flags->options.sizes = {64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
  hop->add_option("--connector", flags->options.connector, "Registered connector")
      ->capture_default_str();
  hop->add_option("--extra-config", flags->options.extra_config,
                  "The connector's own settings, a JSON object: "
                  "'{\"ucx_transports\": \"tcp\", \"ucx_net_devices\": \"lo\"}'");
  hop->add_option("--sizes", flags->options.sizes,
                  "Payload bytes, multiples of 64 (default: 64 B to 4 MiB)")
      ->delimiter(',');
  hop->add_option("--samples", flags->options.num_samples, "Samples per size, way and direction")
      ->capture_default_str();
  hop->add_flag("--json", flags->json, "Print one JSON object");
  hop->callback([flags, &exit_status] { exit_status = run_bench_hop(*flags); });
}

}  // namespace afd::cli
