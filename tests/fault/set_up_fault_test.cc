// Jobs that cannot come together: no shared memory, a port in use, ranks that do not fit each
// other.
#include <signal.h>

#include <chrono>
#include <memory>
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

TEST(SetUpFaultTest, ASharedMemoryThatIsTooSmallIsNamedWithWhatIsMissing) {
  const Ended ended = run_program({AFD_BINARY, "run", "--model", kModel, "--prompt", "x",
                                   "--max-num-tokens", "16000000", "--stages", "8"});
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_NE(ended.err.find("too little shared memory"), std::string::npos) << describe(ended);
  EXPECT_NE(ended.err.find("missing"), std::string::npos) << describe(ended);
}

TEST(SetUpFaultTest, AFullDevShmIsNamed) {
  const Ended probe = run_program({"/usr/bin/unshare", "-m", "/bin/true"});
  if (probe.exit_code != 0) {
    GTEST_SKIP() << "needs a mount namespace of its own (root)";
  }
  const std::string script = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec '" AFD_BINARY
                             "' run --model '" +
                             kModel + "' --prompt x";
  const Ended ended = run_program({"/usr/bin/unshare", "-m", "/bin/sh", "-c", script});
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_NE(ended.err.find("too little shared memory"), std::string::npos) << describe(ended);
}

TEST(SetUpFaultTest, ADevShmThatIsReadOnlyIsNamed) {
  const Ended probe = run_program({"/usr/bin/unshare", "-m", "/bin/true"});
  if (probe.exit_code != 0) {
    GTEST_SKIP() << "needs a mount namespace of its own (root)";
  }
  const std::string script = "mount -t tmpfs -o ro tmpfs /dev/shm && exec '" AFD_BINARY
                             "' run --model '" +
                             kModel + "' --prompt x";
  const Ended ended = run_program({"/usr/bin/unshare", "-m", "/bin/sh", "-c", script});
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_NE(ended.err.find("Read-only file system"), std::string::npos) << describe(ended);
  EXPECT_NE(ended.err.find("hint: /dev/shm must be writable"), std::string::npos)
      << describe(ended);
}

TEST(SetUpFaultTest, TooFewDescriptorsAreAnErrorThatSaysSo) {
  // Wherever they run out: in the launcher, in a rank's watcher, files or sockets.
  const std::string rank_command = " rank --role ffn --role-rank 0 --init-timeout 0.1 --port " +
                                   free_port() + " --model " + kModel;
  const std::string run_command =
      " run --prompt-ids 1 --max-new-tokens 1 --attention-ranks 2 "
      "--model " +
      kModel;
  std::size_t num_hints = 0;
  for (int limit = 4; limit <= 16; ++limit) {
    for (const std::string& command : {rank_command, run_command}) {
      const Ended ended = run_program(
          {"/bin/sh", "-c", "ulimit -n " + std::to_string(limit) + "; exec " AFD_BINARY + command});
      SCOPED_TRACE(std::to_string(limit) + command + ": " + describe(ended));
      EXPECT_EQ(ended.signal, 0);
      if (ended.err.find("Too many open files") == std::string::npos) {
        continue;  // the loader ran out of them before main(), or there were enough
      }
      ++num_hints;
      EXPECT_EQ(ended.exit_code, 1);
      EXPECT_NE(ended.err.find("hint: raise the limit of open files"), std::string::npos);
    }
  }
  EXPECT_GT(num_hints, 8u);
}

TEST(SetUpFaultTest, APortInUseIsNamed) {
  const BusyPort busy;
  Program run({AFD_BINARY, "run", "--model", kModel, "--prompt", "x", "--attention-ranks", "2",
               "--port", busy.port()});
  const Ended ended = run.wait(seconds(30));
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_NE(ended.err.find("port " + busy.port()), std::string::npos) << describe(ended);
  EXPECT_NE(ended.err.find("in use"), std::string::npos) << describe(ended);
  EXPECT_EQ(run.leftovers(milliseconds(0)), "");
}

