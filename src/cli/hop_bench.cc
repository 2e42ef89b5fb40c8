#include "cli/hop_bench.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/cpu_place.h"
#include "base/fence.h"
#include "base/free_port.h"
#include "base/mapping.h"
#include "base/thread.h"
#include "cli/hop_payload.h"
#include "transport/shm/hop_floor.h"

namespace afd::cli {
namespace {

using transport::FloorLane;

// A row of 64 bytes: every size is a number of rows, and one connector serves all sizes.
constexpr std::uint32_t kRowBytes = 64;
constexpr std::uint64_t kBytesMax = std::uint64_t{64} << 20;
constexpr std::uint32_t kBlock = 10;  ///< cycles of one way before the next one's turn
constexpr std::uint32_t kWarmUp = 2;  ///< of them, how many are not counted
constexpr std::chrono::seconds kStuck{20};

/// A word of shared memory on its own line.
struct alignas(64) Turn {
  // Counts handshakes. Stored with release by its owner, loaded with acquire by the other.
  std::atomic<std::uint64_t> count{0};
};

/// What both processes see; the floor's memory and the stamps follow it.
struct SharedState {
  std::array<Turn, 2> turns;  ///< by side
  // A side has ended early. Relaxed: it only ends waiting.
  std::atomic<bool> failed{false};
};

/// One side's stamps: when it sent, and when it had read.
struct Stamps {
  std::uint64_t sent = 0;
  std::uint64_t read = 0;
};

struct Job {
  const ConnectorFactory* factory;
  const HopBenchOptions* options;
  std::uint16_t port;
  bool use_ticks;
  std::uint64_t bytes_max;
  std::uint32_t num_rounds;
  std::array<bool, kNumHopWays> ways;  ///< those that the connector has
  SharedState* shared;
  std::array<std::byte*, 2> floor_memory;  ///< by direction
  std::array<Stamps*, 2> stamps;           ///< by side
  std::string* path;                       ///< written by the attention side

  std::size_t num_stamps() const {
    return options->sizes.size() * kNumHopWays * num_rounds * kBlock;
  }
  std::size_t stamp_idx(std::size_t size_idx, std::size_t way, std::uint32_t sample) const {
    return (size_idx * kNumHopWays + way) * num_rounds * kBlock + sample;
  }
};

/// One end: attention (side 0) or FFN (side 1). Both walk the same schedule.
class Side {
 public:
  Side(const Job& job, Role role) : job_(job), role_(role), side_(role == Role::kFfn) {}

  Result<void> run() {
    if (Result<void> ready = set_up(); !ready) {
      return ready;
    }
    for (std::uint32_t round = 0; round < job_.num_rounds; ++round) {
      for (std::size_t size = 0; size < job_.options->sizes.size(); ++size) {
        if (Result<void> begun = begin_size(job_.options->sizes[size]); !begun) {
          return begun;
        }
        for (std::size_t way = 0; way < kNumHopWays; ++way) {
          if (!job_.ways[way]) {
            continue;
          }
          for (std::uint32_t i = 0; i < kBlock; ++i) {
            Stamps& stamps = job_.stamps[side_][job_.stamp_idx(size, way, round * kBlock + i)];
            if (Result<void> done = cycle(static_cast<HopWay>(way), stamps); !done) {
              return done;
            }
          }
        }
      }
    }
    return {};
  }

  void close() {
    if (connector_ != nullptr) {
      connector_->close();
    }
  }

 private:
  Result<void> set_up() {
    ConnectorParams params;
    params.config.connector = job_.options->connector;
    params.config.connector_extra_config = job_.options->extra_config;
    params.config.role = role_;
    params.config.port = job_.port;
    params.limits = {.hidden_size = kRowBytes,
                     .num_layers = 1,
                     .max_num_tokens = static_cast<std::uint32_t>(job_.bytes_max / kRowBytes),
                     .num_stages = 1,
                     .dtype = kUInt8};
    Result<std::unique_ptr<ConnectorBase>> connector = job_.factory->create_connector(params);
    if (!connector) {
      return fail(std::move(connector).error());
    }
    connector_ = *std::move(connector);
    if (Result<void> met = connector_->init_afd_connector(Deadline::after(kStuck)); !met) {
      return met;
    }
    if (const std::vector<PeerPath> paths = connector_->peer_paths();
        role_ == Role::kAttention && !paths.empty()) {
      *job_.path = paths.front().path;
    }
    if (connector_->control_plane() == nullptr) {
      return fail(ErrorCode::kUnavailable,
                  job_.options->connector + " has no control plane: bench hop cannot steer it");
    }
    Result<base::Mapping> memory = base::Mapping::anonymous(job_.bytes_max);
    if (!memory) {
      return fail(std::move(memory).error());
    }
    own_memory_ = *std::move(memory);
    lanes_[0].emplace(job_.floor_memory[0]);
    lanes_[1].emplace(job_.floor_memory[1]);
    return {};
  }

