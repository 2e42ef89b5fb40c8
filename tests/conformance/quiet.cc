#include "conformance/quiet.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "conformance/harness.h"

namespace afd::conformance {
namespace {

struct Tally {
  bool armed = false;
  std::uint64_t allocations = 0;
  std::uint64_t locks = 0;
  std::uint64_t system_calls = 0;
  std::int64_t last_system_call = -1;
};

// Plain data, constant-initialised: reading it allocates nothing and runs in a signal handler.
thread_local Tally tally;

}  // namespace

// Called by the replacements below.
void note_allocation() {
  if (tally.armed) {
    ++tally.allocations;
  }
}

void note_lock() {
  if (tally.armed) {
    ++tally.locks;
  }
}

bool quiet_counters_work() {
  return !is_instrumented();
}

QuietCounts& QuietCounts::operator+=(const QuietCounts& other) {
  allocations += other.allocations;
  locks += other.locks;
  system_calls += other.system_calls;
  minor_faults += other.minor_faults;
  if (other.last_system_call >= 0) {
    last_system_call = other.last_system_call;
  }
  return *this;
}

std::string to_string(const QuietCounts& counts) {
  std::string text = std::to_string(counts.allocations) + " allocations, " +
                     std::to_string(counts.locks) + " locks, " +
                     std::to_string(counts.system_calls) + " system calls";
  if (counts.last_system_call >= 0) {
    text += " (the last has number " + std::to_string(counts.last_system_call) + ")";
  }
  return text + ", " + std::to_string(counts.minor_faults) + " minor faults";
}

// --- System calls ----------------------------------------------------------------------------

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// The one place from which the filter lets system calls through. The kernel reports the address
// behind the instruction.
extern "C" long afd_conformance_raw_call(long number, long a, long b, long c, long d, long e,
                                         long f);
extern "C" const char afd_conformance_raw_call_end[];
asm(R"(
  .text
  .globl afd_conformance_raw_call
  .type afd_conformance_raw_call, @function
afd_conformance_raw_call:
  movq %rdi, %rax
  movq %rsi, %rdi
  movq %rdx, %rsi
  movq %rcx, %rdx
  movq %r8, %r10
  movq %r9, %r8
  movq 8(%rsp), %r9
  syscall
  .globl afd_conformance_raw_call_end
afd_conformance_raw_call_end:
  ret
  .size afd_conformance_raw_call, .-afd_conformance_raw_call
)");

namespace {

void on_system_call(int, siginfo_t* info, void* raw_context) {
  auto* context = static_cast<ucontext_t*>(raw_context);
  greg_t* registers = context->uc_mcontext.gregs;
  if (tally.armed) {
    ++tally.system_calls;
    tally.last_system_call = info->si_syscall;
  }
  const int saved_errno = errno;
  registers[REG_RAX] = afd_conformance_raw_call(
      info->si_syscall, registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
      registers[REG_R10], registers[REG_R8], registers[REG_R9]);
  errno = saved_errno;
}

}  // namespace

bool count_system_calls_of_this_thread() {
  struct sigaction action {};
  action.sa_sigaction = &on_system_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
  if (sigaction(SIGSYS, &action, nullptr) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return false;
  }
  const auto allowed = reinterpret_cast<std::uint64_t>(afd_conformance_raw_call_end);
  // Let through what cannot be made from a handler: the return from it, its mask, and what starts
  // or ends threads, which happens with all signals blocked.
  constexpr std::uint32_t kPassed[] = {SYS_rt_sigreturn,    SYS_rt_sigprocmask, SYS_exit,
                                       SYS_exit_group,      SYS_clone,          SYS_clone3,
                                       SYS_set_robust_list, SYS_rseq,           SYS_madvise};
  constexpr std::size_t kNumPassed = sizeof kPassed / sizeof *kPassed;
  sock_filter program[24] = {};
  std::size_t length = 0;
  const auto load = [&](std::size_t offset) {
    program[length++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
  };
  // On equality to `allow`, which stands last but `distance` instructions further on.
  load(offsetof(seccomp_data, instruction_pointer));
  program[length++] =
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(allowed), 0, 2);
  load(offsetof(seccomp_data, instruction_pointer) + 4);
  program[length++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(allowed >> 32),
                               static_cast<std::uint8_t>(kNumPassed + 2), 0);
  load(offsetof(seccomp_data, nr));
  for (std::size_t i = 0; i < kNumPassed; ++i) {
    program[length++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPassed[i],
                                 static_cast<std::uint8_t>(kNumPassed - i), 0);
  }
  program[length++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
  program[length++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog filter{static_cast<unsigned short>(length), program};
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter) != 0) {
    return false;
  }
  // See it count.
  QuietWatch watch;
  watch.arm();
  syscall(SYS_getppid);
  watch.disarm();
  return watch.counts().system_calls == 1;
}

#else

bool count_system_calls_of_this_thread() {
  return false;
}

#endif

// --- QuietWatch ------------------------------------------------------------------------------

namespace {

std::int64_t minor_faults() {
  rusage usage{};
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // Past the filter, whose signal would take longer than what is measured: a peer that spins
  // meanwhile would give up.
  afd_conformance_raw_call(SYS_getrusage, RUSAGE_THREAD, reinterpret_cast<long>(&usage), 0, 0, 0,
                           0);
#else
  getrusage(RUSAGE_THREAD, &usage);
#endif
  return usage.ru_minflt;
}

}  // namespace

void QuietWatch::arm() {
  faults_at_start_ = minor_faults();
  tally = {.armed = true};
}

void QuietWatch::disarm() {
  tally.armed = false;
  QuietCounts now{tally.allocations, tally.locks, tally.system_calls, 0, tally.last_system_call};
  const std::int64_t faults = minor_faults() - faults_at_start_;
  now.minor_faults = static_cast<std::uint64_t>(faults);
  counts_ += now;
}

}  // namespace afd::conformance

