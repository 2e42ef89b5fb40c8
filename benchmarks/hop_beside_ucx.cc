// What does a hop over P2pUcxAFDConnector cost beside UCX alone?
//
// By the fair measure (fair_pair.h), all interleaved in one run, one way from the attention to the
// FFN rank:
//   ours       send_attn_output from the caller's buffer; received in place and read behind the
//              sender, as `afd bench hop` does
//   tag        a minimal program's ucp_tag_send_nbx to a receive that was posted before
//   am         its ucp_am_send_nbx, protocol as UCX chooses
//   am eager   the same, eager at every size
//   am rndv    the same, rendezvous at every size
// Both sides poll, both use the same transports and settings. The ratio is ours over the best of
// the others, each size's own.
//
//   hop_beside_ucx tcp [TURNS [BYTES]]            TCP on the loopback device; the program's
//                                                 endpoint, too, notices a peer's end
//   hop_beside_ucx tcp-unwatched [TURNS [BYTES]]  the program's does not, which opens ways to UCX
//                                                 that the connector cannot take (rule R7)
//   hop_beside_ucx posix [TURNS [BYTES]]          UCX's shared memory, where none can
//
// For TCP the kernel's congestion control matters; it is printed. With another one, as root:
//   unshare -n sh -c 'ip link set lo up; sysctl -qw net.ipv4.tcp_congestion_control=cubic;
//                     build/release/benchmarks/hop_beside_ucx tcp'
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <afd/factory.h>

#include "base/free_port.h"
#include "fair_pair.h"
#include "ucx_side.h"

namespace afd::bench {
namespace {

constexpr std::uint64_t kSizes[] = {4 * kKiB,   16 * kKiB,   64 * kKiB,
                                    256 * kKiB, 1024 * kKiB, 4096 * kKiB};
constexpr std::array kBareWays = {Way::kTag, Way::kAm, Way::kAmEager, Way::kAmRndv};
constexpr std::uint32_t kRowBytes = 64;
constexpr int kBlock = 6;   ///< sends of one way before the next one's turn
constexpr int kWarmUp = 2;  ///< of them, how many are not counted

void must(const char* what, const Result<void>& done) {
  if (!done) {
    std::fprintf(stderr, "%s: %s\n", what, done.error().message.c_str());
    std::exit(1);
  }
}

/// One rank's connector.
class Hop {
 public:
  Hop(Role role, std::uint16_t port, const std::string& extra_config) {
    ConnectorParams params;
    params.config.connector = "P2pUcxAFDConnector";
    params.config.connector_extra_config = extra_config;
    params.config.role = role;
    params.config.port = port;
    params.limits = {.hidden_size = kRowBytes,
                     .num_layers = 1,
                     .max_num_tokens = static_cast<std::uint32_t>(kBytesMax / kRowBytes),
                     .num_stages = 1,
                     .dtype = kUInt8};
    Result<std::unique_ptr<ConnectorBase>> made = factory_.create_connector(params);
    must("create", made ? Result<void>() : fail(made.error()));
    connector_ = *std::move(made);
    must("init", connector_->init_afd_connector(Deadline::after(std::chrono::seconds(20))));
  }

  void begin(std::uint64_t bytes) {
    num_rows_ = static_cast<std::uint32_t>(bytes / kRowBytes);
    ControlPayload payload;
    payload.dp_metadata_list[0] = {{static_cast<std::int32_t>(num_rows_)},
                                   static_cast<std::int32_t>(num_rows_)};
    must("update", connector_->control_plane()->update_state_from_dp_metadata(payload));
    context_.metadata = TransferMetadata::create_attention_metadata(0, 0, num_rows_).value();
  }

  /// Attention: until the answer is there, which makes progress meanwhile.
  void send_and_await(std::byte* rows) {
    must("send",
         connector_->send_attn_output({rows, {num_rows_, kRowBytes}, kUInt8, {}}, context_, {}));
    const auto answer = connector_->recv_ffn_output({}, 0, {});
    must("receive", answer ? Result<void>() : fail(answer.error()));
  }

  /// FFN. @return the sum of what was read, as it came
  std::uint64_t receive() {
    struct Reader {
      const std::byte* rows = nullptr;
      std::uint64_t sum = 0;
    } reader;
    RecvAttnOptions options;
    options.sink = {&reader,
                    [](void* argument, ConstTensorView view) {
                      static_cast<Reader*>(argument)->rows = view.bytes().data();
                    },
                    [](void* argument, RowRange range) {
                      Reader& self = *static_cast<Reader*>(argument);
                      self.sum += transport::read_fully(
                          self.rows + std::uint64_t{range.first_row} * kRowBytes,
                          std::uint64_t{range.num_rows} * kRowBytes);
                    }};
    Result<A2FTransferPayload> received = connector_->recv_attn_output(0, options);
    must("receive", received ? Result<void>() : fail(received.error()));
    received_ = *std::move(received);
    return reader.sum;
  }
  void answer() {
    must("answer", connector_->send_ffn_output({.routed_output = received_.hidden_states},
                                               received_.context, {}));
  }