  Result<void> begin_size(std::uint64_t bytes) {
    bytes_ = bytes;
    num_rows_ = static_cast<std::uint32_t>(bytes / kRowBytes);
    ControlPayload payload;
    payload.dp_metadata_list[0] = {{static_cast<std::int32_t>(num_rows_)},
                                   static_cast<std::int32_t>(num_rows_)};
    Result<TransferMetadata> metadata =
        TransferMetadata::create_attention_metadata(0, 0, num_rows_);
    if (!metadata) {
      return fail(std::move(metadata).error());
    }
    context_.metadata = *metadata;
    return connector_->control_plane()->update_state_from_dp_metadata(payload);
  }

  /// Attention to FFN, then back.
  Result<void> cycle(HopWay way, Stamps& stamps) {
    ++num_cycles_;
    if (role_ == Role::kAttention) {
      Result<void> sent = send(way, stamps);
      return sent ? receive(way, stamps) : sent;
    }
    Result<void> received = receive(way, stamps);
    return received ? send(way, stamps) : received;
  }

  std::uint64_t now() const {
    return job_.use_ticks ? base::stamp() : static_cast<std::uint64_t>(base::steady_ns());
  }

  /// Returns when the other side stands at the same place. What is sent next meets a receiver that
  /// is awake, for every way alike.
  /// @return kPeerLost  it will not come any more
  Result<void> meet() {
    std::atomic<std::uint64_t>& theirs = job_.shared->turns[1 - side_].count;
    job_.shared->turns[side_].count.store(++num_meetings_, std::memory_order_release);
    while (theirs.load(std::memory_order_acquire) < num_meetings_) {
      if (job_.shared->failed.load(std::memory_order_relaxed)) {
        return other_ended();
      }
      base::spin_pause();
    }
    return {};
  }

  Result<void> other_ended() const {
    return fail(ErrorCode::kPeerLost,
                std::string("the ") + (side_ == 0 ? "ffn" : "attention") + " side ended early");
  }

  std::uint64_t seed(std::size_t sender) const { return num_cycles_ * 2 + sender; }

  Result<TensorView> own_slot() {
    return role_ == Role::kAttention ? connector_->attn_send_buffer(0, num_rows_)
                                     : connector_->ffn_output_buffer(received_context_);
  }

  Result<void> send(HopWay way, Stamps& stamps) {
    FloorLane& lane = *lanes_[side_];
    std::byte* own = own_memory_.data();
    const std::uint64_t pattern = seed(side_);
    TensorView rows{own, {num_rows_, kRowBytes}, kUInt8, {}};
    if (way == HopWay::kInPlace || way == HopWay::kProducedInPlace) {
      Result<TensorView> slot = own_slot();
      if (!slot) {
        return fail(std::move(slot).error());
      }
      rows = *slot;
    }
    switch (way) {
      case HopWay::kCopy:
      case HopWay::kFloorMemcpy:
      case HopWay::kFloorStreaming:
        fill_payload(own, pattern, 0, bytes_);
        break;
      case HopWay::kInPlace:
        fill_payload(static_cast<std::byte*>(rows.data), pattern, 0, bytes_);
        break;
      default:
        break;
    }
    if (Result<void> met = meet(); !met) {
      return met;
    }
    stamps.sent = now();
    switch (way) {
      case HopWay::kFloorMemcpy:
      case HopWay::kFloorStreaming:
        lane.send(own, bytes_,
                  {.kind = way == HopWay::kFloorMemcpy ? base::CopyKind::kMemcpy
                                                       : base::CopyKind::kStreaming,
                   .piece_bytes = transport::copy_piece_bytes(bytes_)});
        return {};
      case HopWay::kFlag:
        lane.send_flag();
        return {};
      case HopWay::kProducedCopy:
        fill_payload(own, pattern, 0, bytes_);
        return send_rows(rows, {});
      case HopWay::kProducedInPlace: {
        Producer producer{pattern};
        return send_rows(rows, {&producer, &Producer::produce});
      }
      default:
        return send_rows(rows, {});
    }
  }

  /// Fills rows of the landing memory when the connector asks for them.
  struct Producer {
    std::uint64_t pattern;