// --- Replacements ----------------------------------------------------------------------------

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

// glibc's own names of what is replaced here; operator new and everything else that allocates comes
// through these.
extern "C" {
#pragma GCC visibility push(default)  // or the shared libraries would not see them

void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

void* malloc(std::size_t bytes) {
  afd::conformance::note_allocation();
  return __libc_malloc(bytes);
}

void* calloc(std::size_t count, std::size_t bytes) {
  afd::conformance::note_allocation();
  return __libc_calloc(count, bytes);
}

void* realloc(void* memory, std::size_t bytes) {
  afd::conformance::note_allocation();
  return __libc_realloc(memory, bytes);
}

void* memalign(std::size_t alignment, std::size_t bytes) {
  afd::conformance::note_allocation();
  return __libc_memalign(alignment, bytes);
}

void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  afd::conformance::note_allocation();
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  afd::conformance::note_allocation();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

// Constant-initialised and looked up on the first call: a static with a guard would lock.
#define AFD_COUNTED_LOCK(name, type)                                        \
  int name(type* lock) {                                                    \
    static std::atomic<int (*)(type*)> real{nullptr};                       \
    int (*function)(type*) = real.load(std::memory_order_relaxed);          \
    if (function == nullptr) {                                              \
      function = reinterpret_cast<int (*)(type*)>(dlsym(RTLD_NEXT, #name)); \
      real.store(function, std::memory_order_relaxed);                      \
    }                                                                       \
    afd::conformance::note_lock();                                          \
    return function(lock);                                                  \
  }
AFD_COUNTED_LOCK(pthread_mutex_lock, pthread_mutex_t)
AFD_COUNTED_LOCK(pthread_mutex_trylock, pthread_mutex_t)
AFD_COUNTED_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
AFD_COUNTED_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
AFD_COUNTED_LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t)
AFD_COUNTED_LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t)
#undef AFD_COUNTED_LOCK

#pragma GCC visibility pop
}  // extern "C"

#endif
