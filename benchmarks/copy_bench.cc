// How should rows be copied into memory that another core reads next?
//
// Answers the choice in src/transport/mapped/copy_plan.h: for every size, the one-way time of a
// fresh payload that is fully read (fair_pair.h), for every way to copy and every piece size,
// interleaved. Not measured: headers, waiting, more than one sender. Run it in a quiet minute, more
// than once: the place of the two processors decides, and the host may move them.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/copy.h"
#include "base/shared_segment.h"
#include "fair_pair.h"
#include "transport/shm/hop_floor.h"

namespace afd::bench {
namespace {

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kSizes[] = {64,         512,         2 * kKiB,   4 * kKiB,
                                    8 * kKiB,   16 * kKiB,   32 * kKiB,  64 * kKiB,
                                    256 * kKiB, 1024 * kKiB, 4096 * kKiB};
constexpr std::uint64_t kPieces[] = {4 * kKiB,  8 * kKiB,  16 * kKiB,
                                     32 * kKiB, 64 * kKiB, 128 * kKiB};

struct Way {
  base::CopyKind kind;
  const char* name;
};
constexpr Way kWays[] = {{base::CopyKind::kMemcpy, "memcpy"},
                         {base::CopyKind::kRepMovsb, "rep movsb"},
                         {base::CopyKind::kStreaming, "streaming"}};

/// Calls `visit(way, piece)` in the order that both processes follow.
template <typename Visit>
void for_each_plan(std::uint64_t size, Visit visit) {
  for (const Way& way : kWays) {
    for (const std::uint64_t piece : kPieces) {
      if (piece < size) {
        visit(way, piece);
      }
    }
    visit(way, size);
  }
}

int run(int num_turns) {
  Result<base::SharedSegment> segment =
      base::SharedSegment::create(transport::FloorLane::bytes_needed(4096 * kKiB));
  if (!segment) {
    std::fprintf(stderr, "%s\n", segment.error().message.c_str());
    return 1;
  }
  segment->remove_name();  // The receiver inherits the mapping.
  transport::FloorLane lane(segment->data());
  FairPair pair;
  pair.start([&] {
    for (const std::uint64_t size : kSizes) {
      for (int turn = 0; turn < num_turns; ++turn) {
        for_each_plan(size, [&](const Way&, std::uint64_t) {
          pair.reply(lane.receive(size, pair.stop()).value());
        });
      }
    }
  });

  std::vector<std::byte> payload(4096 * kKiB);
  std::uint64_t counter = 0;
  for (const std::uint64_t size : kSizes) {
    std::vector<Times> times;
    for (int turn = 0; turn < num_turns; ++turn) {
      std::size_t i = 0;
      for_each_plan(size, [&](const Way& way, std::uint64_t piece) {
        times.resize(std::max(times.size(), i + 1));
        const std::uint64_t sum = rewrite(payload.data(), size, ++counter);
        times[i++].add(pair.measure(sum, [&] {
          lane.send(payload.data(), size, {.kind = way.kind, .piece_bytes = piece});
        }));
      });
    }
    std::printf("%llu bytes, p50 us by piece:\n", static_cast<unsigned long long>(size));
    std::size_t i = 0;
    const char* last_name = "";
    for_each_plan(size, [&](const Way& way, std::uint64_t piece) {
      if (std::strcmp(last_name, way.name) != 0) {
        std::printf("%s  %-10s", *last_name != '\0' ? "\n" : "", way.name);
        last_name = way.name;
      }
      if (piece == size) {
        std::printf("  whole %.2f", times[i++].quantile(0.5));
      } else {
        std::printf("  %lluK %.2f", static_cast<unsigned long long>(piece / kKiB),
                    times[i++].quantile(0.5));
      }
    });
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace afd::bench

int main(int argc, char** argv) {
  const int num_turns = argc > 1 ? std::atoi(argv[1]) : 200;
  if (argc > 2 || num_turns < 1) {
    std::fprintf(stderr, "usage: %s [turns]\n", argv[0]);
    return 2;
  }
  return afd::bench::run(num_turns);
}
