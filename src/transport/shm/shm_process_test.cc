// The channel between processes: delivery, sleeping, death, and what a steady state costs.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/shared_segment.h"
#include "transport/mapped/test_group.h"
#include "transport/mapped/window_layout.h"

namespace {

std::atomic<std::uint64_t> num_allocations{0};

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
#endif

namespace afd::transport {
namespace {

using std::chrono::seconds;

constexpr bool kSanitized =
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

constexpr WaitPolicy kSleepAtOnce{.spin_ns_max = 0, .yield_ns_max = 0};
constexpr WaitPolicy kSpinOnly{.spin_ns_max = 3'600'000'000'000, .yield_ns_max = 0};

/// What the processes of a test tell each other outside the transport.
struct Board {
  std::array<std::array<char, 1024>, 8> blobs{};
  std::atomic<int> num_created{0};
  std::atomic<int> num_attached{0};
  std::atomic<int> flag{0};
};

Board& new_board() {
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (memory) Board;
}

void await(const std::atomic<int>& counter, int value) {
  while (counter.load() < value) {
    ::usleep(200);
  }
}

/// One rank of a job of one FFN rank (0) and attention ranks (1, 2, ...), each in its process.
struct Rank {
  std::unique_ptr<Transport> transport;
  Channel* channel = nullptr;
  std::uint16_t peer_idx = 0;

