#include "conformance/board.h"

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace afd::conformance {
namespace {

// Not the private variant: the word lies in memory that processes share.
void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t seen,
                std::chrono::nanoseconds duration) {
  const std::chrono::seconds seconds = std::chrono::duration_cast<std::chrono::seconds>(duration);
  timespec limit{};
  limit.tv_sec = seconds.count();
  limit.tv_nsec = (duration - seconds).count();
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void Board::change() {
  version_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(&version_);
}

template <typename Condition>
bool Board::wait(Condition condition, Clock::time_point until) {
  for (;;) {
    const std::uint32_t seen = version_.load(std::memory_order_seq_cst);
    if (condition()) {
      return true;
    }
    if (aborted()) {
      return false;
    }
    const Clock::time_point now = Clock::now();
    if (now >= until) {
      return false;
    }
    futex_wait(&version_, seen, until - now);
  }
}

void Board::post(std::size_t word, std::uint64_t value) {
  words_[word].store(value, std::memory_order_seq_cst);
  change();
}

void Board::add(std::size_t word, std::uint64_t value) {
  words_[word].fetch_add(value, std::memory_order_seq_cst);
  change();
}

void Board::store(std::size_t word, std::uint64_t value) {
  words_[word].store(value, std::memory_order_seq_cst);
}

std::uint64_t Board::read(std::size_t word) const {
  return words_[word].load(std::memory_order_seq_cst);
}

bool Board::await(std::size_t word, std::uint64_t value, Clock::time_point until) {
  return wait([&] { return read(word) >= value; }, until);
}

bool Board::barrier(std::size_t rank, std::uint32_t round, std::size_t num_ranks,
                    Clock::time_point until) {
  if (arrivals_[rank].load() < round) {
    arrivals_[rank].store(round, std::memory_order_seq_cst);
  }
  change();
  return wait(
      [&] {
        for (std::size_t other = 0; other < num_ranks; ++other) {
          if (arrivals_[other].load(std::memory_order_seq_cst) < round) {
            return false;
          }
        }
        return true;
      },
      until);
}

void Board::excuse(std::size_t rank) {
  arrivals_[rank].store(UINT32_MAX, std::memory_order_seq_cst);
  change();
}

void Board::abort() {
  aborted_.store(1, std::memory_order_seq_cst);
  change();
}

bool Board::aborted() const {
  return aborted_.load(std::memory_order_seq_cst) != 0;
}

bool thread_sleeps(pid_t process_id, pid_t thread_id) {
  const std::string path =
      "/proc/" + std::to_string(process_id) + "/task/" + std::to_string(thread_id) + "/stat";
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return false;
  }
  char text[512] = {};
  const std::size_t size = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  // "pid (name) S ...": the name may contain anything, so look behind the last parenthesis.
  text[size] = '\0';
  const char* behind = std::strrchr(text, ')');
  return behind != nullptr && behind[1] == ' ' && behind[2] == 'S';
}

}  // namespace afd::conformance
