// What does a hop cost over shared memory, against the floor, and what do the producer's stores
// decide?
//
// Answers, by the fair measure (fair_pair.h), all interleaved in one run:
//   floor        bare ring: copied in by memcpy or by streaming stores, read in place, no
//                header, no checks; the ratios are against the better of the two
//   channel      publish from a private buffer, header checked, read behind the sender
//   written      the same, rows written in place beforehand (untimed) by ordinary stores
//   flag         eight bytes and nothing else
// and with the producing of the rows counted (t0 before it):
//   private      produced into a private buffer, published, read
//   in place     produced into the landing memory, whole or piece by piece (ByteSource), by
//                ordinary, streaming or direct stores
// The producing is one multiply-add per float of a private input. Not measured: more than one peer,
// waiting by sleep.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/shared_segment.h"
#include "fair_pair.h"
#include "transport/shm/hop_floor.h"
#include "transport/shm/shm_transport.h"

namespace afd::bench {
namespace {

using transport::Channel;
using transport::Direction;
using transport::LaneState;
using transport::PutPart;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kBytesMax = 4096 * kKiB;
constexpr std::uint64_t kSizes[] = {64,         4 * kKiB,    16 * kKiB,  64 * kKiB,
                                    256 * kKiB, 1024 * kKiB, 4096 * kKiB};
constexpr std::uint32_t kEpoch = 7;

// -- producing ---------------------------------------------------------------------------------

enum class Stores { kOrdinary, kStreaming, kDirect };

void produce_ordinary(const float* in, float* out, std::uint64_t count, float factor) {
  for (std::uint64_t i = 0; i < count; ++i) {
    out[i] = in[i] * factor + 1.0F;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void produce_avx2(const float* in, float* out, std::uint64_t count,
                                                  float factor) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 one = _mm256_set1_ps(1.0F);
  for (std::uint64_t i = 0; i < count; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(in + i), f), one));
  }
}

__attribute__((target("avx2"))) void produce_streaming(const float* in, float* out,
                                                       std::uint64_t count, float factor) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 one = _mm256_set1_ps(1.0F);
  for (std::uint64_t i = 0; i < count; i += 8) {
    _mm256_stream_ps(out + i, _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(in + i), f), one));
  }
}

__attribute__((target("avx2,movdir64b"))) void produce_direct(const float* in, float* out,
                                                              std::uint64_t count, float factor) {
  const __m256 f = _mm256_set1_ps(factor);
  const __m256 one = _mm256_set1_ps(1.0F);
  alignas(64) float line[16];
  for (std::uint64_t i = 0; i < count; i += 16) {
    for (std::uint64_t half = 0; half < 16; half += 8) {
      _mm256_store_ps(line + half,
                      _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(in + i + half), f), one));
    }
    _movdir64b(out + i, line);
  }
}
#endif

bool has_direct_stores() {
#if defined(__x86_64__)
  std::uint32_t eax = 7;
  std::uint32_t ebx = 0;
  std::uint32_t ecx = 0;
  std::uint32_t edx = 0;
  asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return (ecx >> 28 & 1) != 0;
#else
  return false;
#endif
}

void produce(Stores stores, const float* in, float* out, std::uint64_t count, float factor) {
#if defined(__x86_64__)
  switch (stores) {
    case Stores::kStreaming:
      produce_streaming(in, out, count, factor);
      return;
    case Stores::kDirect:
      produce_direct(in, out, count, factor);
      return;
    case Stores::kOrdinary:
      produce_avx2(in, out, count, factor);
      return;
  }
#endif
  static_cast<void>(stores);
  produce_ordinary(in, out, count, factor);
}

struct Production {
  Stores stores;
  const float* in;
  float factor;
};

void produce_piece(void* argument, std::byte* target, std::uint64_t offset, std::uint64_t size) {
  const auto& self = *static_cast<const Production*>(argument);
  produce(self.stores, self.in + offset / sizeof(float), reinterpret_cast<float*>(target),
          size / sizeof(float), self.factor);
}

// -- the experiments ---------------------------------------------------------------------------

struct Experiment {
  const char* name;
  enum class Way {
    kFloorMemcpy,
    kFloorStreaming,
    kChannel,
    kWritten,
    kFlag,
    kPrivate,
    kInPlace,
    kBySource
  } way;
  Stores stores = Stores::kOrdinary;

  bool produces() const { return way >= Way::kPrivate; }
  bool is_floor() const { return way == Way::kFloorMemcpy || way == Way::kFloorStreaming; }
};
using Way = Experiment::Way;

