// The commands that look at things, and what a terminal sees.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pty.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/fault/port.h"
#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

using std::chrono::seconds;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";

Ended afd(std::vector<std::string> args) {
  args.insert(args.begin(), AFD_BINARY);
  return run_program(args);
}

Json afd_json(const std::vector<std::string>& args) {
  const Ended ended = afd(args);
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  return Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
}

TEST(CommandsTest, EveryCommandHasHelp) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{},
                                                  {"run"},
                                                  {"rank"},
                                                  {"topology"},
                                                  {"config"},
                                                  {"config", "check"},
                                                  {"connectors"},
                                                  {"bench"},
                                                  {"bench", "hop"},
                                                  {"doctor"}}) {
    std::vector<std::string> args = command;
    args.push_back("--help");
    const Ended ended = afd(args);
    EXPECT_EQ(ended.exit_code, 0) << describe(ended);
    EXPECT_NE(ended.out.find("Usage: afd"), std::string::npos) << describe(ended);
    EXPECT_EQ(ended.err, "");
  }
}

TEST(CommandsTest, AWrongCommandLineIsNamedWithWhatWasMeant) {
  const std::string options_hint = "hint: `afd run --help` lists the options\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{},
       "afd: no command given, expected one of run, rank, topology, config, connectors, bench, "
       "doctor\nhint: `afd --help` lists the commands\n"},
      {{"runn", "--model", "x"},
       "afd: unknown command 'runn'; did you mean 'run'?\nhint: `afd --help` lists the commands\n"},
      {{"bogus"}, "afd: unknown command 'bogus', expected one of run, rank, topology, config, "},
      {{"--bogus"}, "afd: unknown option '--bogus'\n"},
      {{"config"}, "afd config: no command given, expected one of check\n"},
      {{"bench", "hpo"}, "afd bench: unknown command 'hpo'; did you mean 'hop'?\n"},
      {{"bench", "hop", "--size=64"},
       "afd bench hop: unknown option '--size'; did you mean '--sizes'?\nhint: `afd bench hop "
       "--help` lists the options\n"},
      {{"topology", "--atention-ranks", "2", "--ffn-ranks", "1"},
       "afd topology: unknown option '--atention-ranks'; did you mean '--attention-ranks'?\n"},
      {{"topology", "--ffn-ranks", "1"}, "afd topology: --attention-ranks is required\n"},
      {{"run", "Emma"}, "afd run: unexpected argument 'Emma'\n" + options_hint},
      {{"run", "--port", "0"}, "afd run: --port: Value 0 not in range 1 to 65535\n" + options_hint},
      {{"run", "--stages", "two"},
       "afd run: --stages is 'two', expected a number in its range\n" + options_hint},
      {{"connectors", "--plugin", "x"}, "afd connectors: --plugin: 'x' is not NAME=LIBRARY\n"},
  };
  for (const auto& [args, message] : calls) {
    const Ended ended = afd(args);
    EXPECT_EQ(ended.exit_code, 2) << describe(ended);
    EXPECT_EQ(ended.err.rfind(message, 0), 0u) << "wanted: " << message << describe(ended);
    EXPECT_NE(ended.err.find("\nhint: "), std::string::npos) << describe(ended);
    EXPECT_EQ(ended.out, "");
  }
}

