// Ranks and launchers that are killed, stopped and interrupted in the middle of a run: everybody
// else ends in time, the message names who died, nothing is left.
#include <signal.h>

#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/bare_ranks.h"
#include "tests/fault/port.h"
#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr milliseconds kEndLimit = seconds(2);
constexpr milliseconds kStartLimit = seconds(20);

/// Prompts that keep a job busy for minutes: it never ends before it is disturbed.
std::string endless_prompts(const TempFolder& folder) {
  std::string lines;
  for (int idx = 0; idx < 2000; ++idx) {
    lines += Json{{"prompt_ids", {idx % 1000, 7, 11}}, {"max_new_tokens", 500}}.dump() + "\n";
  }
  return folder.write("endless.jsonl", lines);
}

class ProcessFaultTest : public ::testing::Test {
 protected:
  std::vector<std::string> endless_run(const std::vector<std::string>& args) {
    std::vector<std::string> command = {AFD_BINARY,  "run",    "--json",         "--model", kModel,
                                        "--prompts", prompts_, "--max-num-seqs", "4"};
    command.insert(command.end(), args.begin(), args.end());
    return command;
  }

  const TempFolder folder_;
  const std::string prompts_ = endless_prompts(folder_);
  std::mt19937 random_{20240607};
};

pid_t pid_of(const std::vector<Program::RankProcess>& ranks, const std::string& role,
             int role_rank) {
  for (const Program::RankProcess& rank : ranks) {
    if (rank.role == role && rank.role_rank == role_rank) {
      return rank.pid;
    }
  }
  return -1;
}

TEST_F(ProcessFaultTest, AKilledRankEndsTheRunAndIsNamed) {
  // Some of the points lie in loading and meeting, most in the run.
  std::uniform_int_distribution<int> delay_ms(0, 700);
  for (int trial = 0; trial < 3; ++trial) {
    for (const auto& [role, role_rank] : {std::pair<std::string, int>{"ffn", 0},
                                          {"ffn", 1},
                                          {"attention", 0},
                                          {"attention", 1},
                                          {"attention", 2}}) {
      Program run(endless_run({"--attention-ranks", "3", "--ffn-ranks", "2", "--stages", "2"}));
      const auto ranks = run.await_ranks(5, kStartLimit);
      const pid_t victim = pid_of(ranks, role, role_rank);
      ASSERT_GT(victim, 0) << ranks.size() << " ranks";
      const int ms = delay_ms(random_);
      std::this_thread::sleep_for(milliseconds(ms));
      EXPECT_GE(run.note_sockets(), 5u);  // the launcher's own, one a rank
      ASSERT_EQ(::kill(victim, SIGKILL), 0);
      const Ended ended = run.wait(seconds(30));
      const std::string name = role + " rank " + std::to_string(role_rank);
      SCOPED_TRACE(name + " killed after " + std::to_string(ms) + " ms: " + describe(ended));
      EXPECT_EQ(ended.exit_code, 3);
      EXPECT_LT(ended.elapsed, kEndLimit);
      // A slow start may have printed who was awaited, above.
      EXPECT_NE(
          ("\n" + ended.err).find("\nafd run: " + name + " died: killed by signal 9 (Killed)\n"),
          std::string::npos);
      EXPECT_EQ(ended.out, "");
      EXPECT_EQ(run.leftovers(milliseconds(0)), "");
    }
  }
}

TEST_F(ProcessFaultTest, EveryOtherRankNamesTheKilledOneWithoutALauncher) {
  // A launcher would end ranks that hear nothing: here each has to notice by itself.
  std::uniform_int_distribution<int> delay_ms(0, 300);
  for (const std::string victim :
       {"ffn rank 0", "ffn rank 1", "attention rank 0", "attention rank 1"}) {
    BareRanks job(
        2, 2, {"--model", kModel, "--prompts", prompts_, "--max-num-seqs", "4", "--stages", "2"});
    ASSERT_NO_FATAL_FAILURE(job.await_all_there());
    const int ms = delay_ms(random_);
    std::this_thread::sleep_for(milliseconds(ms));
    ASSERT_EQ(job.ended(), "");
    for (auto& rank : job.all()) {
      rank.program->note_sockets();
    }
    const auto begin = std::chrono::steady_clock::now();
    job[victim].signal(SIGKILL);
    for (auto& [name, program] : job.all()) {
      const Ended ended = program->wait(seconds(30));
      const auto elapsed = std::chrono::steady_clock::now() - begin;
      SCOPED_TRACE(victim + " killed after " + std::to_string(ms) + " ms, " + name + ": " +
                   describe(ended));
      if (name == victim) {
        EXPECT_EQ(ended.signal, SIGKILL);
        continue;
      }
      EXPECT_EQ(ended.exit_code, 3);
      EXPECT_LT(elapsed, kEndLimit);
      EXPECT_NE(ended.err.find(victim + " lost"), std::string::npos);
      EXPECT_EQ(ended.out, "");
    }
    for (auto& [name, program] : job.all()) {
      EXPECT_EQ(program->leftovers(milliseconds(0)), "") << name;
    }
  }
}