std::vector<Experiment> experiments() {
  std::vector<Experiment> all = {{"floor memcpy", Way::kFloorMemcpy},
                                 {"floor streaming", Way::kFloorStreaming},
                                 {"channel", Way::kChannel},
                                 {"written", Way::kWritten},
                                 {"flag", Way::kFlag},
                                 {"private", Way::kPrivate},
                                 {"in place ordinary", Way::kInPlace},
                                 {"in place streaming", Way::kInPlace, Stores::kStreaming},
                                 {"by source ordinary", Way::kBySource},
                                 {"by source streaming", Way::kBySource, Stores::kStreaming}};
  if (has_direct_stores()) {
    all.push_back({"in place direct", Way::kInPlace, Stores::kDirect});
    all.push_back({"by source direct", Way::kBySource, Stores::kDirect});
  }
  return all;
}

/// Reads a transfer behind its sender.
std::uint64_t receive(Channel& channel, std::uint64_t size, std::uint32_t sequence) {
  const std::byte* const landing = channel.landing(Direction::kA2f, 0, 0);
  std::uint64_t sum = 0;
  for (std::uint64_t done = 0; done < size;) {
    const LaneState state = channel.poll({});
    const std::uint64_t there = state.sequence == sequence ? std::min(state.bytes_ready, size) : 0;
    if (there <= done) {
      base::spin_pause();
      continue;
    }
    if (done == 0 && channel.header({}).epoch != kEpoch) {
      std::abort();
    }
    sum += transport::read_fully(landing + done, there - done);
    done = there;
  }
  return sum;
}

class HopBench {
 public:
  HopBench(int num_turns, bool producing) : num_turns_(num_turns) {
    for (const Experiment& experiment : experiments()) {
      if (experiment.produces() == producing) {
        experiments_.push_back(experiment);
      }
    }
  }

  int run() {
    geometry_.a2f_bytes[0] = kBytesMax;
    auto segment = base::SharedSegment::create(transport::FloorLane::bytes_needed(kBytesMax));
    const auto ffn = transport::make_shm_transport();
    const Result<std::string> blob = ffn->create(&geometry_);
    if (!segment || !blob) {
      std::fprintf(stderr, "%s\n", (segment ? blob.error() : segment.error()).message.c_str());
      return 1;
    }
    segment->remove_name();  // The receiver inherits the mapping.
    transport::FloorLane floor(segment->data());
    floor_ = &floor;
    FairPair pair;
    pair.start([&] { receive_all(pair, *blob); });
    channel_ = ffn->own_channel();
    pair.measure(0, [] {});  // Until the receiver has attached.
    ffn->seal();
    send_all(pair);
    return 0;
  }

 private:
  /// In the receiver's process, which maps both windows anew: a fork does not bring pages along.
  void receive_all(FairPair& pair, const std::string& blob) {
    const auto transport = transport::make_shm_transport();
    const Result<Channel*> channel = transport->attach(0, blob, &geometry_);
    if (!channel) {
      std::fprintf(stderr, "%s\n", channel.error().message.c_str());
      ::_exit(1);
    }
    transport::read_fully(floor_->slot(), kBytesMax);
    pair.reply(0);
    std::uint32_t sequence = 0;
    for (const std::uint64_t size : kSizes) {
      for (int turn = 0; turn < num_turns_; ++turn) {
        for (const Experiment& experiment : experiments_) {
          if (experiment.is_floor()) {
            pair.reply(floor_->receive(size, pair.stop()).value());
          } else if (experiment.way == Way::kFlag) {
            floor_->receive_flag(pair.stop());
            pair.reply(0);
          } else {
            pair.reply(receive(**channel, size, ++sequence));
          }
        }
      }
    }
  }