TEST(CommandsTest, WhatCanBeDoneAboutAnErrorIsSaid) {
  const TempFolder folder;
  const std::string bare = folder.write("bare.json", "{\n");
  const std::string wrapped = folder.write("wrapped.json", R"({"afd":{"x":1}})");
  const std::vector<std::pair<std::vector<std::string>, std::string>> calls = {
      {{"run", "--model", folder.path() + "/none", "--prompt", "x"},
       "hint: --model takes a folder with config.json"},
      {{"config", "check", bare}, "afd config check: AFD config: line 2"},
      {{"config", "check", bare}, "hint: `echo '{}' | afd config check -` prints every key"},
      {{"config", "check", wrapped}, "afd config check: unknown AFD config field 'x'"},
      {{"config", "check", folder.path() + "/none"}, "hint: `afd config check --help`"},
      {{"rank", "--role", "ffn", "--role-rank", "0", "--model", kModel, "--host", "10.0.0.1"},
       "hint: every rank of a job is given a copy of one file with --secret-file"},
      {{"rank", "--role", "ffn", "--role-rank", "0", "--model", kModel, "--secret-file", bare},
       "secret file " + bare + " has mode 0644, expected 0600"},
      {{"rank", "--role", "attention", "--role-rank", "0", "--model", kModel, "--port", "0"},
       "afd rank: port must be in 1..65535, got 0"},
      {{"rank", "--role", "ffn", "--role-rank", "0", "--model", kModel, "--heartbeat-limit", "2"},
       "afd rank: session heartbeat_limit must be at least three times the interval"},
      {{"rank", "--role", "ffn", "--role-rank", "0", "--model", kModel, "--connector",
        "InProcessAFDConnector"},
       "afd rank: InProcessAFDConnector connects threads of one process only\nhint: `afd run` "},
  };
  for (const auto& [args, message] : calls) {
    const Ended ended = afd(args);
    EXPECT_NE(ended.exit_code, 0) << describe(ended);
    EXPECT_NE(ended.err.find(message), std::string::npos)
        << "wanted: " << message << describe(ended);
  }
  const Ended plugins = run_program(
      {"/bin/sh", "-c", "AFD_PLUGINS=x exec " + std::string(AFD_BINARY) + " connectors"});
  EXPECT_EQ(plugins.exit_code, 2) << describe(plugins);
  EXPECT_EQ(plugins.err.rfind("afd: AFD_PLUGINS: 'x' is not NAME=LIBRARY\nhint: AFD_PLUGINS ", 0),
            0u)
      << describe(plugins);
}

TEST(CommandsTest, TopologyShowsSubgroupsPeersAndControl) {
  const Json topology =
      afd_json({"topology", "--attention-ranks", "3", "--ffn-ranks", "2", "--json"});
  ASSERT_EQ(topology.at("ranks").size(), 5u);
  EXPECT_EQ(topology.at("ranks")[0], (Json{{"role", "ffn"},
                                           {"role_rank", 0},
                                           {"world_rank", 0},
                                           {"subgroup", 0},
                                           {"peers", {0, 1}},
                                           {"receives_control_from", 0}}));
  EXPECT_EQ(topology.at("ranks")[4], (Json{{"role", "attention"},
                                           {"role_rank", 2},
                                           {"world_rank", 4},
                                           {"subgroup", 1},
                                           {"peers", Json::array({1})},
                                           {"sends_control_to", Json::array()}}));
  const Ended text = afd({"topology", "--attention-ranks", "3", "--ffn-ranks", "2"});
  EXPECT_NE(text.out.find("attention"), std::string::npos) << describe(text);
  const Ended strict = afd({"topology", "--attention-ranks", "3", "--ffn-ranks", "2", "--strict"});
  EXPECT_EQ(strict.exit_code, 2) << describe(strict);
  EXPECT_EQ(afd({"topology", "--attention-ranks", "3", "--ffn-ranks", "0"}).exit_code, 2);
}

TEST(CommandsTest, TopologyDoesNotShowOneRuleForAConnectorWithAnother) {
  const Ended ended = afd({"topology", "--attention-ranks", "2", "--ffn-ranks", "2", "--connector",
                           "CAMAsyncAFDConnector"});
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_EQ(ended.out, "");
  EXPECT_NE(ended.err.find("libafd_connector_cam_async.so"), std::string::npos) << describe(ended);
}