TEST_F(ProcessFaultTest, ARankThatIsInterruptedGivesTheJobUpForAll) {
  // 2A2F: ffn rank 0 steers nobody's data to attention rank 1, and may be waiting for the next step
  // when attention rank 0 fails: that is no end of a job that is done.
  for (int trial = 0; trial < 4; ++trial) {
    BareRanks job(
        2, 2, {"--model", kModel, "--prompts", prompts_, "--max-num-seqs", "4", "--stages", "2"});
    ASSERT_NO_FATAL_FAILURE(job.await_all_there());
    std::this_thread::sleep_for(milliseconds(100 + 30 * trial));
    ASSERT_EQ(job.ended(), "");
    job["attention rank 1"].signal(SIGINT);
    for (auto& [name, program] : job.all()) {
      const Ended ended = program->wait(seconds(30));
      EXPECT_EQ(ended.exit_code, name == "attention rank 1" ? 130 : 3)
          << name << ": " << describe(ended);
      EXPECT_EQ(ended.out, "") << name;
      if (name != "attention rank 1") {
        EXPECT_NE(ended.err.find("attention rank 1"), std::string::npos)
            << name << ": " << describe(ended);
      }
    }
  }
}

TEST_F(ProcessFaultTest, TheLookForLeftoversSeesTheSocketsOfAJobThatGoesOn) {
  Program run(endless_run({"--attention-ranks", "2", "--ffn-ranks", "1"}));
  const auto ranks = run.await_ranks(3, kStartLimit);
  ASSERT_EQ(ranks.size(), 3u);
  const auto until = std::chrono::steady_clock::now() + kStartLimit;
  std::string left;
  while (left.find("/proc/net/tcp") == std::string::npos &&
         std::chrono::steady_clock::now() < until) {
    run.note_sockets();
    left = run.leftovers(milliseconds(0));
  }
  EXPECT_NE(left.find("socket of /proc/net/tcp is left"), std::string::npos) << left;
  EXPECT_NE(left.find("socket of /proc/net/unix is left"), std::string::npos) << left;
}

TEST_F(ProcessFaultTest, ThePortOfAJobThatWasKilledCanBeUsedAtOnce) {
  const std::string port = free_port();
  for (const char* role : {"ffn", "attention"}) {
    Program run(endless_run({"--attention-ranks", "2", "--ffn-ranks", "1", "--port", port}));
    const pid_t victim = pid_of(run.await_ranks(3, kStartLimit), role, 0);
    ASSERT_GT(victim, 0);
    std::this_thread::sleep_for(milliseconds(500));
    ASSERT_EQ(::kill(victim, SIGKILL), 0);
    EXPECT_EQ(run.wait(seconds(30)).exit_code, 3);
    const Ended next = run_program({AFD_BINARY, "run", "--model", kModel, "--prompt-ids", "1,2",
                                    "--max-new-tokens", "2", "--port", port});
    EXPECT_EQ(next.exit_code, 0) << role << ": " << describe(next);
  }
}

TEST_F(ProcessFaultTest, ALauncherThatWasStartedWithSigchldIgnoredSeesItsRanksEnd) {
  const std::string command = std::string("trap '' CHLD; exec ") + AFD_BINARY + " run --model " +
                              kModel + " --prompt-ids 1,2 --max-new-tokens 2";
  const Ended ended = run_program({"/bin/sh", "-c", command}, seconds(20));
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
}