  void send_all(FairPair& pair) {
    for (const std::uint64_t size : kSizes) {
      std::vector<Times> times(experiments_.size());
      for (int turn = 0; turn < num_turns_; ++turn) {
        for (std::size_t i = 0; i < experiments_.size(); ++i) {
          times[i].add(one(pair, experiments_[i], size));
        }
      }
      // The floor, or what producing privately and sending costs.
      double base = times[0].quantile(0.5);
      if (experiments_[0].is_floor()) {
        base = std::min(base, times[1].quantile(0.5));
      }
      std::printf("%8llu", static_cast<unsigned long long>(size));
      for (std::size_t i = 0; i < experiments_.size(); ++i) {
        std::printf(" | %s %.2f", experiments_[i].name, times[i].quantile(0.5));
        std::printf(" p99 %.1f", times[i].quantile(0.99));
        if (!experiments_[i].is_floor() && experiments_[i].way != Way::kFlag) {
          std::printf(" (x%.2f)", times[i].quantile(0.5) / base);
        }
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }

  double one(FairPair& pair, const Experiment& experiment, std::uint64_t size) {
    ++turn_;
    std::byte* const landing = channel_->landing(Direction::kA2f, 0, 0);
    switch (experiment.way) {
      case Way::kFlag:
        return pair.measure(0, [&] { floor_->send_flag(); });
      case Way::kFloorMemcpy:
      case Way::kFloorStreaming: {
        const std::uint64_t sum = rewrite(payload_.data(), size, turn_);
        const transport::CopyPlan plan{.kind = experiment.way == Way::kFloorMemcpy
                                                   ? base::CopyKind::kMemcpy
                                                   : base::CopyKind::kStreaming,
                                       .piece_bytes = transport::copy_piece_bytes(size)};
        return pair.measure(sum, [&] { floor_->send(payload_.data(), size, plan); });
      }
      case Way::kChannel: {
        const std::uint64_t sum = rewrite(payload_.data(), size, turn_);
        return pair.measure(sum, [&] { publish(payload_.data(), size); });
      }
      case Way::kWritten: {
        const std::uint64_t sum = rewrite(landing, size, turn_);
        return pair.measure(sum, [&] { publish(landing, size); });
      }
      case Way::kPrivate:
      case Way::kInPlace:
      case Way::kBySource:
        break;
    }
    return one_produced(pair, experiment, size, landing);
  }

  double one_produced(FairPair& pair, const Experiment& experiment, std::uint64_t size,
                      std::byte* landing) {
    Production production{.stores = experiment.stores,
                          .in = input_.get(),
                          .factor = 1.0F + static_cast<float>(turn_ % 64)};
    // What it should be, in memory of its own: the sum of a production is no simple formula.
    produce(Stores::kOrdinary, production.in, expected_.get(), size / sizeof(float),
            production.factor);
    const std::uint64_t sum =
        transport::read_fully(reinterpret_cast<const std::byte*>(expected_.get()), size);
    // The input is what a layer has just left in the cache.
    transport::read_fully(reinterpret_cast<const std::byte*>(input_.get()), size);
    return pair.measure(sum, [&] {
      if (experiment.way == Way::kBySource) {
        transport::ByteSource source{.argument = &production, .produce = produce_piece};
        publish(nullptr, size, source);
      } else {
        std::byte* const target = experiment.way == Way::kPrivate ? payload_.data() : landing;
        produce_piece(&production, target, 0, size);
        publish(target, size);
      }
    });
  }

  void publish(const std::byte* source, std::uint64_t size, transport::ByteSource producer = {}) {
    transport::TransferHeader header;
    header.epoch = kEpoch;
    const std::array<PutPart, transport::kPartsMax> parts = {
        PutPart{.source = source, .size_bytes = size}};
    channel_->publish({}, header, parts, producer);
  }

  const int num_turns_;
  std::vector<Experiment> experiments_;
  transport::ChannelGeometry geometry_;
  transport::FloorLane* floor_ = nullptr;
  Channel* channel_ = nullptr;
  std::uint64_t turn_ = 0;
  std::vector<std::byte> payload_ = std::vector<std::byte>(kBytesMax);
  std::unique_ptr<float[]> input_ = filled();
  std::unique_ptr<float[]> expected_ = filled();

  static std::unique_ptr<float[]> filled() {
    auto values = std::make_unique<float[]>(kBytesMax / sizeof(float));
    for (std::uint64_t i = 0; i < kBytesMax / sizeof(float); ++i) {
      values[i] = static_cast<float>(i % 1000);
    }
    return values;
  }
};

}  // namespace
}  // namespace afd::bench

int main(int argc, char** argv) {
  const int num_turns = argc > 1 ? std::atoi(argv[1]) : 300;
  if (argc > 2 || num_turns < 1) {
    std::fprintf(stderr, "usage: %s [turns]\n", argv[0]);
    return 2;
  }
  const int status = afd::bench::HopBench(num_turns, /*producing=*/false).run();
  std::printf("# with the producing counted\n");
  return status != 0 ? status : afd::bench::HopBench(num_turns, /*producing=*/true).run();
}