TEST(CommandsTest, TopologyOfAsManyRanksAsThereMayBe) {
  // One subgroup: what takes a step for each pair of its ranks takes minutes.
  const Ended ended = run_program(
      {AFD_BINARY, "topology", "--attention-ranks", "65536", "--ffn-ranks", "1"}, seconds(60));
  EXPECT_EQ(ended.exit_code, 0) << describe(ended).substr(0, 200);
  EXPECT_NE(ended.out.find("65536  attention 65535 0 "), std::string::npos);
}

TEST(CommandsTest, NumbersAreDecimal) {
  const Json topology =
      afd_json({"topology", "--attention-ranks", "010", "--ffn-ranks", "0009", "--json"});
  EXPECT_EQ(topology.at("num_attention_ranks"), 10);
  EXPECT_EQ(topology.at("num_ffn_ranks"), 9);
  const Json report = afd_run(
      kModel, {"--prompt-ids", "1", "--max-new-tokens", "010", "--seed", "08", "--colocated"});
  EXPECT_EQ(report.at("stats").at("num_generated_tokens"), 10);
  EXPECT_EQ(afd({"topology", "--attention-ranks", "1x", "--ffn-ranks", "1"}).exit_code, 2);
  EXPECT_EQ(afd({"topology", "--attention-ranks", "-01", "--ffn-ranks", "1"}).exit_code, 2);
}

TEST(CommandsTest, ALayoutThatTheConnectorRefusesIsNoted) {
  const std::string note = "P2pAFDConnector refuses this layout: a subgroup has at most 64 peers";
  const std::vector<std::string> args = {"topology", "--attention-ranks", "65", "--ffn-ranks", "1"};
  const Ended text = afd(args);
  EXPECT_EQ(text.exit_code, 0) << describe(text);
  EXPECT_NE(text.out.find("\nnote: " + note), std::string::npos) << describe(text);
  const Json json = afd_json({"topology", "--attention-ranks", "65", "--ffn-ranks", "1", "--json"});
  EXPECT_EQ(json.value("note", "").rfind(note, 0), 0u) << json.value("note", "");
  const Json fine = afd_json({"topology", "--attention-ranks", "64", "--ffn-ranks", "1", "--json"});
  EXPECT_FALSE(fine.contains("note"));

  const TempFolder folder;
  const std::string file = folder.write(
      "config.json",
      R"({"connector":"P2pShmAFDConnector","num_attention_ranks":1000,"num_ffn_ranks":25})");
  const Ended checked = afd({"config", "check", file});
  EXPECT_EQ(checked.exit_code, 0) << describe(checked);
  EXPECT_EQ(checked.err.rfind("note: P2pShmAFDConnector refuses this layout: ", 0), 0u)
      << describe(checked);
  EXPECT_NE(checked.err.find("at most 1024 ranks"), std::string::npos) << describe(checked);
}

TEST(CommandsTest, ConfigCheckPrintsWhatIsInEffect) {
  const TempFolder folder;
  const std::string wrapped = folder.write(
      "wrapped.json",
      R"({"afd":{"connector":"P2pShmAFDConnector","num_attention_ranks":4,"num_ffn_ranks":2}})");
  const Json config = afd_json({"config", "check", wrapped});
  EXPECT_EQ(config.at("num_attention_ranks"), 4);
  EXPECT_EQ(config.at("port"), 1239);
  const std::string bare =
      folder.write("bare.json", R"({"connector":"CAMAsyncAFDConnector","role":"ffn"})");
  const Ended checked = afd({"config", "check", bare});
  EXPECT_EQ(checked.exit_code, 0) << describe(checked);

  const Ended unknown = afd({"config", "check", folder.write("bad.json", R"({"x":1})")});
  EXPECT_EQ(unknown.exit_code, 1) << describe(unknown);
  EXPECT_NE(unknown.err.find("unknown AFD config field 'x'"), std::string::npos);
  EXPECT_EQ(afd({"config", "check", folder.path() + "/none"}).exit_code, 2);
}

