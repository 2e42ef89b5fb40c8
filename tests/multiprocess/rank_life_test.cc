// `afd rank` as an orchestrator has it: started from one file, ready, drained, its exit status.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "afd_run.h"
#include "tests/fault/port.h"
#include "tests/support/program.h"

namespace afd::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
constexpr int kNumPrompts = 3000;
constexpr milliseconds kLimit = seconds(30);

bool exists(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

/// A job of which a file says all but the role.
class RankLifeTest : public ::testing::Test {
 protected:
  RankLifeTest() {
    std::string lines;
    for (int i = 0; i < kNumPrompts; ++i) {
      lines += Json{{"prompt_ids", {1 + i % 1000, 7, 9}}, {"max_new_tokens", 60}}.dump() + "\n";
    }
    folder_.write("prompts.jsonl", lines);
    job_ = {{"model", kModel},     {"attention_ranks", 2},       {"ffn_ranks", 1},
            {"max_num_seqs", 4},   {"prompts", "prompts.jsonl"}, {"port", std::stoi(free_port())},
            {"init_timeout", 20.5}};
  }

  /// The job's file; a rank may be reading it, so it is written where the job has changed.
  std::string file() {
    if (written_ != job_.dump()) {
      written_ = job_.dump();
      folder_.write("job.json", written_);
    }
    return path("job.json");
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

  std::unique_ptr<Program> start(const std::string& role, int role_rank,
                                 const std::vector<std::string>& more = {}) {
    std::vector<std::string> args = {AFD_BINARY, "rank", "--config",    file(),
                                     "--role",   role,   "--role-rank", std::to_string(role_rank)};
    args.insert(args.end(), more.begin(), more.end());
    return std::make_unique<Program>(args);
  }
  /// "ffn", "a0", "a1", each with a ready file of that name.
  void start_all(const std::vector<std::string>& more) {
    const auto with_file = [&](const std::string& name) {
      std::vector<std::string> args = more;
      args.insert(args.end(), {"--ready-file", path(name)});
      return args;
    };
    ranks_["ffn"] = start("ffn", 0, with_file("ffn"));
    ranks_["a0"] = start("attention", 0, with_file("a0"));
    ranks_["a1"] = start("attention", 1, with_file("a1"));
  }
  void await_ready() {
    for (const auto& [name, rank] : ranks_) {
      ASSERT_TRUE(rank->await_stderr("all ranks are there", kLimit)) << name;
    }
    std::this_thread::sleep_for(milliseconds(200));
  }

  TempFolder folder_;
  Json job_;
  std::string written_;
  std::map<std::string, std::unique_ptr<Program>> ranks_;
};

TEST_F(RankLifeTest, SigtermDrainsTheJobWhoeverGetsIt) {
  for (const std::vector<std::string>& told :
       {std::vector<std::string>{"ffn", "a0", "a1"}, std::vector<std::string>{"a1"}}) {
    start_all({"--json", "--stages", "2"});
    await_ready();
    for (const std::string& name : told) {
      ranks_[name]->signal(SIGTERM);
    }
    std::size_t num_served = 0;
    std::size_t num_unserved = 0;
    for (const auto& [name, rank] : ranks_) {
      const Ended ended = rank->wait(kLimit);
      EXPECT_EQ(ended.exit_code, 0) << name << ": " << describe(ended);
      EXPECT_EQ(rank->leftovers(milliseconds(0)), "");
      EXPECT_FALSE(exists(path(name)));
      const Json report = Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
      ASSERT_TRUE(report.is_object()) << describe(ended);
      num_served += report.at("outputs").size();
      for (const Json& output : report.at("outputs")) {
        EXPECT_EQ(output.at("token_ids").size(), 60u) << "what was begun is finished";
      }
      if (name != "ffn") {
        num_unserved += report.at("stats").at("num_unserved_prompts").get<std::size_t>();
        EXPECT_THAT(ended.err, HasSubstr("of its prompts were not begun"));
      }
    }
    EXPECT_GT(num_served, 0u);
    EXPECT_GT(num_unserved, 0u);
    EXPECT_EQ(num_served + num_unserved, static_cast<std::size_t>(kNumPrompts));
  }
}

TEST_F(RankLifeTest, WhoDoesNotDrainInTimeGivesUpAndTheOthersHearOfIt) {
  start_all({"--json", "--drain-timeout", "0.3"});
  await_ready();
  ranks_["ffn"]->signal(SIGTERM);  // and nobody tells the attention ranks
  const Ended ffn = ranks_["ffn"]->wait(kLimit);
  EXPECT_EQ(ffn.exit_code, 1) << describe(ffn);
  EXPECT_THAT(ffn.err, HasSubstr("ffn rank 0 was told to stop, and its job did not end in 0.3 s"));
  EXPECT_FALSE(exists(path("ffn")));
  for (const char* name : {"a0", "a1"}) {
    const Ended ended = ranks_[name]->wait(kLimit);
    EXPECT_EQ(ended.exit_code, 3) << describe(ended);
    EXPECT_THAT(ended.err, HasSubstr("ffn rank 0"));
    EXPECT_FALSE(exists(path(name)));
  }
}

TEST_F(RankLifeTest, ASecondSignalStopsAtOnce) {
  struct Case {
    std::vector<int> signals;
    std::vector<std::string> flags;
    int exit_code;
  };
  for (const Case& of : {Case{{SIGTERM, SIGTERM}, {}, 143}, Case{{SIGTERM, SIGINT}, {}, 130},
                         Case{{SIGINT}, {}, 130}, Case{{SIGTERM}, {"--drain-timeout", "0"}, 143}}) {
    start_all(of.flags);
    await_ready();
    for (const int signal : of.signals) {
      ranks_["ffn"]->signal(signal);
      std::this_thread::sleep_for(milliseconds(50));  // signals of one kind do not queue
    }
    const Ended ended = ranks_["ffn"]->wait(seconds(5));
    EXPECT_EQ(ended.exit_code, of.exit_code) << describe(ended);
    EXPECT_EQ(ranks_["a0"]->wait(kLimit).exit_code, 3);
    EXPECT_EQ(ranks_["a1"]->wait(kLimit).exit_code, 3);
  }
}

TEST_F(RankLifeTest, ARankThatWaitsHasNothingToDrain) {
  const auto waiting = start("attention", 1, {"--ready-file", path("a1")});
  ASSERT_TRUE(waiting->await_stderr("waiting for", kLimit));
  waiting->signal(SIGTERM);
  const Ended ended = waiting->wait(seconds(5));
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  EXPECT_THAT(ended.err, HasSubstr("stopped before all ranks had met"));
  EXPECT_FALSE(exists(path("a1")));
}

TEST_F(RankLifeTest, ReadinessIsALineAndAFile) {
  job_["prompts"] = folder_.write("few.jsonl", R"({"prompt_ids": [1, 2], "max_new_tokens": 2000})");
  folder_.write("a0", "of a process that was killed");
  const auto a0 = start("attention", 0, {"--ready-file", path("a0")});
  ASSERT_TRUE(a0->await_stderr("waiting for", kLimit));
  EXPECT_FALSE(exists(path("a0"))) << "not ready yet";
  const auto ffn = start("ffn", 0, {"--ready-file", path("ffn"), "-v"});
  const auto a1 = start("attention", 1);
  ASSERT_TRUE(ffn->await_stderr("attention rank 1 - ffn rank 0: shared memory", kLimit));
  std::string text;
  for (int i = 0; i < 3000 && text.empty(); ++i) {
    std::ifstream file(path("a0"));
    text.assign(std::istreambuf_iterator<char>(file), {});
    std::this_thread::sleep_for(milliseconds(1));
  }
  const Json ready = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(ready.is_object()) << text;
  EXPECT_EQ(ready.at("role"), "attention");
  EXPECT_EQ(ready.at("role_rank"), 0);
  EXPECT_EQ(ready.at("layout"), "2A1F");
  EXPECT_EQ(ready.at("pid"), a0->pid());
  EXPECT_EQ(ready.at("paths").at(0).at("path"), "shared memory");
  a0->signal(SIGTERM);
  for (const auto& [name, rank] : {std::pair<std::string, Program*>{"ffn rank 0", ffn.get()},
                                   {"attention rank 0", a0.get()},
                                   {"attention rank 1", a1.get()}}) {
    const Ended ended = rank->wait(kLimit);
    EXPECT_EQ(ended.exit_code, 0) << describe(ended);
    EXPECT_TRUE(ended.out.starts_with("ready: " + name + " of 2A1F\n")) << describe(ended);
  }
  EXPECT_FALSE(exists(path("a0")));
  EXPECT_FALSE(exists(path("ffn")));
}

TEST_F(RankLifeTest, AReadyFileThatCannotBeIsAnErrorAtOnce) {
  ASSERT_EQ(::symlink("prompts.jsonl", path("link").c_str()), 0);
  ASSERT_EQ(::mkdir(path("folder").c_str(), 0700), 0);
  for (const auto& [name, why] : {std::pair<const char*, const char*>{"link", "is no file"},
                                  {"folder", "is no file"},
                                  {"none/ready", "No such file or directory"}}) {
    const Ended ended = start("ffn", 0, {"--ready-file", path(name)})->wait(seconds(10));
    EXPECT_EQ(ended.exit_code, 2) << describe(ended);
    EXPECT_THAT(ended.err, HasSubstr(path(name)));
    EXPECT_THAT(ended.err, HasSubstr(why));
  }
  EXPECT_TRUE(exists(path("link")));
}

TEST_F(RankLifeTest, RoleAndRankMayComeFromTheEnvironment) {
  job_["prompts"] = folder_.write("few.jsonl", R"({"prompt_ids": [1, 2], "max_new_tokens": 2})");
  job_["attention_ranks"] = 1;
  job_["role"] = "ffn";  // goes behind the environment
  const std::string rank = "exec " AFD_BINARY " rank --config " + file();
  Program ffn({"/bin/sh", "-c", "AFD_ROLE_RANK=0 " + rank});
  Program attention({"/bin/sh", "-c", "AFD_ROLE=attention AFD_ROLE_RANK=0 " + rank + " --json"});
  const Ended ended = attention.wait(kLimit);
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  EXPECT_EQ(Json::parse(ended.out).at("stats").at("role"), "attention");
  EXPECT_EQ(ffn.wait(kLimit).exit_code, 0);
}

TEST_F(RankLifeTest, TheCommandLineGoesBeforeTheFile) {
  job_["attention_ranks"] = 1;
  job_["prompts"] = folder_.write("few.jsonl", R"({"prompt_ids": [1, 2]})");
  job_["max_new_tokens"] = 9;
  job_["json"] = true;
  const std::string config = file();
  const Ended from_file = run_program({AFD_BINARY, "run", "--config", config});
  ASSERT_EQ(from_file.exit_code, 0) << describe(from_file);
  EXPECT_EQ(Json::parse(from_file.out).at("outputs").at(0).at("token_ids").size(), 9u);
  const Ended ended = run_program({AFD_BINARY, "run", "--max-new-tokens", "3", "--config", config});
  ASSERT_EQ(ended.exit_code, 0) << describe(ended);
  EXPECT_EQ(Json::parse(ended.out).at("outputs").at(0).at("token_ids").size(), 3u);
}

TEST_F(RankLifeTest, WhatIsWrongInAFileIsNamed) {
  struct Case {
    std::string text;
    std::string why;
  };
  for (const Case& of : {
           Case{R"({"modle": "x"})", "no option 'modle'; did you mean 'model'?"},
           Case{R"({"ffn-ranks": 2})", "no option 'ffn-ranks'; did you mean 'ffn_ranks'?"},
           Case{R"({"job_fd": 3})", "no option 'job_fd'"},
           Case{R"({"config": "x"})", "no option 'config'"},
           Case{R"({"ffn_ranks": "two"})", "'ffn_ranks': Could not convert: --ffn-ranks = two"},
           Case{R"({"ffn_ranks": true})", "'ffn_ranks': true, expected a text or a number"},
           Case{R"({"ffn_ranks": [2]})", "'ffn_ranks': a list, expected one value"},
           Case{R"({"ffn_ranks": null})", "'ffn_ranks': null, expected a text or a number"},
           Case{R"({"ffn_ranks": 1.5})", "'ffn_ranks': "},
           Case{R"({"ffn_ranks": {}})", "'ffn_ranks': an object, expected a text or a number"},
           Case{R"({"json": 1})", "'json': a number, expected true or false"},
           Case{R"({"role": "router"})", "'role': "},
           Case{R"({"port": 70000})", "'port': "},
           Case{R"({"prompt": ["a", ["b"]]})", "'prompt': in its list: a list, expected a text"},
           Case{R"({"ffn_ranks": 1, "ffn_ranks": 2})", "the key \"ffn_ranks\" stands twice"},
           Case{R"({"role": "ffn", "model": "x"})", "--role-rank is required"},
           Case{R"([1])", "a list, expected an object of options"},
           Case{R"({"model": )", "line 1"},
           Case{std::string(2 << 20, ' '), "1048576"},
       }) {
    const std::string name = folder_.write("wrong.json", of.text);
    const Ended ended = run_program({AFD_BINARY, "rank", "--config", name});
    SCOPED_TRACE(of.text.substr(0, 80) + ": " + describe(ended));
    EXPECT_EQ(ended.exit_code, 2);
    EXPECT_THAT(ended.err, HasSubstr(of.why));
    EXPECT_THAT(ended.err, HasSubstr("hint: "));
  }
  const Ended none = run_program({AFD_BINARY, "rank", "--config", path("none.json")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace afd::testing