TEST(SetUpFaultTest, ADuplicateRankIsRefusedByNameAndTheJobGoesOn) {
  const std::string port = free_port();
  const std::vector<std::string> args = {"--model",          kModel, "--attention-ranks", "2",
                                         "--prompt",         "It",   "--prompt",          "is",
                                         "--max-new-tokens", "4"};
  Program ffn(rank_command("ffn", 0, port, args));
  Program first(rank_command("attention", 0, port, args));
  Program second(rank_command("attention", 0, port, args));
  // Whichever comes second is refused; it ends by itself.
  Program* refused = nullptr;
  Program* accepted = nullptr;
  Ended refusal;
  for (int attempt = 0; attempt < 2000 && refused == nullptr; ++attempt) {
    if (second.has_ended()) {
      refused = &second;
      accepted = &first;
    } else if (first.has_ended()) {
      refused = &first;
      accepted = &second;
    } else {
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  ASSERT_NE(refused, nullptr);
  refusal = refused->wait(seconds(1));
  EXPECT_EQ(refusal.exit_code, 5) << describe(refusal);
  EXPECT_NE(refusal.err.find("attention rank 0 is already present"), std::string::npos)
      << describe(refusal);

  Program last(rank_command("attention", 1, port, args));
  for (Program* program : {&ffn, accepted, &last}) {
    const Ended ended = program->wait(seconds(30));
    EXPECT_EQ(ended.exit_code, 0) << describe(ended);
    EXPECT_EQ(program->leftovers(milliseconds(0)), "");
  }
}

// The rank that differs says so and ends; FFN rank 0 says so too, and waits on for the right one.
void expect_refused(const std::vector<std::string>& right, const std::vector<std::string>& wrong,
                    const std::string& why) {
  const std::string port = free_port();
  Program ffn(rank_command("ffn", 0, port, right));
  Program attention(rank_command("attention", 0, port, wrong));
  const Ended refused = attention.wait(seconds(30));
  EXPECT_EQ(refused.exit_code, 5) << describe(refused);
  EXPECT_NE(refused.err.find(why), std::string::npos) << describe(refused);
  EXPECT_EQ(attention.leftovers(milliseconds(0)), "");
  EXPECT_TRUE(ffn.await_stderr(why, seconds(10)));

  std::vector<std::string> args = right;
  args.insert(args.end(), {"--prompt", "x", "--max-new-tokens", "2"});
  Program last(rank_command("attention", 0, port, args));
  for (Program* program : {&ffn, &last}) {
    const Ended ended = program->wait(seconds(30));
    EXPECT_EQ(ended.exit_code, 0) << describe(ended);
    EXPECT_EQ(program->leftovers(milliseconds(0)), "");
  }
}

TEST(SetUpFaultTest, ARankOfAnotherModelIsRefused) {
  expect_refused({"--model", kModel},
                 {"--model", std::string(AFD_MODELS) + "/variants/v3", "--prompt-ids", "1"},
                 "hidden_size differs: attention rank 0 has 64, ffn rank 0 has 256");
}

TEST(SetUpFaultTest, ARankWithOtherLimitsIsRefused) {
  expect_refused({"--model", kModel, "--stages", "2"},
                 {"--model", kModel, "--stages", "3", "--prompt", "x"},
                 "num_stages differs: attention rank 0 has 3, ffn rank 0 has 2");
}

TEST(SetUpFaultTest, AttentionRanksWithDifferentPromptsSaySo) {
  const std::string port = free_port();
  const std::vector<std::string> job = {"--model", kModel, "--attention-ranks", "2"};
  const auto rank = [&](const char* role, int role_rank, std::vector<std::string> prompts) {
    prompts.insert(prompts.begin(), job.begin(), job.end());
    return std::make_unique<Program>(rank_command(role, role_rank, port, prompts));
  };
  const auto ffn = rank("ffn", 0, {});
  const auto first = rank("attention", 0, {"--prompt", "She was"});
  const auto second = rank("attention", 1, {"--prompt", "He", "--prompt", "They"});
  for (Program* program : {first.get(), second.get()}) {
    const Ended ended = program->wait(seconds(30));
    EXPECT_EQ(ended.exit_code, 5) << describe(ended);
    EXPECT_NE(ended.err.find("was given other prompts than"), std::string::npos) << describe(ended);
  }
  EXPECT_EQ(ffn->wait(seconds(30)).exit_code, 3);
}

TEST(SetUpFaultTest, ARankThatNeverComesIsNamed) {
  Program ffn(rank_command("ffn", 0, free_port(),
                           {"--model", kModel, "--attention-ranks", "2", "--init-timeout", "0.3"}));
  const Ended ended = ffn.wait(seconds(30));
  EXPECT_EQ(ended.exit_code, 4) << describe(ended);
  EXPECT_NE(ended.err.find("attention rank 0, attention rank 1 did not arrive"), std::string::npos)
      << describe(ended);
}

TEST(SetUpFaultTest, ARankThatWaitsEndsOnSigterm) {
  Program ffn(rank_command("ffn", 0, free_port(), {"--model", kModel, "--attention-ranks", "2"}));
  ASSERT_TRUE(ffn.await_stderr("waiting for attention rank 0, attention rank 1", seconds(30)));
  ffn.signal(SIGTERM);
  const Ended ended = ffn.wait(seconds(30));
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  EXPECT_LT(ended.elapsed, seconds(2));
  EXPECT_EQ(ffn.leftovers(milliseconds(0)), "");
}

TEST(SetUpFaultTest, RanksStartInAnyOrder) {
  const std::vector<std::string> args = {"--model",          kModel, "--attention-ranks", "2",
                                         "--prompt",         "It",   "--prompt",          "is",
                                         "--max-new-tokens", "4"};
  struct RankOfJob {
    std::string role;
    int role_rank;
  };
  for (const std::vector<RankOfJob>& order :
       {std::vector<RankOfJob>{{"attention", 1}, {"attention", 0}, {"ffn", 0}},
        std::vector<RankOfJob>{{"attention", 0}, {"ffn", 0}, {"attention", 1}}}) {
    const std::string port = free_port();
    std::vector<std::unique_ptr<Program>> programs;
    for (const RankOfJob& which : order) {
      programs.push_back(
          std::make_unique<Program>(rank_command(which.role, which.role_rank, port, args)));
      std::this_thread::sleep_for(milliseconds(100));
    }
    for (const auto& program : programs) {
      const Ended ended = program->wait(seconds(30));
      EXPECT_EQ(ended.exit_code, 0) << describe(ended);
      EXPECT_EQ(program->leftovers(milliseconds(0)), "");
    }
  }
}

}  // namespace
}  // namespace afd::testing