TEST(CommandsTest, ConnectorsSayWhetherTheyCanRunHere) {
  const Json list = afd_json({"connectors", "--json"}).at("connectors");
  std::vector<std::string> names;
  for (const Json& connector : list) {
    names.push_back(connector.at("name"));
    EXPECT_EQ(connector.at("available").get<bool>(), !connector.contains("why_not"));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"P2pAFDConnector", "P2pShmAFDConnector",
                                             "InProcessAFDConnector", "P2pUcxAFDConnector",
                                             "P2pNcclAFDConnector", "CAMP2pAFDConnector",
                                             "CAMAsyncAFDConnector"}));
  EXPECT_TRUE(list[0].at("available").get<bool>());
  EXPECT_TRUE(list[0].at("capabilities").at("cross_process").get<bool>());
}

TEST(CommandsTest, TextThatIsNotUtf8DoesNotKeepJsonFromBeingPrinted) {
  ::setenv("AFD_PLUGINS", "Mine\xff=/no/such\xff.so", 1);
  const Ended ended = afd({"connectors", "--json"});
  ::unsetenv("AFD_PLUGINS");
  EXPECT_EQ(ended.err.find("json.exception"), std::string::npos) << describe(ended);
  const Json list = Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(list.is_object()) << describe(ended);
}

TEST(CommandsTest, DoctorLooksAtEverything) {
  const Json report = afd_json({"doctor", "--json"});
  std::vector<std::string> names;
  for (const Json& check : report.at("checks")) {
    names.push_back(check.at("name"));
    EXPECT_NE(check.at("found"), "");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"shared memory", "leftovers", "processors", "place",
                                             "clock", "huge pages", "locked memory", "UCX", "NCCL",
                                             "CUDA devices", "Ascend CANN", "connectors"}));
}

/// What `afd ARGS` writes to a terminal that changes nothing of it, as it arrives.
std::vector<std::string> pieces_on_a_terminal(std::vector<std::string> args, int* status) {
  args.insert(args.begin(), AFD_BINARY);
  std::vector<char*> argv;
  for (std::string& arg : args) {
    argv.push_back(arg.data());
  }
  argv.push_back(nullptr);
  int terminal = -1;
  termios raw{};
  ::cfmakeraw(&raw);
  const pid_t pid = ::forkpty(&terminal, nullptr, &raw, nullptr);
  if (pid == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::vector<std::string> pieces;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;) {
    pieces.emplace_back(buffer, static_cast<std::size_t>(got));
  }
  ::close(terminal);
  ::waitpid(pid, status, 0);
  return pieces;
}

std::string on_a_terminal(const std::vector<std::string>& args, int* status) {
  std::string text;
  for (const std::string& piece : pieces_on_a_terminal(args, status)) {
    text += piece;
  }
  return text;
}

TEST(CommandsTest, ATerminalSeesThePromptTheTextAndASummary) {
  const std::vector<std::string> args = {
      "run", "--model", kModel, "--prompt", "Emma Woodhouse", "--max-new-tokens", "20"};
  const Ended plain = afd(args);
  ASSERT_EQ(plain.exit_code, 0) << describe(plain);
  int status = -1;
  const std::string seen = on_a_terminal(args, &status);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(plain.out.rfind("Emma Woodhouse", 0), 0u) << plain.out;
  EXPECT_EQ(seen.rfind(plain.out, 0), 0u) << seen;
  EXPECT_NE(seen.find("tokens/s"), std::string::npos) << seen;
  EXPECT_NE(seen.find("waiting"), std::string::npos) << seen;
}

bool is_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

