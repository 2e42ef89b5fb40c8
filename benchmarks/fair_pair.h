// The fair measure: how long until a payload that was just written has been read completely by
// another process (docs/shm-layout.md).
//
// Two processes, pinned to two processors, take turns: the sender stamps t0 and sends, the receiver
// reads every byte, stamps t1 and returns it with the sum of what it read. Both go through the same
// list of experiments in the same order, so everything that is compared is interleaved in one run.
#pragma once

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/fence.h"

namespace afd::bench {

/// One run of the measure. The parent process is the sender.
class FairPair {
 public:
  /// Ends the program with status 77 (skipped) if this machine cannot measure one-way times.
  FairPair() : rate_(base::calibrate_ticks()) {
    if (!rate_.trusted) {
      give_up("one-way times cannot be measured here: " + rate_.why_not, kSkipped);
    }
    const std::vector<std::uint32_t>& cpus = cpus_before_;
    if (cpus.size() < 2) {
      give_up("two processors are needed, this process may use one", kSkipped);
    }
    sender_cpu_ = cpus[cpus.size() - 2];
    receiver_cpu_ = cpus[cpus.size() - 1];
    void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      give_up("no shared memory");
    }
    board_ = new (memory) Board;
  }
  ~FairPair() {
    if (receiver_ > 0) {
      ::kill(receiver_, SIGKILL);
      ::waitpid(receiver_, nullptr, 0);
    }
    static_cast<void>(base::pin_this_thread(cpus_before_));
  }
  FairPair(const FairPair&) = delete;
  FairPair& operator=(const FairPair&) = delete;

  /// Forks the receiver, which runs `body` and ends. Then pins this process and shows the place.
  void start(const std::function<void()>& body) {
    const pid_t parent = ::getpid();
    receiver_ = ::fork();
    if (receiver_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A spinning receiver must not outlive its sender.
      if (::getppid() == parent) {
        must(base::pin_this_thread({receiver_cpu_}));
        board_->receiver_ghz.store(gigahertz(), std::memory_order_relaxed);
        for (std::uint64_t i = 1; i <= kLineTrips; ++i) {
          spin_until(board_->ping, i);
          board_->pong.store(i, std::memory_order_release);
        }
        body();
      }
      ::_exit(0);
    }
    must(base::pin_this_thread({sender_cpu_}));
    const double ghz = gigahertz();
    board_->ping.store(1, std::memory_order_release);  // Until it is there.
    spin_until(board_->pong, 1);
    const std::uint64_t start = base::stamp();
    for (std::uint64_t i = 2; i <= kLineTrips; ++i) {
      board_->ping.store(i, std::memory_order_release);
      spin_until(board_->pong, i);
    }
    std::printf("# place: line round trip %.3f us, sender %.2f GHz, receiver %.2f GHz\n",
                us(base::stamp() - start) / (kLineTrips - 1), ghz,
                board_->receiver_ghz.load(std::memory_order_relaxed));
  }

  /// Receiver: never set. A receiver ends with its sender, wherever it waits (start()).
  const std::atomic<bool>& stop() const noexcept { return board_->stop; }

  /// Receiver: has read everything, whose sum is `sum`.
  void reply(std::uint64_t sum) noexcept {
    const std::uint64_t now = base::stamp();
    board_->sum.store(sum, std::memory_order_relaxed);
    board_->read_at.store(now, std::memory_order_release);
  }

  /// Sender: runs `send` and waits until the receiver has read all. @return microseconds one way
  template <typename Send>
  double measure(std::uint64_t expected_sum, Send send) {
    // Let what was just rewritten leave the store buffer, as a layer's last instructions would.
    for (int i = 0; i < 40; ++i) {
      base::spin_pause();
    }
    const std::uint64_t start = base::stamp();
    send();
    std::uint64_t read_at = 0;
    std::uint64_t num_spins = 0;
    while ((read_at = board_->read_at.load(std::memory_order_acquire)) == last_read_at_) {
      base::spin_pause();
      if (++num_spins % kSpinsUntilALook == 0 && ::waitpid(receiver_, nullptr, WNOHANG) != 0) {
        receiver_ = -1;
        give_up("the receiver ended early");
      }
    }
    last_read_at_ = read_at;
    if (board_->sum.load(std::memory_order_relaxed) != expected_sum) {
      give_up("the receiver read wrong bytes");  // Fast and wrong measures nothing.
    }
    return us(read_at - start);
  }

 private:
  static constexpr std::uint64_t kLineTrips = 20'000;
  /// Far longer than any payload takes: no measured time has the look in it.
  static constexpr std::uint64_t kSpinsUntilALook = 10'000'000;

  struct Board {
    alignas(64) std::atomic<std::uint64_t> ping{0};
    alignas(64) std::atomic<std::uint64_t> pong{0};
    alignas(64) std::atomic<std::uint64_t> read_at{0};
    alignas(64) std::atomic<std::uint64_t> sum{0};
    alignas(64) std::atomic<double> receiver_ghz{0};
    std::atomic<bool> stop{false};
  };

  static constexpr int kSkipped = 77;

  [[noreturn]] void give_up(const std::string& why, int exit_status = 1) {
    std::fprintf(stderr, "%s\n", why.c_str());
    if (receiver_ > 0) {
      ::kill(receiver_, SIGKILL);
    }
    std::exit(exit_status);
  }
  void must(const Result<void>& done) {
    if (!done) {
      give_up(done.error().message);
    }
  }
  static void spin_until(const std::atomic<std::uint64_t>& counter, std::uint64_t value) {
    while (counter.load(std::memory_order_acquire) != value) {
      base::spin_pause();
    }
  }
  double us(std::uint64_t ticks) const {
    return static_cast<double>(static_cast<std::int64_t>(ticks)) * rate_.ns_per_tick / 1000;
  }
  /// Of a chain of dependent additions, one a cycle.
  double gigahertz() const {
    constexpr std::uint64_t kAdditions = 3'000'000;
    const std::uint64_t start = base::stamp();
    std::uint64_t value = start;
    for (std::uint64_t i = 0; i < kAdditions; ++i) {
      asm volatile("" : "+r"(value));  // Keeps the chain.
      value += 1;
    }
    return kAdditions / (us(base::stamp() - start) * 1000);
  }

  const std::vector<std::uint32_t> cpus_before_ = base::allowed_cpus();
  const base::TickRate rate_;
  Board* board_ = nullptr;
  std::uint32_t sender_cpu_ = 0;
  std::uint32_t receiver_cpu_ = 0;
  pid_t receiver_ = -1;
  std::uint64_t last_read_at_ = 0;
};

/// Times of one experiment.
class Times {
 public:
  void add(double us) { us_.push_back(us); }
  double quantile(double share) {
    std::sort(us_.begin(), us_.end());
    return us_[std::min(us_.size() - 1,
                        static_cast<std::size_t>(static_cast<double>(us_.size()) * share))];
  }

 private:
  std::vector<double> us_;
};

/// Rewrites a payload of whole 8-byte words with values of this turn. @return their sum
inline std::uint64_t rewrite(std::byte* payload, std::uint64_t size, std::uint64_t turn) {
  auto* const words = reinterpret_cast<std::uint64_t*>(payload);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < size / sizeof(std::uint64_t); ++i) {
    words[i] = turn * 0x9E37'79B9'7F4A'7C15 + i;
    sum += words[i];
  }
  return sum;
}

}  // namespace afd::bench
