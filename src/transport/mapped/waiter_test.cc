#include "transport/mapped/waiter.h"

#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/futex.h"

namespace afd::transport {
namespace {

using std::chrono::milliseconds;

constexpr WaitPolicy kSleepAtOnce{.spin_ns_max = 0, .yield_ns_max = 0};

Condition flag_condition(std::atomic<bool>& flag) {
  return {.argument = &flag, .holds = [](void* argument) {
            return static_cast<std::atomic<bool>*>(argument)->load(std::memory_order_acquire);
          }};
}

std::int64_t thread_cpu_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TEST(WaiterTest, AConditionThatHoldsIsSeenEvenAfterTheDeadline) {
  Waiter waiter({});
  Doorbell doorbell;
  std::atomic<bool> flag{true};
  EXPECT_TRUE(waiter.wait(doorbell, flag_condition(flag), Deadline::now()));
  EXPECT_EQ(waiter.stats().sleeps, 0U);
}

TEST(WaiterTest, WaitsUntilTheDeadlineAndNotLess) {
  for (const WaitPolicy policy :
       {WaitPolicy{}, kSleepAtOnce, WaitPolicy{.spin_ns_max = 1'000'000'000, .yield_ns_max = 0},
        WaitPolicy{.spin_ns_max = 0, .yield_ns_max = 1'000'000'000}}) {
    Waiter waiter(policy);
    Doorbell doorbell;
    std::atomic<bool> flag{false};
    const Deadline deadline = Deadline::after(milliseconds(20));
    EXPECT_FALSE(waiter.wait(doorbell, flag_condition(flag), deadline));
    EXPECT_TRUE(deadline.expired());
    EXPECT_FALSE(waiter.wait(doorbell, flag_condition(flag), Deadline::now()));
  }
}

TEST(WaiterTest, ARingEndsTheSleep) {
  Waiter waiter(kSleepAtOnce);
  Doorbell doorbell;
  std::atomic<bool> flag{false};
  std::thread ringer([&] {
    while (doorbell.word.load() % 2 == 0) {
      std::this_thread::yield();  // Until it sleeps, or is about to.
    }
    flag.store(true, std::memory_order_release);
    ring({&doorbell});
  });
  EXPECT_TRUE(waiter.wait(doorbell, flag_condition(flag), Deadline::never()));
  EXPECT_EQ(waiter.stats().sleeps, 1U);
  ringer.join();
}

TEST(WaiterTest, NobodySleepsNobodyIsWoken) {
  Doorbell doorbell;
  ring({&doorbell});
  ring_unfenced({&doorbell});
  EXPECT_EQ(doorbell.word.load(), 0U);
}

TEST(WaiterTest, WakeEndsAWaitThatIsUnderWay) {
  for (const WaitPolicy policy : {WaitPolicy{.spin_ns_max = 1'000'000'000'000}, kSleepAtOnce}) {
    Waiter waiter(policy);
    Doorbell doorbell;
    std::atomic<bool> never{false};
    std::atomic<bool> returned{false};
    std::thread sleeper([&] {
      EXPECT_FALSE(waiter.wait(doorbell, flag_condition(never), Deadline::never()));
      returned.store(true);
    });
    waiter.wake(doorbell);  // Under way or not yet begun: both must end it.
    sleeper.join();
    EXPECT_TRUE(returned.load());
  }
}

TEST(WaiterTest, WakeEndsTheNextWaitOnceIfNoneIsUnderWay) {
  Waiter waiter(kSleepAtOnce);
  Doorbell doorbell;
  std::atomic<bool> never{false};
  waiter.wake(doorbell);
  EXPECT_FALSE(waiter.wait(doorbell, flag_condition(never), Deadline::never()));
  const Deadline deadline = Deadline::after(milliseconds(5));
  EXPECT_FALSE(waiter.wait(doorbell, flag_condition(never), deadline));
  EXPECT_TRUE(deadline.expired());
}

// Whoever publishes next must not make a system call for somebody who has got up.
TEST(WaiterTest, ASleepThatNobodyRangUpLeavesNoSleeperBehind) {
  Waiter waiter(kSleepAtOnce);
  Doorbell doorbell;
  std::atomic<bool> never{false};
  EXPECT_FALSE(waiter.wait(doorbell, flag_condition(never), Deadline::after(milliseconds(2))));
  EXPECT_EQ(waiter.stats().sleeps, 1U);
  EXPECT_EQ(doorbell.word.load() % 2, 0U) << "after a deadline";

  std::atomic<int> looks{0};
  const Condition second_look{.argument = &looks, .holds = [](void* argument) {
                                return static_cast<std::atomic<int>*>(argument)->fetch_add(1) >= 1;
                              }};
  EXPECT_TRUE(waiter.wait(doorbell, second_look, Deadline::never()));
  EXPECT_EQ(waiter.stats().sleeps, 2U);
  EXPECT_EQ(doorbell.word.load() % 2, 0U) << "after a look on lying down";
}

// Method: one thread sleeps until it is rung up; others lie down at the same doorbell and get up by
// themselves all the time.
TEST(WaiterTest, WhoGetsUpTakesNobodysBellAway) {
  Waiter waiter(kSleepAtOnce);
  Doorbell doorbell;
  std::atomic<int> turn{0};
  std::atomic<bool> stop{false};
  struct Awaited {
    std::atomic<int>* turn;
    std::atomic<bool>* stop;
    int wanted;
  };
  std::thread sleeper([&] {
    for (int round = 1; round <= 2'000 && !stop.load(); round += 2) {
      Awaited awaited{&turn, &stop, round};
      const Condition its_turn{.argument = &awaited, .holds = [](void* argument) {
                                 const auto& self = *static_cast<const Awaited*>(argument);
                                 return self.turn->load(std::memory_order_acquire) >= self.wanted ||
                                        self.stop->load(std::memory_order_acquire);
                               }};
      waiter.wait(doorbell, its_turn, Deadline::never());
      turn.store(round + 1, std::memory_order_release);
    }
  });
  std::vector<std::thread> restless;
  for (int i = 0; i < 2; ++i) {
    restless.emplace_back([&] {
      std::atomic<bool> never{false};
      while (!stop.load(std::memory_order_relaxed)) {
        waiter.wait(doorbell, flag_condition(never),
                    Deadline::after(std::chrono::microseconds(20)));
      }
    });
  }
  bool served = true;
  for (int round = 1; round <= 2'000 && served; round += 2) {
    turn.store(round, std::memory_order_release);
    ring({&doorbell});
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (turn.load(std::memory_order_acquire) != round + 1 && !deadline.expired()) {
      std::this_thread::yield();
    }
    served = turn.load(std::memory_order_acquire) == round + 1;
    EXPECT_TRUE(served) << "the sleeper was not woken in round " << round;
  }
  stop.store(true);
  waiter.wake(doorbell);
  sleeper.join();
  for (std::thread& thread : restless) {
    thread.join();
  }
}

bool sleeps_in_the_kernel(pid_t thread_id) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread_id) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t behind = text.rfind(')');
  return behind != std::string::npos && text.substr(behind, 3) == ") S";
}

// A peer that rings and dies after it took the sleeper's mark away, and before it woke anybody.
TEST(WaiterTest, WakeEndsASleepWhoseRingerDied) {
  Waiter waiter(kSleepAtOnce);
  Doorbell doorbell;
  std::atomic<bool> lost{false};
  std::atomic<pid_t> sleeper_id{0};
  std::atomic<bool> returned{false};
  std::thread sleeper([&] {
    sleeper_id.store(static_cast<pid_t>(::syscall(SYS_gettid)));
    EXPECT_TRUE(
        waiter.wait(doorbell, flag_condition(lost), Deadline::after(std::chrono::seconds(60))));
    returned.store(true);
  });
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while ((doorbell.word.load() % 2 == 0 || !sleeps_in_the_kernel(sleeper_id.load())) &&
         !deadline.expired()) {
    std::this_thread::yield();
  }
  std::uint32_t word = doorbell.word.load();
  ASSERT_EQ(word % 2, 1U);
  ASSERT_TRUE(doorbell.word.compare_exchange_strong(word, word + 1));
  lost.store(true);
  waiter.wake(doorbell);
  const Deadline woken_by = Deadline::after(std::chrono::seconds(20));
  while (!returned.load() && !woken_by.expired()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(returned.load()) << "it sleeps on, and nobody will ring";
  base::futex_wake_all(doorbell.word);
  sleeper.join();
}

Waiter* signalled_waiter = nullptr;
Doorbell* signalled_doorbell = nullptr;

TEST(WaiterTest, ASignalHandlerMayWake) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer delays handlers until the next call that it knows";
#endif
  Waiter waiter(kSleepAtOnce);
  Doorbell doorbell;
  signalled_waiter = &waiter;
  signalled_doorbell = &doorbell;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { signalled_waiter->wake(*signalled_doorbell); };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval in_5_ms{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 5'000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &in_5_ms, nullptr), 0);
  std::atomic<bool> never{false};
  EXPECT_FALSE(waiter.wait(doorbell, flag_condition(never), Deadline::never()));
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST(WaiterTest, SleepingCostsNoProcessorTime) {
  Waiter waiter({});
  Doorbell doorbell;
  std::atomic<bool> never{false};
  const std::int64_t before = thread_cpu_ns();
  EXPECT_FALSE(waiter.wait(doorbell, flag_condition(never), Deadline::after(milliseconds(300))));
  // The budgets are 5 us and 1 ms; spinning all the time would be 300.
  EXPECT_LT(thread_cpu_ns() - before, 30'000'000);
  EXPECT_EQ(waiter.stats().sleeps, 1U);
}

TEST(WaiterTest, CountsHowWaitsEnd) {
  std::atomic<int> looks{0};
  const Condition third_look{.argument = &looks, .holds = [](void* argument) {
                               return static_cast<std::atomic<int>*>(argument)->fetch_add(1) >= 2;
                             }};
  Doorbell doorbell;
  Waiter spinner({.spin_ns_max = 1'000'000'000'000, .yield_ns_max = 0});
  EXPECT_TRUE(spinner.wait(doorbell, third_look, Deadline::never()));
  Waiter yielder({.spin_ns_max = 0, .yield_ns_max = 1'000'000'000'000});
  looks.store(0);
  EXPECT_TRUE(yielder.wait(doorbell, third_look, Deadline::never()));
  EXPECT_EQ(spinner.stats().spins_won, 1U);
  EXPECT_EQ(yielder.stats().yields_won, 1U);
}

// Goal: no wake-up is lost between a look and the sleep after it.
// Method: a token goes round between threads that sleep at once, with yields in between at every
// step so that two cores see many interleavings; a lost wake-up hangs (and the deadline tells).
TEST(WaiterTest, NoWakeUpIsLost) {
  for (const int num_threads : {2, 3, 6}) {
    constexpr int kRounds = 3'000;
    struct Station {
      Doorbell doorbell;
      std::atomic<int> token{0};
      int awaited = 0;
    };
    std::vector<Station> stations(static_cast<std::size_t>(num_threads));
    std::vector<std::thread> threads;
    for (std::size_t self = 0; self < stations.size(); ++self) {
      threads.emplace_back([&stations, self] {
        Waiter waiter(kSleepAtOnce);
        Station& mine = stations[self];
        Station& next = stations[(self + 1) % stations.size()];
        for (int round = 1; round <= kRounds; ++round) {
          mine.awaited = round;
          const Condition arrived{.argument = &mine, .holds = [](void* argument) {
                                    auto& station = *static_cast<Station*>(argument);
                                    return station.token.load(std::memory_order_acquire) >=
                                           station.awaited;
                                  }};
          ASSERT_TRUE(
              waiter.wait(mine.doorbell, arrived, Deadline::after(std::chrono::seconds(30))))
              << "station " << self << " round " << round;
          if (round % 3 == 0) {
            std::this_thread::yield();
          }
          // The first station sends round n + 1 round the ring when n has come back.
          next.token.store(self + 1 == stations.size() ? round + 1 : round,
                           std::memory_order_release);
          ring({&next.doorbell});
        }
      });
    }
    stations[0].token.store(1, std::memory_order_release);
    ring({&stations[0].doorbell});
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

TEST(WaitBudgetTest, SpinsOnlyWhereNobodyElseWantsTheProcessor) {
  WaitBudget budget({.spin_ns_max = 5'000, .yield_ns_max = 1'000'000}, 2);
  EXPECT_EQ(budget.processor(), WaitBudget::Processor::kFree);
  EXPECT_EQ(budget.spin_ns(), 5'000);
  EXPECT_EQ(budget.yield_ns(), 1'000'000);
  for (int i = 0; i < 10; ++i) {
    budget.yielded(50'000);  // Another rank ran.
  }
  EXPECT_EQ(budget.processor(), WaitBudget::Processor::kShared);
  EXPECT_EQ(budget.spin_ns(), 0);
  EXPECT_EQ(budget.yield_ns(), 20'000);
  for (int i = 0; i < 20; ++i) {
    budget.yielded(1'000);  // They are gone.
  }
  EXPECT_EQ(budget.processor(), WaitBudget::Processor::kFree);
}

TEST(WaitBudgetTest, OneLateYieldIsNoPattern) {
  WaitBudget budget({}, 2);
  budget.yielded(3'000'000);
  EXPECT_EQ(budget.processor(), WaitBudget::Processor::kFree);
}

TEST(WaitBudgetTest, SleepsAtOnceBesideStrangersButLooksNowAndThen) {
  WaitBudget budget({}, 2);
  for (int i = 0; i < 10; ++i) {
    budget.yielded(3'000'000);
  }
  EXPECT_EQ(budget.processor(), WaitBudget::Processor::kHogged);
  int num_looks = 0;
  for (int i = 0; i < 64; ++i) {
    num_looks += budget.yield_ns() > 0 ? 1 : 0;
  }
  EXPECT_EQ(num_looks, 2);
}

TEST(WaitBudgetTest, OneProcessorIsSharedFromTheStart) {
  const WaitBudget budget({}, 1);
  EXPECT_EQ(budget.spin_ns(), 0);
}

TEST(WaitBudgetTest, YieldsLessIfWaitsAreLongAndAgainIfTheyAreShort) {
  WaitBudget budget({.spin_ns_max = 5'000, .yield_ns_max = 1'000'000}, 2);
  for (int i = 0; i < 10; ++i) {
    budget.waited(5'000'000);
  }
  EXPECT_EQ(budget.yield_ns(), 50'000);
  budget.waited(400'000);
  EXPECT_EQ(budget.yield_ns(), 1'000'000);
}

TEST(WaitBudgetTest, ThePolicyIsTheUpperLimit) {
  WaitBudget budget(kSleepAtOnce, 2);
  for (const std::int64_t took : {1'000L, 50'000L, 3'000'000L}) {
    budget.waited(took);
    for (int i = 0; i < 50; ++i) {
      budget.yielded(took);
      EXPECT_EQ(budget.spin_ns(), 0);
      EXPECT_EQ(budget.yield_ns(), 0);
    }
  }
}

}  // namespace
}  // namespace afd::transport