TEST(CommandsTest, TextArrivesWhileItIsMadeInWholeCharacters) {
  // So hot that every token comes: those too that are a part of a character.
  const std::vector<std::string> args = {"run",  "--model",          kModel, "--prompt",
                                         "Emma", "--max-new-tokens", "500",  "--temperature",
                                         "1000", "--seed",           "3"};
  std::vector<std::string> json_args = args;
  json_args.push_back("--json");
  const std::string text = afd_json(json_args).at("outputs")[0].at("text");
  ASSERT_NE(text.find("\xef\xbf\xbd"), std::string::npos) << "no part of a character came";
  // A reader that is not scheduled for the whole run sees one piece: it gets more than one chance.
  std::size_t num_pieces = 0;
  for (int attempt = 0; attempt < 5 && num_pieces < 8; ++attempt) {
    int status = -1;
    const std::vector<std::string> pieces = pieces_on_a_terminal(args, &status);
    EXPECT_EQ(status, 0);
    std::string seen;
    num_pieces = 0;
    for (const std::string& piece : pieces) {
      EXPECT_TRUE(is_utf8(piece)) << ::testing::PrintToString(piece);
      seen += piece;
      num_pieces += seen.size() < text.size() ? 1 : 0;
    }
    EXPECT_EQ(seen.rfind("Emma" + text + "\n", 0), 0u) << seen;
  }
  EXPECT_GE(num_pieces, 8u);
}

TEST(CommandsTest, ManyPromptsOnATerminalShowProgress) {
  int status = -1;
  const std::string seen = on_a_terminal(
      {"run", "--model", kModel, "--prompt", "Emma", "--prompt", "It", "--max-new-tokens", "8"},
      &status);
  EXPECT_EQ(status, 0);
  EXPECT_NE(seen.find("2 of 2 prompts, 16 tokens"), std::string::npos) << seen;
  EXPECT_NE(seen.find("[1] It"), std::string::npos) << seen;
}

TEST(CommandsTest, ASmallStackIsEnough) {
  for (const char* layout : {"--colocated", "--attention-ranks 2 --ffn-ranks 2 --stages 2"}) {
    const Ended ended = run_program(
        {"/bin/sh", "-c",
         std::string("ulimit -s 512; exec " AFD_BINARY " run --model ") + kModel +
             " --prompt 'Emma Woodhouse, handsome' --max-new-tokens 3 --json " + layout});
    EXPECT_EQ(ended.exit_code, 0) << layout << ": " << describe(ended);
  }
  const Ended doctor = run_program({"/bin/sh", "-c", "ulimit -s 512; exec " AFD_BINARY " doctor"});
  EXPECT_EQ(doctor.signal, 0) << describe(doctor);
}

/// What `afd ARGS` writes to a pipe, as it comes: every read() that brought something.
std::vector<std::string> pieces_of(std::vector<std::string> args) {
  std::string command = AFD_BINARY;
  for (const std::string& arg : args) {
    command += " '" + arg + "'";
  }
  command += " 2>/dev/null";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::vector<std::string> pieces;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(::fileno(pipe), buffer, sizeof(buffer))) > 0;) {
    pieces.emplace_back(buffer, static_cast<std::size_t>(got));
  }
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return pieces;
}

TEST(CommandsTest, APipeGetsAPromptsTextAsItComes) {
  const std::vector<std::string> args = {
      "run", "--model", kModel, "--prompt", "Emma Woodhouse", "--max-new-tokens", "300"};
  const Json report = afd_run(kModel, {"--prompt", "Emma Woodhouse", "--max-new-tokens", "300"});
  ASSERT_TRUE(report.is_object());
  const std::string text =
      "Emma Woodhouse" + report.at("outputs")[0].at("text").get<std::string>() + "\n";
  // A reader that is not scheduled for the whole run sees one piece: it gets more than one chance.
  std::size_t num_early = 0;  // pieces that came before the text was whole
  for (int attempt = 0; attempt < 5 && num_early < 2; ++attempt) {
    std::string all;
    num_early = 0;
    for (const std::string& piece : pieces_of(args)) {
      all += piece;
      num_early += all.size() + 1 < text.size() ? 1 : 0;  // the line's end may come by itself
    }
    EXPECT_EQ(all, text);
  }
  EXPECT_GE(num_early, 2u);
}

