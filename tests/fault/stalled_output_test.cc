// `afd run | less`, left open: a reader of stdout that stands still holds up neither the ranks nor
// a signal, and gets everything once it goes on.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr seconds kLimit{20};

/// A pipe that is full from the start.
class FullPipe {
 public:
  FullPipe() : path_(folder_.path() + "/stdout") {
    EXPECT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    fd_ = ::open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
    EXPECT_GE(fd_, 0);
    const std::string zeros(4096, '\0');
    while (::write(fd_, zeros.data(), zeros.size()) > 0) {
      num_before_ += zeros.size();
    }
  }
  ~FullPipe() { ::close(fd_); }
  FullPipe(const FullPipe&) = delete;
  FullPipe& operator=(const FullPipe&) = delete;

  /// `afd run --model M ARGS` that writes into it.
  std::vector<std::string> run(const std::string& args) const {
    return {"/bin/sh", "-c",
            std::string("exec " AFD_BINARY " run --model ") + kModel + " " + args + " >" + path_};
  }

  /// What was written into it until the program ended.
  std::string read_until_end_of(const Program& program) {
    std::string text;
    char buffer[4096];
    const auto until = std::chrono::steady_clock::now() + kLimit;
    for (bool ended = false; std::chrono::steady_clock::now() < until;) {
      ssize_t got = 0;
      while ((got = ::read(fd_, buffer, sizeof(buffer))) > 0) {
        text.append(buffer, static_cast<std::size_t>(got));
      }
      if (ended) {
        break;
      }
      ended = program.has_ended();
      std::this_thread::sleep_for(milliseconds(1));
    }
    return text.substr(num_before_);
  }

 private:
  const TempFolder folder_;
  const std::string path_;
  int fd_ = -1;
  std::size_t num_before_ = 0;
};

/// Waits until the ranks have come and gone. @return false when the time is up
bool await_the_ranks_end(Program& run, std::size_t num_ranks) {
  if (run.await_ranks(num_ranks, kLimit).size() != num_ranks) {
    return false;
  }
  const auto until = std::chrono::steady_clock::now() + kLimit;
  while (!run.ranks().empty() && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  return run.ranks().empty();
}

TEST(StalledOutputTest, TheRanksFinishAndTheReaderGetsEverything) {
  const std::string args =
      "--attention-ranks 2 --prompt-ids 1,2 --prompt-ids 3,4 --prompt-ids 5 --max-new-tokens 40 "
      "--hop-timeout 5";
  const Ended plain =
      run_program({"/bin/sh", "-c", "exec " AFD_BINARY " run --model " + kModel + " " + args});
  ASSERT_EQ(plain.exit_code, 0) << describe(plain);
  FullPipe full;
  Program run(full.run(args));
  ASSERT_TRUE(await_the_ranks_end(run, 3));
  EXPECT_FALSE(run.has_ended());
  EXPECT_EQ(full.read_until_end_of(run), plain.out);
  const Ended ended = run.wait(kLimit);
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  EXPECT_NE(ended.err.find("tokens/s"), std::string::npos) << describe(ended);
}

TEST(StalledOutputTest, ASignalEndsARunThatOnlyWaitsForItsReader) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    FullPipe full;
    Program run(full.run("--prompt-ids 1,2 --max-new-tokens 40"));
    ASSERT_TRUE(await_the_ranks_end(run, 2));
    run.signal(signal_number);
    const Ended ended = run.wait(kLimit);
    EXPECT_FALSE(ended.timed_out) << describe(ended);
    EXPECT_TRUE(ended.signal == signal_number || ended.exit_code == 128 + signal_number)
        << describe(ended);
  }
}

class StalledLongRunTest : public ::testing::Test {
 protected:
  StalledLongRunTest() {
    std::string lines;
    for (int idx = 0; idx < 4000; ++idx) {
      // The first has something to show soon, the others keep the job busy for minutes.
      lines +=
          Json{{"prompt_ids", {idx % 1000, 7, 11}}, {"max_new_tokens", idx == 0 ? 2 : 500}}.dump() +
          "\n";
    }
    args_ = "--max-num-seqs 4 --attention-ranks 2 --prompts " + folder_.write("long.jsonl", lines);
  }

  const TempFolder folder_;
  std::string args_;
};

TEST_F(StalledLongRunTest, ASignalEndsIt) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    FullPipe full;
    Program run(full.run(args_));
    ASSERT_EQ(run.await_ranks(3, kLimit).size(), 3u);
    std::this_thread::sleep_for(milliseconds(700));  // so that most runs stand in a write by then
    run.signal(signal_number);
    const Ended ended = run.wait(kLimit);
    EXPECT_EQ(ended.exit_code, 128 + signal_number) << describe(ended);
    EXPECT_NE(ended.err.find("interrupted by signal"), std::string::npos) << describe(ended);
    EXPECT_EQ(run.leftovers(milliseconds(0)), "");
  }
}

TEST_F(StalledLongRunTest, ARanksDeathIsNamed) {
  FullPipe full;
  Program run(full.run(args_));
  const auto ranks = run.await_ranks(3, kLimit);
  ASSERT_EQ(ranks.size(), 3u);
  std::this_thread::sleep_for(milliseconds(700));
  ASSERT_EQ(::kill(ranks[0].pid, SIGKILL), 0);
  EXPECT_TRUE(run.await_stderr("died: killed by signal 9", kLimit));
  full.read_until_end_of(run);
  const Ended ended = run.wait(kLimit);
  EXPECT_EQ(ended.exit_code, 3) << describe(ended);
  EXPECT_EQ(run.leftovers(milliseconds(0)), "");
}

}  // namespace
}  // namespace afd::testing