    static void produce(void* argument, TensorView rows, RowRange range) {
      const Producer& self = *static_cast<const Producer*>(argument);
      fill_payload(static_cast<std::byte*>(rows.data), self.pattern,
                   std::uint64_t{range.first_row} * kRowBytes,
                   std::uint64_t{range.num_rows} * kRowBytes);
    }
  };

  Result<void> send_rows(TensorView rows, RowSource source) {
    if (role_ == Role::kAttention) {
      SendAttnOptions options;
      options.source = source;
      return connector_->send_attn_output(rows, context_, options);
    }
    SendFfnOptions options;
    options.source = source;
    return connector_->send_ffn_output({.routed_output = rows}, received_context_, options);
  }

  Result<void> receive(HopWay way, Stamps& stamps) {
    FloorLane& lane = *lanes_[1 - side_];
    const std::atomic<bool>& stop = job_.shared->failed;
    if (Result<void> met = meet(); !met) {
      return met;
    }
    std::uint64_t sum = 0;
    if (way == HopWay::kFlag) {
      const bool came = lane.receive_flag(stop);
      stamps.read = now();
      return came ? Result<void>() : other_ended();
    }
    if (way == HopWay::kFloorMemcpy || way == HopWay::kFloorStreaming) {
      const std::optional<std::uint64_t> read = lane.receive(bytes_, stop);
      stamps.read = now();
      if (!read) {
        return other_ended();
      }
      sum = *read;
    } else {
      Reader reader;
      Result<void> received = receive_rows({&reader, &Reader::begin, &Reader::arrived});
      stamps.read = now();
      if (!received) {
        return received;
      }
      sum = reader.sum;
    }
    const std::uint64_t wanted = payload_sum(seed(1 - side_), bytes_);
    if (sum != wanted) {
      return fail(ErrorCode::kInternal, "a payload of " + std::to_string(bytes_) +
                                            " bytes arrived with sum " + std::to_string(sum) +
                                            ", expected " + std::to_string(wanted));
    }
    return {};
  }

  /// Reads rows as they come.
  struct Reader {
    const std::byte* rows = nullptr;
    std::uint64_t sum = 0;

    static void begin(void* argument, ConstTensorView view) {
      static_cast<Reader*>(argument)->rows = view.bytes().data();
    }
    static void arrived(void* argument, RowRange range) {
      Reader& self = *static_cast<Reader*>(argument);
      self.sum += transport::read_fully(self.rows + std::uint64_t{range.first_row} * kRowBytes,
                                        std::uint64_t{range.num_rows} * kRowBytes);
    }
  };

  Result<void> receive_rows(RowSink sink) {
    if (role_ == Role::kFfn) {
      RecvAttnOptions options;
      options.sink = sink;
      options.deadline = Deadline::after(kStuck);
      Result<A2FTransferPayload> payload = connector_->recv_attn_output(0, options);
      if (!payload) {
        return fail(std::move(payload).error());
      }
      received_context_ = payload->context;
      return {};
    }
    RecvFfnOptions options;
    options.sink = sink;
    options.deadline = Deadline::after(kStuck);
    Result<TensorView> output = connector_->recv_ffn_output({}, 0, options);
    if (!output) {
      return fail(std::move(output).error());
    }
    return {};
  }

  const Job& job_;
  const Role role_;
  const std::size_t side_;
  std::unique_ptr<ConnectorBase> connector_;
  base::Mapping own_memory_;
  std::array<std::optional<FloorLane>, 2> lanes_;  ///< by sending side
  TransferContext context_;
  TransferContext received_context_;
  std::uint64_t bytes_ = 0;
  std::uint32_t num_rows_ = 0;
  std::uint64_t num_cycles_ = 0;
  std::uint64_t num_meetings_ = 0;
};

Result<void> check_options(const HopBenchOptions& options) {
  if (options.sizes.empty()) {
    return fail(ErrorCode::kInvalidArgument, "no sizes were given");
  }
  for (const std::uint64_t bytes : options.sizes) {
    if (bytes == 0 || bytes % kRowBytes != 0 || bytes > kBytesMax) {
      return fail(ErrorCode::kInvalidArgument,
                  "size " + std::to_string(bytes) + " is not a multiple of " +
                      std::to_string(kRowBytes) + " up to " + std::to_string(kBytesMax));
    }
  }
  if (options.num_samples == 0 || options.num_samples > 1'000'000) {
    return fail(ErrorCode::kInvalidArgument,
                "samples must be in 1..1000000, got " + std::to_string(options.num_samples));
  }
  return {};
}

std::string read_congestion_control() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  file >> name;
  return name;
}

HopTimes summarise(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    return times[static_cast<std::size_t>(share * static_cast<double>(times.size() - 1))];
  };
  return {.p50_us = at(0.5), .p99_us = at(0.99)};
}