TEST(CommandsTest, SeveralOutputsComeEachWhenItAndThoseBeforeItAreFinished) {
  const TempFolder folder;
  const std::string prompts = folder.write("prompts.jsonl",
                                           "{\"prompt\":\"Emma\",\"max_new_tokens\":2}\n"
                                           "{\"prompt\":\"It is\",\"max_new_tokens\":400}\n"
                                           "{\"prompt\":\"She\",\"max_new_tokens\":2}\n");
  const std::vector<std::string> pieces =
      pieces_of({"run", "--model", kModel, "--prompts", prompts});
  ASSERT_GE(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].rfind("[0] Emma", 0), 0u) << pieces[0];
  EXPECT_EQ(pieces[0].find("[1]"), std::string::npos) << pieces[0];
  EXPECT_EQ(pieces[1].rfind("[1] It is", 0), 0u) << pieces[1];
  EXPECT_NE(pieces.back().find("\n[2] She"), std::string::npos) << pieces.back();
}

TEST(CommandsTest, PromptsMayComeFromStdin) {
  const std::string run = "printf '%s\\n' '{\"prompt\":\"Emma\"}' '{\"prompt\":1}' | " +
                          std::string(AFD_BINARY) + " run --colocated --max-new-tokens 2 --model " +
                          kModel + " --prompts -";
  const Ended bad = run_program({"/bin/sh", "-c", run});
  EXPECT_EQ(bad.exit_code, 2) << describe(bad);
  EXPECT_EQ(bad.err.rfind("afd run: stdin:2: prompt is 1, expected text\n", 0), 0u)
      << describe(bad);
  const Ended good =
      run_program({"/bin/sh", "-c",
                   "echo '{\"prompt\":\"Emma\"}' | " + std::string(AFD_BINARY) +
                       " run --colocated --max-new-tokens 2 --model " + kModel + " --prompts -"});
  EXPECT_EQ(good.exit_code, 0) << describe(good);
  EXPECT_EQ(good.out.rfind("Emma", 0), 0u) << describe(good);
}

TEST(CommandsTest, RanksWithAnotherSecretAreRefusedByNameAndTheOthersWaitOn) {
  const TempFolder folder;
  const auto secret = [&](const std::string& name) {
    const std::string path = folder.write(name, "the secret that is " + name + "\n");
    std::filesystem::permissions(path, std::filesystem::perms(0600));
    return path;
  };
  const std::string port = free_port();
  const auto rank = [&](const std::string& role, const std::string& secret_file) {
    return std::vector<std::string>{
        AFD_BINARY,         "rank", "--model",  kModel, "--role",        role,
        "--role-rank",      "0",    "--port",   port,   "--bind",        "::",
        "--max-new-tokens", "3",    "--prompt", "Emma", "--secret-file", secret_file};
  };
  const std::string right = secret("right");
  const std::string wrong = secret("wrong");
  Program ffn(rank("ffn", right));
  ASSERT_TRUE(ffn.await_stderr("ffn rank 0: listening at port " + port, std::chrono::seconds(60)));
  const Ended refused = run_program(rank("attention", wrong));
  EXPECT_EQ(refused.exit_code, 5) << describe(refused);
  EXPECT_NE(refused.err.find("the shared secret in " + wrong +
                             " differs from ffn rank 0's at 127.0.0.1:" + port),
            std::string::npos)
      << describe(refused);
  const Ended taken = run_program(rank("attention", right));
  EXPECT_EQ(taken.exit_code, 0) << describe(taken);
  EXPECT_EQ(taken.out.rfind("ready: attention rank 0 of 1A1F\n[0] Emma", 0), 0u) << describe(taken);
  const Ended done = ffn.wait(std::chrono::seconds(60));
  EXPECT_EQ(done.exit_code, 0) << describe(done);
}

