// Which of UCX's calls delivers a fresh payload fastest?
//
// Answers, by the fair measure (fair_pair.h), all interleaved in one run:
//   tag          ucp_tag_send_nbx to a receive that was posted before
//   am           ucp_am_send_nbx, protocol as UCX chooses; received into a registered window
//   am eager     the same, eager at every size
//   am rndv      the same, rendezvous at every size
//   am pieces    eager messages of 128 KiB, each read while the next is under way
//   put + put    ucp_put_nbx into the peer's window, fence, 8-byte put of a flag that is polled
//   put + am     the same with an empty active message as the flag
// The transports are UCX's choice from UCX_TLS: run it once with UCX_TLS=tcp and once with
// UCX_TLS=posix,cma. Not measured: several peers, sleeping.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "fair_pair.h"
#include "ucx_side.h"

namespace afd::bench {
namespace {

constexpr std::uint64_t kSizes[] = {64,         4 * kKiB,    16 * kKiB,  64 * kKiB,
                                    256 * kKiB, 1024 * kKiB, 4096 * kKiB};

int run(int num_turns, std::uint64_t piece_bytes) {
  const char* const tls = std::getenv("UCX_TLS");
  std::printf("# UCX %s, UCX_TLS=%s, congestion control %s\n", ucp_get_version_string(),
              tls == nullptr ? "" : tls, congestion_control().c_str());
  UcxShared& shared = new_ucx_shared();
  FairPair pair;
  const auto each = [&](const auto& turn) {
    for (int i = 0; i < num_turns; ++i) {
      for (std::size_t size = 0; size < std::size(kSizes); ++size) {
        for (std::size_t way = 0; way < kWayNames.size(); ++way) {
          turn(size, static_cast<Way>(way), i);
        }
      }
    }
  };
  pair.start([&] {
    UcxSide side(shared.cards[1], shared.cards[0], piece_bytes, false);
    side.connect();
    std::uint64_t posted = 0;
    each([&](std::size_t size, Way way, int) {
      side.post(way, kSizes[size]);
      shared.posted.store(++posted, std::memory_order_release);
      pair.reply(side.receive(way, kSizes[size]));
    });
    while (true) {
      side.progress();
    }
  });
  UcxSide side(shared.cards[0], shared.cards[1], piece_bytes, false);
  side.connect();
  side.show();
  std::vector<std::byte> payload(kBytesMax);
  std::array<std::array<Times, kWayNames.size()>, std::size(kSizes)> times;
  std::uint64_t posted = 0;
  each([&](std::size_t size, Way way, int turn) {
    const std::uint64_t sum = rewrite(payload.data(), kSizes[size], posted);
    ++posted;
    while (shared.posted.load(std::memory_order_acquire) != posted) {
      side.progress();
    }
    const double us = pair.measure(sum, [&] {
      side.send(way, payload.data(), kSizes[size]);
      side.flush();
    });
    if (turn > 0) {
      times[size][static_cast<std::size_t>(way)].add(us);
    }
  });
  std::printf("%10s", "bytes");
  for (const char* name : kWayNames) {
    std::printf(" %10s", name);
  }
  std::printf("   (p50 us one way)\n");
  for (std::size_t size = 0; size < std::size(kSizes); ++size) {
    std::printf("%10llu", static_cast<unsigned long long>(kSizes[size]));
    for (Times& of : times[size]) {
      std::printf(" %10.2f", of.quantile(0.5));
    }
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace afd::bench

// ucx_ways [TURNS] [BYTES OF A PIECE]
int main(int argc, char** argv) {
  return afd::bench::run(argc > 1 ? std::max(2, std::atoi(argv[1])) : 200,
                         argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 128 * afd::bench::kKiB);
}