  Completion completion(Direction direction, std::uint16_t peer, std::uint32_t sequence) const {
    return {.channel = channel,
            .lane = {.direction = direction, .peer_idx = peer},
            .sequence = sequence};
  }
  bool wait(Completion completion) const {
    return transport->wait(completion.condition(), Deadline::after(seconds(60)));
  }
  void publish(Direction direction, std::uint16_t peer, const TransferHeader& header,
               std::array<PutPart, kPartsMax> parts = {}) const {
    channel->publish({.direction = direction, .peer_idx = peer}, header, parts, {});
  }
};

Rank join(Board& board, std::uint32_t world_rank, const ChannelGeometry& geometry,
          WaitPolicy wait) {
  Rank rank{.transport = make_shm_transport({wait})};
  const Result<std::string> blob = rank.transport->create(world_rank == 0 ? &geometry : nullptr);
  if (!blob) {
    std::abort();
  }
  std::copy(blob->begin(), blob->end(), board.blobs[world_rank].begin());
  ++board.num_created;
  const int num_ranks = static_cast<int>(geometry.num_peers) + 1;
  await(board.num_created, num_ranks);
  if (world_rank == 0) {
    rank.channel = rank.transport->own_channel();
    for (std::uint16_t peer = 0; peer < geometry.num_peers; ++peer) {
      if (!rank.transport->attach(1U + peer, board.blobs[1U + peer].data(), nullptr)) {
        std::abort();
      }
      rank.transport->set_doorbell(rank.channel, Direction::kF2a, peer, 1U + peer);
    }
  } else {
    rank.peer_idx = static_cast<std::uint16_t>(world_rank - 1);
    const Result<Channel*> channel = rank.transport->attach(0, board.blobs[0].data(), &geometry);
    if (!channel) {
      std::abort();
    }
    rank.channel = *channel;
    rank.transport->set_doorbell(rank.channel, Direction::kA2f, rank.peer_idx, 0);
  }
  ++board.num_attached;
  await(board.num_attached, num_ranks);
  rank.transport->seal();
  return rank;
}

ChannelGeometry geometry_of(std::uint32_t num_peers, std::uint64_t bytes) {
  ChannelGeometry geometry;
  geometry.num_peers = num_peers;
  geometry.a2f_bytes[0] = geometry.f2a_bytes[0] = bytes;
  return geometry;
}

TransferHeader header_of(std::uint32_t layer_idx) {
  TransferHeader header;
  header.epoch = 1;
  header.layer_idx = layer_idx;
  return header;
}

/// What an attention rank does: sends `num_rounds` transfers of `size` bytes at its offset of the
/// fan-in, and checks each answer. @return an exit status
int attention_rank(Board& board, std::uint32_t world_rank, const ChannelGeometry& geometry,
                   std::uint64_t size, std::uint32_t num_rounds, WaitPolicy wait) {
  const Rank rank = join(board, world_rank, geometry, wait);
  std::vector<std::byte> payload(size);
  for (std::uint32_t round = 1; round <= num_rounds; ++round) {
    for (std::uint64_t i = 0; i < size; ++i) {
      payload[i] = static_cast<std::byte>(i * 13 + round * 7 + world_rank);
    }
    rank.publish(Direction::kA2f, rank.peer_idx, header_of(round),
                 rows(payload.data(), rank.peer_idx * size, size));
    if (!rank.wait(rank.completion(Direction::kF2a, rank.peer_idx, round))) {
      return 2;
    }
    const std::byte* const answer =
        rank.channel->landing(Direction::kF2a, 0, 0) + rank.peer_idx * size;
    for (std::uint64_t i = 0; i < size; ++i) {
      if (answer[i] != (payload[i] ^ std::byte{0xFF})) {
        return 3;
      }
    }
  }
  return 0;
}

/// What the FFN rank does: awaits all, inverts the fan-in in place, answers all.
int ffn_rank(Board& board, const ChannelGeometry& geometry, std::uint64_t size,
             std::uint32_t num_rounds, WaitPolicy wait) {
  const Rank rank = join(board, 0, geometry, wait);
  const std::byte* const in = rank.channel->landing(Direction::kA2f, 0, 0);
  std::byte* const out = rank.channel->landing(Direction::kF2a, 0, 0);
  for (std::uint32_t round = 1; round <= num_rounds; ++round) {
    for (std::uint16_t peer = 0; peer < geometry.num_peers; ++peer) {
      if (!rank.wait(rank.completion(Direction::kA2f, peer, round))) {
        return 2;
      }
      if (rank.channel->header({.direction = Direction::kA2f, .peer_idx = peer}) !=
          header_of(round)) {
        return 4;
      }
    }
    std::transform(in, in + size * geometry.num_peers, out,
                   [](std::byte byte) { return byte ^ std::byte{0xFF}; });
    for (std::uint16_t peer = 0; peer < geometry.num_peers; ++peer) {
      rank.publish(Direction::kF2a, peer, header_of(round),
                   rows(out + peer * size, peer * size, size));
    }
  }
  return 0;
}

TEST(ShmProcessTest, FanInAndSplitAreExactAndNoWakeUpIsLost) {
  struct Case {
    std::uint32_t num_peers;
    std::uint64_t size;
    std::uint32_t num_rounds;
    WaitPolicy wait;
  };
  for (const Case& test : {Case{1, 1'000'003, 20, {}}, Case{1, 100, 3'000, kSleepAtOnce},
                           Case{3, 10'007, 200, {}}, Case{5, 999, 500, kSleepAtOnce},
                           Case{5, 33'333, 60, {.spin_ns_max = 0, .yield_ns_max = 20'000}}}) {
    Board& board = new_board();
    const ChannelGeometry geometry = geometry_of(test.num_peers, test.size * test.num_peers);
    std::vector<pid_t> pids;
    for (std::uint32_t world_rank = 1; world_rank <= test.num_peers; ++world_rank) {
      pids.push_back(start_forked([&] {
        return attention_rank(board, world_rank, geometry, test.size, test.num_rounds, test.wait);
      }));
    }
    EXPECT_EQ(ffn_rank(board, geometry, test.size, test.num_rounds, test.wait), 0);
    for (const pid_t pid : pids) {
      EXPECT_EQ(wait_for(pid), 0);
      EXPECT_EQ(base::sweep_segments(pid), 0U) << "nothing is left once all have attached";
    }
    EXPECT_EQ(base::sweep_segments(::getpid()), 0U);
  }
}

// Goal: a transfer whose sender died halfway is never taken for a complete one, and whoever waits
// for it is not stuck beyond its deadline; nothing is left behind.
TEST(ShmProcessTest, AHalfWrittenTransferNeverCompletes) {
  constexpr std::uint64_t kBytes = 1 << 20;
  Board& board = new_board();
  const ChannelGeometry geometry = geometry_of(1, kBytes);
  const pid_t pid = start_forked([&] {
    const Rank rank = join(board, 1, geometry, {});
    struct Producer {
      Board* board;
    } producer{&board};
    const ByteSource source{
        .argument = &producer,
        .produce = [](void* argument, std::byte* target, std::uint64_t offset, std::uint64_t size) {
          std::memset(target, 1, size);
          if (offset > kBytes / 2) {
            static_cast<Producer*>(argument)->board->flag.store(1);
            ::raise(SIGKILL);
          }
        }};
    rank.channel->publish({.direction = Direction::kA2f}, header_of(1), rows(nullptr, 0, kBytes),
                          source);
    return 1;
  });
  const Rank rank = join(board, 0, geometry, {});
  await(board.flag, 1);
  EXPECT_EQ(wait_for(pid), -SIGKILL);
  const LaneState state = rank.channel->poll({.direction = Direction::kA2f});
  EXPECT_EQ(state.sequence, 1U);
  EXPECT_FALSE(state.complete);
  EXPECT_GT(state.bytes_ready, kBytes / 4);
  EXPECT_LT(state.bytes_ready, kBytes);
  Completion completion = rank.completion(Direction::kA2f, 0, 1);
  EXPECT_FALSE(
      rank.transport->wait(completion.condition(), Deadline::after(std::chrono::milliseconds(20))));
  // Its doorbell can still be rung, its lanes written.
  rank.publish(Direction::kF2a, 0, header_of(1));
  EXPECT_EQ(base::sweep_segments(pid), 0U);
}

// Goal: wherever a sender dies, what it left is nothing or a whole transfer, and the news of its
// death ends the receiver's sleep, also if it died between taking the sleeper's mark and waking.
//
// Method: the sender is traced and goes one instruction at a time; after each one the shared memory
// is what its death there would leave. It is killed where the mark is gone and nobody woken.
TEST(ShmProcessTest, ASenderMayDieBetweenAnyTwoInstructions) {
  const ChannelGeometry geometry = geometry_of(1, 64);
  const Group group = connect(Kind::kShm, geometry, kSleepAtOnce);
  std::byte* const landing = group.ffn_channel().landing(Direction::kA2f, 0, 0);
  const auto& doorbell = *reinterpret_cast<const Doorbell*>(
      landing - layout_window(&geometry)->landing[0][0] + WindowLayout::kDoorbellOffset);
  constexpr LaneId kLane{.direction = Direction::kA2f};
  std::array<std::byte, 64> payload;
  payload.fill(std::byte{0x5A});

  Completion arrived{.channel = &group.ffn_channel(), .lane = kLane, .sequence = 7};  // Never.
  std::atomic<bool> woken{false};
  std::thread receiver([&] {
    group.ffn->wait(arrived.condition(), Deadline::after(seconds(60)));
    woken.store(true);
  });
  const Deadline asleep_by = Deadline::after(seconds(20));
  while ((group.ffn->wait_stats().sleeps == 0 || doorbell.word.load() % 2 == 0) &&
         !asleep_by.expired()) {
    ::usleep(200);
  }
  ::usleep(10'000);  // From the mark into the kernel: if that takes longer, less is tested.

  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      ::_exit(77);
    }
    ::raise(SIGSTOP);
    group.to_ffn[0]->publish(kLane, header_of(5), rows(payload.data(), 0, 64), {});
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  const bool traced = WIFSTOPPED(status);
  ::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL);
  int num_before = 0;
  int num_after = 0;
  bool killed = false;
  while (traced && !killed && ::ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr) == 0) {
    ::waitpid(pid, &status, 0);
    if (!WIFSTOPPED(status)) {
      break;
    }
    const LaneState state = group.ffn_channel().poll(kLane);
    if (state.sequence == 0) {
      ++num_before;
    } else {
      ++num_after;
      EXPECT_EQ(state.sequence, 1U);
      EXPECT_TRUE(state.complete);
      EXPECT_EQ(group.ffn_channel().header(kLane), header_of(5));
      EXPECT_TRUE(std::equal(payload.begin(), payload.end(), landing));
    }
    if (doorbell.word.load() % 2 == 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      killed = true;
    }
  }
  if (traced) {
    EXPECT_TRUE(killed) << "status " << status;
    EXPECT_GT(num_before, 20) << "instructions before the signal";
    EXPECT_GT(num_after, 1) << "instructions after the signal";
    EXPECT_FALSE(woken.load());
  }
  group.ffn->wake();  // What the session does when it hears of the death.
  const Deadline woken_by = Deadline::after(seconds(20));
  while (!woken.load() && !woken_by.expired()) {
    ::usleep(200);
  }
  EXPECT_TRUE(woken.load());
  receiver.join();
  if (!traced) {
    GTEST_SKIP() << "this machine does not let a process trace its child";
  }
}

TEST(ShmProcessTest, WhatARankLeavesThatDiesBeforeSealGoesWithTheNextStart) {
  Board& board = new_board();
  const pid_t pid = start_forked([&] {
    const auto transport = make_shm_transport();
    const ChannelGeometry geometry = geometry_of(1, 4096);
    board.flag.store(transport->create(&geometry) ? 1 : 2);
    ::raise(SIGKILL);
    return 1;
  });
  EXPECT_EQ(wait_for(pid), -SIGKILL);
  EXPECT_EQ(board.flag.load(), 1);
  const auto transport = make_shm_transport();
  const ChannelGeometry geometry = geometry_of(1, 4096);
  ASSERT_TRUE(transport->create(&geometry));
  for (const base::LeftSegment& segment : base::list_segments()) {
    EXPECT_NE(segment.creator, pid) << segment.name;
  }
}

TEST(ShmProcessTest, AStoppedPeerIsWaitedFor) {
  Board& board = new_board();
  const ChannelGeometry geometry = geometry_of(1, 64);
  const pid_t pid =
      start_forked([&] { return attention_rank(board, 1, geometry, 64, 200, kSleepAtOnce); });
  const pid_t stopper = start_forked([&] {
    await(board.num_attached, 2);
    for (int i = 0; i < 20; ++i) {
      ::kill(pid, SIGSTOP);
      ::usleep(2'000);
      ::kill(pid, SIGCONT);
      ::usleep(500);
    }
    return 0;
  });
  EXPECT_EQ(ffn_rank(board, geometry, 64, 200, {}), 0);
  EXPECT_EQ(wait_for(stopper), 0);
  EXPECT_EQ(wait_for(pid), 0);
}

TEST(ShmProcessTest, ASleeperInAnotherProcessCostsNothingAndIsWoken) {
  Board& board = new_board();
  const ChannelGeometry geometry = geometry_of(1, 64);
  const pid_t pid = start_forked([&] {
    const Rank rank = join(board, 1, geometry, {});
    timespec before{};
    timespec after{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    if (!rank.wait(rank.completion(Direction::kF2a, 0, 1))) {
      return 1;
    }
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const long cpu_ms =
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1'000'000;
    return rank.transport->wait_stats().sleeps == 1 && cpu_ms < 30 ? 0 : 2;
  });
  const Rank rank = join(board, 0, geometry, {});
  ::usleep(300'000);  // What is measured is how little it costs to wait this long.
  rank.publish(Direction::kF2a, 0, header_of(1));
  EXPECT_EQ(wait_for(pid), 0);
}

long minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// R11: after warm-up a transfer allocates nothing and touches no page for the first time.
TEST(ShmProcessTest, ASteadyStateAllocatesNothingAndFaultsNoPageIn) {
  if (kSanitized) {
    GTEST_SKIP() << "sanitizers allocate and fault on their own account";
  }
  constexpr std::uint64_t kBytes = 300'000;
  constexpr std::uint32_t kWarmUp = 5;
  constexpr std::uint32_t kRounds = 200;
  Board& board = new_board();
  const ChannelGeometry geometry = geometry_of(1, kBytes);
  const pid_t pid = start_forked(
      [&] { return attention_rank(board, 1, geometry, kBytes, kWarmUp + kRounds, {}); });
  const Rank rank = join(board, 0, geometry, {});
  const std::byte* const in = rank.channel->landing(Direction::kA2f, 0, 0);
  std::vector<std::byte> out(kBytes);
  long faults = 0;
  std::uint64_t allocations = 0;
  for (std::uint32_t round = 1; round <= kWarmUp + kRounds; ++round) {
    if (round == kWarmUp + 1) {
      minor_faults();
      faults = minor_faults();
      allocations = num_allocations.load();
    }
    ASSERT_TRUE(rank.wait(rank.completion(Direction::kA2f, 0, round)));
    std::transform(in, in + kBytes, out.begin(),
                   [](std::byte byte) { return byte ^ std::byte{0xFF}; });
    rank.publish(Direction::kF2a, 0, header_of(round), rows(out.data(), 0, kBytes));
  }
  EXPECT_EQ(num_allocations.load() - allocations, 0U);
  EXPECT_EQ(minor_faults() - faults, 0);
  EXPECT_EQ(wait_for(pid), 0);
}

/// From here on every system call but exit_group ends this process with SIGSYS.
bool forbid_system_calls() {
  std::array<sock_filter, 4> program = {
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_exit_group},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS}};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

bool clock_needs_system_calls() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  file >> name;
  return !name.empty() && name != "tsc" && name != "kvm-clock" && name != "arch_sys_counter";
}

// R11: while it spins, a transfer makes no system call. Method: a rank that may make none at all
// exchanges transfers of all sizes with one that may.
TEST(ShmProcessTest, ASpinningRankMakesNoSystemCall) {
  if (kSanitized || clock_needs_system_calls()) {
    GTEST_SKIP() << "needs a build without sanitizers and a clock that user space can read";
  }
  constexpr std::uint32_t kRounds = 50;
  constexpr std::uint64_t kBytes = 300'000;
  Board& board = new_board();
  const ChannelGeometry geometry = geometry_of(1, kBytes);
  const pid_t pid = start_forked([&] {
    const Rank rank = join(board, 1, geometry, kSpinOnly);
    const std::vector<std::byte> payload(kBytes);
    if (!forbid_system_calls()) {
      return 77;
    }
    int status = 0;
    for (std::uint32_t round = 1; round <= kRounds && status == 0; ++round) {
      rank.publish(Direction::kA2f, 0, header_of(round),
                   rows(payload.data(), 0, kBytes / kRounds * round));
      if (!rank.transport->wait(rank.completion(Direction::kF2a, 0, round).condition(),
                                Deadline::after(seconds(60))) ||
          rank.channel->header({.direction = Direction::kF2a}) != header_of(round)) {
        status = 1;
      }
    }
    ::_exit(status);  // Without destructors, which unmap.
    return status;
  });
  // This one never sleeps: waking it would be a system call.
  const Rank rank = join(board, 0, geometry, kSpinOnly);
  const Deadline deadline = Deadline::after(seconds(30));
  for (std::uint32_t round = 1; round <= kRounds && !deadline.expired(); ++round) {
    Completion arrived = rank.completion(Direction::kA2f, 0, round);
    const Condition condition = arrived.condition();
    while (!condition.holds(condition.argument) && !deadline.expired()) {
      ::sched_yield();
    }
    rank.publish(Direction::kF2a, 0, header_of(round));
  }
  const int status = wait_for(pid);
  if (status == 77) {
    GTEST_SKIP() << "this system allows no seccomp filter";
  }
  EXPECT_EQ(status, 0) << "minus 31 is SIGSYS: a system call was made";
}

}  // namespace
}  // namespace afd::transport