std::vector<HopResult> evaluate(const Job& job, double us_per_unit) {
  std::vector<HopResult> results;
  std::vector<double> times;
  for (std::size_t size = 0; size < job.options->sizes.size(); ++size) {
    for (const std::size_t sender : {0, 1}) {
      HopResult result;
      result.direction = sender == 0 ? "a2f" : "f2a";
      result.bytes = job.options->sizes[size];
      for (std::size_t way = 0; way < kNumHopWays; ++way) {
        if (!job.ways[way]) {
          continue;
        }
        times.clear();
        for (std::uint32_t sample = 0; sample < job.num_rounds * kBlock; ++sample) {
          if (sample % kBlock < kWarmUp) {
            continue;
          }
          const std::size_t idx = job.stamp_idx(size, way, sample);
          const auto ticks = static_cast<std::int64_t>(job.stamps[1 - sender][idx].read -
                                                       job.stamps[sender][idx].sent);
          times.push_back(static_cast<double>(ticks) * us_per_unit);
        }
        result.ways[way] = summarise(times);
      }
      results.push_back(result);
    }
  }
  return results;
}

/// Owns the other process: the number stays its own until this object reaps it, so that no signal
/// can reach a stranger.
class ChildWatch {
 public:
  explicit ChildWatch(pid_t child) : child_(child) {}
  ~ChildWatch() {
    end_child();
    join();
    ::waitpid(child_, nullptr, 0);
  }
  ChildWatch(const ChildWatch&) = delete;
  ChildWatch& operator=(const ChildWatch&) = delete;

  /// Waits for the child's end in its own thread and marks the run as failed if it came early.
  /// @return kUnavailable  no thread left
  Result<void> watch(std::atomic<bool>& failed) {
    Result<std::thread> started = base::start_thread([this, &failed] {
      siginfo_t info{};
      while (::waitid(P_PID, static_cast<id_t>(child_), &info, WEXITED | WNOWAIT) != 0 &&
             errno == EINTR) {
      }
      if (info.si_code != CLD_EXITED || info.si_status != 0) {
        failed.store(true, std::memory_order_relaxed);
      }
    });
    if (!started) {
      return fail(std::move(started).error());
    }
    thread_ = *std::move(started);
    return {};
  }
  void end_child() { ::kill(child_, SIGKILL); }
  void join() {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

 private:
  pid_t child_;
  std::thread thread_;
};

Result<void> run_pinned(const Job& job, Role role, std::uint32_t cpu) {
  if (Result<void> pinned = base::pin_this_thread({cpu}); !pinned) {
    return pinned;
  }
  Side side(job, role);
  Result<void> done = side.run();
  if (!done) {
    job.shared->failed.store(true, std::memory_order_relaxed);
  }
  side.close();
  return done;
}

Result<void> run_threads(const Job& job, const std::array<std::uint32_t, 2>& cpus) {
  std::array<Result<void>, 2> results;
  std::array<std::thread, 2> threads;
  // A side begins when both have a thread: it would wait for the other.
  std::promise<bool> both_started;
  const std::shared_future<bool> may_begin = both_started.get_future().share();
  Result<void> started;
  for (const std::size_t side : {0, 1}) {
    Result<std::thread> thread = base::start_thread([&, side, may_begin] {
      if (may_begin.get()) {
        results[side] = run_pinned(job, side == 0 ? Role::kAttention : Role::kFfn, cpus[side]);
      }
    });
    if (!thread) {
      started = fail(std::move(thread).error());
      break;
    }
    threads[side] = *std::move(thread);
  }
  both_started.set_value(started.has_value());
  for (std::thread& thread : threads) {
    if (thread.joinable()) {
      thread.join();
    }
  }
  if (!started) {
    return started;
  }
  // A side that only saw the other end does not know why.
  const bool second_knows = !results[1] && results[1].error().code != ErrorCode::kPeerLost;
  return results[0] || second_knows ? results[1] : results[0];
}

Result<void> run_processes(const Job& job, const std::array<std::uint32_t, 2>& cpus) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    return fail(ErrorCode::kUnavailable, "fork failed");
  }
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(1);
    }
    const Result<void> done = run_pinned(job, Role::kFfn, cpus[1]);
    if (!done) {
      std::fprintf(stderr, "afd bench hop: ffn side: %s\n", done.error().message.c_str());
    }
    ::_exit(done ? 0 : 1);
  }
  ChildWatch watch(child);
  if (Result<void> watching = watch.watch(job.shared->failed); !watching) {
    return watching;
  }
  Result<void> done;
  Result<std::thread> attention =
      base::start_thread([&] { done = run_pinned(job, Role::kAttention, cpus[0]); });
  if (attention) {
    attention->join();
  } else {
    done = fail(std::move(attention).error());
  }
  if (!done) {
    watch.end_child();
  }
  watch.join();
  if (done && job.shared->failed.load(std::memory_order_relaxed)) {
    return fail(ErrorCode::kPeerLost, "the ffn side ended early");
  }
  return done;
}

}  // namespace