 private:
  const ConnectorFactory factory_ = builtin_connectors();
  std::unique_ptr<ConnectorBase> connector_;
  TransferContext context_;
  A2FTransferPayload received_;
  std::uint32_t num_rows_ = 0;
};

/// @param only_bytes  this size alone; 0: all
int run(const std::string& transport, int num_turns, std::uint64_t only_bytes) {
  const bool tcp = transport != "posix";
  const bool watched = transport == "tcp";
  ::setenv("UCX_TLS", tcp ? "tcp" : "posix,cma", 1);
  if (tcp) {
    ::setenv("UCX_NET_DEVICES", "lo", 1);
    ::setenv("UCX_TCP_RX_SEG_SIZE", "136k", 1);  // as the connector sets it
  }
  const std::string extra_config =
      tcp ? R"({"ucx_transports":"tcp","ucx_net_devices":"lo"})" : R"({"ucx_transports":"posix"})";
  std::printf("# UCX %s, %s, congestion control %s, %d turns\n", ucp_get_version_string(),
              transport.c_str(), congestion_control().c_str(), num_turns);
  UcxShared& shared = new_ucx_shared();
  const Result<std::uint16_t> port = base::find_free_port("127.0.0.1");
  must("port", port ? Result<void>() : fail(port.error()));
  FairPair pair;
  const auto each = [&](const auto& ours, const auto& bare) {
    for (int turn = 0; turn < num_turns; ++turn) {
      for (std::size_t size = 0; size < std::size(kSizes); ++size) {
        if (only_bytes != 0 && only_bytes != kSizes[size]) {
          continue;
        }
        for (int i = 0; i < kBlock; ++i) {
          ours(size, i >= kWarmUp);
        }
        for (std::size_t way = 0; way < kBareWays.size(); ++way) {
          for (int i = 0; i < kBlock; ++i) {
            bare(size, way, i >= kWarmUp);
          }
        }
      }
    }
  };
  pair.start([&] {
    Hop hop(Role::kFfn, *port, extra_config);
    UcxSide side(shared.cards[1], shared.cards[0], 0, watched);
    side.connect();
    std::uint64_t posted = 0;
    each(
        [&](std::size_t size, bool) {
          hop.begin(kSizes[size]);
          shared.posted.store(++posted, std::memory_order_release);
          pair.reply(hop.receive());
          hop.answer();
        },
        [&](std::size_t size, std::size_t way, bool) {
          side.post(kBareWays[way], kSizes[size]);
          shared.posted.store(++posted, std::memory_order_release);
          pair.reply(side.receive(kBareWays[way], kSizes[size]));
          while (shared.done.load(std::memory_order_acquire) != posted) {
            side.progress();
          }
        });
    while (true) {
      side.progress();
    }
  });
  Hop hop(Role::kAttention, *port, extra_config);
  UcxSide side(shared.cards[0], shared.cards[1], 0, watched);
  side.connect();
  std::vector<std::byte> payload(kBytesMax);
  std::array<Times, std::size(kSizes)> ours;
  std::array<std::array<Times, kBareWays.size()>, std::size(kSizes)> bare;
  std::uint64_t posted = 0;
  each(
      [&](std::size_t size, bool counts) {
        hop.begin(kSizes[size]);
        const std::uint64_t sum = rewrite(payload.data(), kSizes[size], posted);
        ++posted;
        while (shared.posted.load(std::memory_order_acquire) != posted) {
          base::spin_pause();
        }
        const double us = pair.measure(sum, [&] { hop.send_and_await(payload.data()); });
        if (counts) {
          ours[size].add(us);
        }
      },
      [&](std::size_t size, std::size_t way, bool counts) {
        const std::uint64_t sum = rewrite(payload.data(), kSizes[size], posted);
        ++posted;
        while (shared.posted.load(std::memory_order_acquire) != posted) {
          side.progress();
        }
        const double us = pair.measure(sum, [&] {
          side.send(kBareWays[way], payload.data(), kSizes[size]);
          side.flush();
        });
        shared.done.store(posted, std::memory_order_release);
        if (counts) {
          bare[size][way].add(us);
        }
      });
  std::printf("%10s %10s", "bytes", "ours");
  for (const Way way : kBareWays) {
    std::printf(" %10s", kWayNames[static_cast<std::size_t>(way)]);
  }
  std::printf(" %10s   (p50 us one way)\n", "ratio");
  for (std::size_t size = 0; size < std::size(kSizes); ++size) {
    if (only_bytes != 0 && only_bytes != kSizes[size]) {
      continue;
    }
    const double our_us = ours[size].quantile(0.5);
    std::printf("%10llu %10.2f", static_cast<unsigned long long>(kSizes[size]), our_us);
    double best_us = 1e30;
    for (Times& of : bare[size]) {
      best_us = std::min(best_us, of.quantile(0.5));
      std::printf(" %10.2f", of.quantile(0.5));
    }
    std::printf(" %10.2f\n", our_us / best_us);
  }
  return 0;
}

}  // namespace
}  // namespace afd::bench

int main(int argc, char** argv) {
  const std::string transport = argc > 1 ? argv[1] : "";
  if (transport != "tcp" && transport != "tcp-unwatched" && transport != "posix") {
    std::fprintf(stderr, "usage: hop_beside_ucx tcp|tcp-unwatched|posix [TURNS [BYTES]]\n");
    return 2;
  }
  return afd::bench::run(transport, argc > 2 ? std::max(2, std::atoi(argv[2])) : 30,
                         argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0);
}