TEST(CommandsTest, RanksNameThePromptsOfTheirOutputs) {
  const std::string port = free_port();
  const auto rank = [&](const char* role, const char* role_rank) {
    return std::vector<std::string>{AFD_BINARY, "rank",
                                    "--json",   "--model",
                                    kModel,     "--role",
                                    role,       "--role-rank",
                                    role_rank,  "--port",
                                    port,       "--prompt",
                                    "Emma",     "--prompt",
                                    "It is",    "--prompt",
                                    "She",      "--max-new-tokens",
                                    "3",        "--attention-ranks",
                                    "2"};
  };
  Program ffn(rank("ffn", "0"));
  Program first(rank("attention", "0"));
  Program second(rank("attention", "1"));
  std::set<int> seen;
  const char* const prompts[] = {"Emma", "It is", "She"};
  const Json alone = afd_run(kModel, {"--prompt", prompts[0], "--prompt", prompts[1], "--prompt",
                                      prompts[2], "--max-new-tokens", "3", "--colocated"});
  ASSERT_TRUE(alone.is_object());
  int role_rank = 0;
  for (Program* program : {&first, &second}) {
    const Ended ended = program->wait(std::chrono::seconds(60));
    ASSERT_EQ(ended.exit_code, 0) << describe(ended);
    const Json report = Json::parse(ended.out);
    for (const Json& output : report.at("outputs")) {
      const int prompt_idx = output.at("prompt_idx");
      EXPECT_TRUE(seen.insert(prompt_idx).second) << prompt_idx;
      EXPECT_EQ(output, alone.at("outputs").at(prompt_idx));
    }
    EXPECT_EQ(report.at("stats").at("role"), "attention");
    EXPECT_EQ(report.at("stats").at("role_rank"), role_rank++);
    EXPECT_FALSE(report.at("stats").contains("ffn"));
  }
  EXPECT_EQ(seen, (std::set<int>{0, 1, 2}));
  const Ended ended = ffn.wait(std::chrono::seconds(60));
  ASSERT_EQ(ended.exit_code, 0) << describe(ended);
  const Json stats = Json::parse(ended.out).at("stats");
  EXPECT_TRUE(stats.contains("ffn"));
  EXPECT_FALSE(stats.contains("attention"));
  EXPECT_FALSE(stats.contains("num_generated_tokens"));
}

TEST(CommandsTest, AJobOfThreadsMeetsAtAFreePortToo) {
  // The configuration's default port is somebody else's.
  const int other = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(1239);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Taken already: as good.
  static_cast<void>(::bind(other, reinterpret_cast<sockaddr*>(&address), sizeof(address)));
  static_cast<void>(::listen(other, 1));
  const Ended ended = afd({"run", "--model", kModel, "--connector", "InProcessAFDConnector",
                           "--prompt-ids", "1,2", "--max-new-tokens", "2"});
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  ::close(other);
}

TEST(CommandsTest, JsonIsOneObjectWithStats) {
  const Json report = afd_run(kModel, {"--prompt", "Emma", "--attention-ranks", "2", "--ffn-ranks",
                                       "2", "--stages", "2", "--max-new-tokens", "5"});
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("outputs")[0].at("token_ids").size(), 5u);
  EXPECT_FALSE(report.at("outputs")[0].contains("logits_sha256"));
  const Json& stats = report.at("stats");
  EXPECT_EQ(stats.at("layout"), "2A2F");
  EXPECT_EQ(stats.at("num_generated_tokens"), 5);
  EXPECT_EQ(stats.at("num_steps"), 5);
  EXPECT_GT(stats.at("tokens_per_second").get<double>(), 0.0);
  for (const char* side : {"attention", "ffn"}) {
    for (const char* hop : {"send_us", "wait_us"}) {
      EXPECT_GT(stats.at(side).at(hop).at("p99").get<double>(), 0.0) << side << " " << hop;
    }
    EXPECT_LE(stats.at(side).at("waiting_fraction").get<double>(), 1.0);
  }
}

}  // namespace
}  // namespace afd::testing