Result<HopReport> run_hop_bench(const ConnectorFactory& factory, const HopBenchOptions& options) {
  if (Result<void> checked = check_options(options); !checked) {
    return fail(std::move(checked).error());
  }
  Result<const ConnectorClass*> connector_class = factory.get_connector_class(options.connector);
  if (!connector_class) {
    return fail(std::move(connector_class).error());
  }
  const std::vector<std::uint32_t> cpus = base::allowed_cpus();
  if (cpus.size() < 2) {
    return fail(ErrorCode::kUnavailable, "bench hop needs two processors, this process may use " +
                                             std::to_string(cpus.size()));
  }
  const Result<std::uint16_t> port = base::find_free_port("127.0.0.1");
  if (!port) {
    return fail(port.error());
  }
  if (Result<std::string> settings = (*connector_class)->parse_extra_config(options.extra_config);
      !settings) {
    return fail(std::move(settings).error());
  }
  HopReport report;
  report.place.cpus = {cpus[0], cpus[1]};
  report.place.busy_share =
      std::max(base::busy_share(cpus[0], 100), base::busy_share(cpus[1], 100));
  const base::TickRate rate = base::calibrate_ticks();
  report.place.clock = rate.trusted ? "tsc" : "clock_gettime";

  Job job{.factory = &factory,
          .options = &options,
          .port = *port,
          .use_ticks = rate.trusted,
          .bytes_max = *std::max_element(options.sizes.begin(), options.sizes.end()),
          .num_rounds = (options.num_samples + kBlock - kWarmUp - 1) / (kBlock - kWarmUp),
          .path = &report.path};
  job.ways.fill(true);
  if (!(*connector_class)->capabilities().in_place_buffers) {
    job.ways[static_cast<std::size_t>(HopWay::kInPlace)] = false;
    job.ways[static_cast<std::size_t>(HopWay::kProducedInPlace)] = false;
  }
  report.measured = job.ways;
  const std::uint64_t floor_bytes = (FloorLane::bytes_needed(job.bytes_max) + 4095) / 4096 * 4096;
  const std::uint64_t stamps_bytes = job.num_stamps() * sizeof(Stamps);
  const std::uint64_t shared_bytes = 4096 + 2 * floor_bytes + 2 * stamps_bytes;
  void* memory = ::mmap(nullptr, shared_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(ErrorCode::kUnavailable,
                "cannot map " + std::to_string(shared_bytes) + " bytes for the floor");
  }
  auto* base_address = static_cast<std::byte*>(memory);
  job.shared = new (base_address) SharedState();
  for (std::size_t i = 0; i < 2; ++i) {
    job.floor_memory[i] = base_address + 4096 + i * floor_bytes;
    job.stamps[i] =
        reinterpret_cast<Stamps*>(base_address + 4096 + 2 * floor_bytes + i * stamps_bytes);
  }

  const auto look = [&](std::size_t when) {
    const Result<double> trip = base::line_round_trip_ns(cpus[0], cpus[1]);
    report.place.line_round_trip_us[when] = trip ? *trip / 1000 : 0;
  };
  look(0);
  for (std::size_t i = 0; i < 2; ++i) {
    Result<std::thread> clock = base::start_thread([&] {
      if (base::pin_this_thread({cpus[i]})) {
        report.place.ghz[i] = base::clock_ghz();
      }
    });
    if (clock) {
      clock->join();
    }
  }
  Result<void> done = (*connector_class)->capabilities().cross_process
                          ? run_processes(job, report.place.cpus)
                          : run_threads(job, report.place.cpus);
  if (done) {
    look(1);
    if (report.path.find("tcp") != std::string::npos) {
      report.congestion_control = read_congestion_control();
    }
    report.results = evaluate(job, rate.trusted ? rate.ns_per_tick / 1000 : 1e-3);
  }
  ::munmap(memory, shared_bytes);
  if (!done) {
    return fail(std::move(done).error());
  }
  return report;
}

}  // namespace afd::cli