TEST_F(ProcessFaultTest, AKilledLauncherTakesItsRanksWithIt) {
  for (const int ms : {0, 30, 400}) {
    Program run(endless_run({"--attention-ranks", "2", "--ffn-ranks", "2"}));
    ASSERT_EQ(run.await_ranks(4, kStartLimit).size(), 4u);
    std::this_thread::sleep_for(milliseconds(ms));
    EXPECT_GE(run.note_sockets(), 4u);
    run.signal(SIGKILL);
    EXPECT_EQ(run.wait(seconds(5)).signal, SIGKILL);
    EXPECT_EQ(run.leftovers(kEndLimit), "") << ms << " ms";
  }
}

TEST_F(ProcessFaultTest, AKilledLauncherTakesAStoppedRankWithItToo) {
  for (const char* role : {"ffn", "attention"}) {
    Program run(endless_run({"--attention-ranks", "2", "--ffn-ranks", "2"}));
    const pid_t victim = pid_of(run.await_ranks(4, kStartLimit), role, 1);
    ASSERT_GT(victim, 0);
    std::this_thread::sleep_for(milliseconds(300));
    ASSERT_EQ(::kill(victim, SIGSTOP), 0);
    EXPECT_GE(run.note_sockets(), 4u);
    run.signal(SIGKILL);
    EXPECT_EQ(run.wait(seconds(5)).signal, SIGKILL);
    EXPECT_EQ(run.leftovers(kEndLimit), "") << role;
  }
}

TEST_F(ProcessFaultTest, AnInterruptEndsAllRanksInOrder) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    Program run(endless_run({"--attention-ranks", "2", "--ffn-ranks", "1", "--stages", "2"}));
    const auto ranks = run.await_ranks(3, kStartLimit);
    ASSERT_EQ(ranks.size(), 3u);
    std::this_thread::sleep_for(milliseconds(300));
    if (signal_number == SIGINT) {
      for (const auto& rank : ranks) {
        ::kill(rank.pid, SIGINT);  // as a terminal does
      }
    }
    EXPECT_GE(run.note_sockets(), 3u);
    run.signal(signal_number);
    const Ended ended = run.wait(seconds(30));
    EXPECT_EQ(ended.exit_code, 128 + signal_number) << describe(ended);
    EXPECT_LT(ended.elapsed, kEndLimit);
    EXPECT_NE(ended.err.find("interrupted by signal"), std::string::npos) << describe(ended);
    EXPECT_EQ(run.leftovers(milliseconds(0)), "");
  }
}

/// Stops a rank for a quarter of a second, three times.
/// @param ended  names who has ended: nobody may have, before it goes on
void stop_and_continue(pid_t victim, const std::function<std::string()>& ended) {
  for (int stop = 0; stop < 3; ++stop) {
    ASSERT_EQ(::kill(victim, SIGSTOP), 0);
    EXPECT_TRUE(await_state(victim, 'T', kStartLimit));
    std::this_thread::sleep_for(milliseconds(250));
    EXPECT_TRUE(await_state(victim, 'T', milliseconds(0)));
    EXPECT_EQ(ended(), "") << "in stop " << stop << ": the job was not stopped while it ran";
    ASSERT_EQ(::kill(victim, SIGCONT), 0);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

class StoppedRankTest : public ProcessFaultTest {
 protected:
  StoppedRankTest() {
    std::string lines;
    for (int idx = 0; idx < kNumPrompts; ++idx) {
      lines += Json{{"prompt_ids", {idx + 1, 2, 3}}, {"max_new_tokens", 120}}.dump() + "\n";
    }
    args_ = {"--prompts", folder_.write("some.jsonl", lines), "--logits-sha256"};
    std::vector<std::string> colocated = args_;
    colocated.push_back("--colocated");
    collect(afd_run(kModel, colocated), wanted_);
    args_.insert(args_.end(), {"--model", kModel, "--stages", "2", "--max-num-seqs", "2"});
  }

  /// Adds the hashes of a report's outputs, by the first id of their prompt.
  static void collect(const Json& report, std::map<int, std::string>& hashes) {
    ASSERT_TRUE(report.is_object());
    for (const Json& output : report.at("outputs")) {
      hashes[output.at("prompt_ids").at(0)] = output.at("logits_sha256");
    }
  }

  static constexpr int kNumPrompts = 24;
  std::vector<std::string> args_;
  std::map<int, std::string> wanted_;
};

TEST_F(StoppedRankTest, IsWaitedForAndTheResultIsTheSame) {
  ASSERT_EQ(wanted_.size(), std::size_t{kNumPrompts});
  for (const std::string victim : {"ffn rank 1", "attention rank 1"}) {
    BareRanks job(2, 2, args_);
    ASSERT_NO_FATAL_FAILURE(job.await_all_there());
    ASSERT_NO_FATAL_FAILURE(stop_and_continue(job[victim].pid(), [&job] { return job.ended(); }));
    std::map<int, std::string> hashes;
    for (auto& [name, program] : job.all()) {
      const Ended ended = program->wait(seconds(60));
      ASSERT_EQ(ended.exit_code, 0) << name << ": " << describe(ended);
      collect(Json::parse(ended.out), hashes);
      EXPECT_EQ(program->leftovers(milliseconds(0)), "") << name;
    }
    EXPECT_EQ(hashes, wanted_) << victim;
  }
}

TEST_F(StoppedRankTest, IsWaitedForByALauncherToo) {
  ASSERT_EQ(wanted_.size(), std::size_t{kNumPrompts});
  std::vector<std::string> command = {AFD_BINARY, "run",         "--json", "--attention-ranks",
                                      "2",        "--ffn-ranks", "2"};
  command.insert(command.end(), args_.begin(), args_.end());
  for (const char* role : {"ffn", "attention"}) {
    Program run(command);
    const pid_t victim = pid_of(run.await_ranks(4, kStartLimit), role, 1);
    ASSERT_GT(victim, 0);
    std::this_thread::sleep_for(milliseconds(150));
    ASSERT_NO_FATAL_FAILURE(stop_and_continue(
        victim, [&run] { return std::string(run.has_ended() ? "the launcher" : ""); }));
    const Ended ended = run.wait(seconds(60));
    ASSERT_EQ(ended.exit_code, 0) << describe(ended);
    std::map<int, std::string> hashes;
    collect(Json::parse(ended.out), hashes);
    EXPECT_EQ(hashes, wanted_) << role;
    EXPECT_EQ(run.leftovers(milliseconds(0)), "");
  }
}

TEST_F(ProcessFaultTest, ARankThatStaysStoppedIsNamedAfterTheHopTimeout) {
  for (const char* role : {"ffn", "attention"}) {
    Program run(
        endless_run({"--attention-ranks", "2", "--ffn-ranks", "1", "--hop-timeout", "0.5"}));
    const pid_t victim = pid_of(run.await_ranks(3, kStartLimit), role, 0);
    ASSERT_GT(victim, 0);
    std::this_thread::sleep_for(milliseconds(500));
    EXPECT_GE(run.note_sockets(), 3u);
    ASSERT_EQ(::kill(victim, SIGSTOP), 0);
    const Ended ended = run.wait(seconds(30));
    EXPECT_EQ(ended.exit_code, 4) << describe(ended);
    EXPECT_NE(ended.err.find(std::string(role) + " rank 0"), std::string::npos) << describe(ended);
    EXPECT_EQ(run.leftovers(milliseconds(0)), "");
  }
}

TEST_F(ProcessFaultTest, AnOnlyAttentionRankThatStaysStoppedIsNamedWhereverItStands) {
  // Sampling and hashing lie between two steps, where the FFN rank waits without a deadline.
  const std::vector<std::string> args = {"--temperature", "1", "--logits-sha256", "--hop-timeout",
                                         "0.3"};
  for (int trial = 0; trial < 8; ++trial) {
    Program run(endless_run(args));
    const pid_t victim = pid_of(run.await_ranks(2, kStartLimit), "attention", 0);
    ASSERT_GT(victim, 0);
    std::this_thread::sleep_for(milliseconds(250 + 37 * trial));
    ASSERT_EQ(::kill(victim, SIGSTOP), 0);
    const Ended ended = run.wait(seconds(10));
    EXPECT_EQ(ended.exit_code, 4) << describe(ended);
    EXPECT_NE(ended.err.find("attention rank 0 is stopped (SIGSTOP"), std::string::npos)
        << describe(ended);
    EXPECT_EQ(run.leftovers(milliseconds(0)), "");
  }
}

}  // namespace
}  // namespace afd::testing
