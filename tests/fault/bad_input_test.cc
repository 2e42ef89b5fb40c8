// What users get wrong: a clear error, the right exit status, and no process started for it.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fault/port.h"
#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
const std::string kVariant = std::string(AFD_MODELS) + "/variants/v3";

struct BadCall {
  std::vector<std::string> args;
  int exit_code;
  std::string message;
};

void expect_refusal(const BadCall& bad) {
  std::vector<std::string> command = {AFD_BINARY};
  command.insert(command.end(), bad.args.begin(), bad.args.end());
  const Ended ended = run_program(command);
  SCOPED_TRACE(Json(bad.args).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n" +
               describe(ended));
  EXPECT_EQ(ended.exit_code, bad.exit_code);
  EXPECT_NE(ended.err.find(bad.message), std::string::npos) << "wanted: " << bad.message;
  EXPECT_EQ(ended.out, "");
}

std::string ids(int count) {
  std::string list = "1";
  for (int idx = 1; idx < count; ++idx) {
    list += ",1";
  }
  return list;
}

TEST(BadInputTest, FlagsOfRun) {
  const std::vector<std::string> base = {"run", "--model", kModel, "--prompt-ids", "1,2"};
  const std::vector<BadCall> calls = {
      {{"--ffn-ranks", "0"}, 2, "num_ffn_ranks must be positive, got 0"},
      {{"--attention-ranks", "0"}, 2, "num_attention_ranks must be positive, got 0"},
      {{"--attention-ranks", "-1"}, 2, "--attention-ranks"},
      {{"--attention-ranks", "512", "--ffn-ranks", "513"}, 2, "at most 1024 ranks"},
      {{"--attention-ranks", "65"}, 2, "at most 64 peers"},
      {{"--stages", "0"}, 2, "num_stages is 0, expected at least 1"},
      {{"--stages", "9"}, 2, "num_stages is 9"},
      {{"--stages", "2x"}, 2, "--stages"},
      {{"--max-num-seqs", "0"}, 2, "max_num_seqs is 0, expected at least 1"},
      {{"--max-num-tokens", "0"}, 2, "max_num_tokens is 0, expected at least 1"},
      {{"--max-new-tokens", "0"}, 2, "max_new_tokens is 0, expected at least 1"},
      {{"--temperature", "-1"}, 2, "temperature is -1"},
      {{"--temperature", "nan"}, 2, "temperature is nan"},
      {{"--seed", "-1"}, 2, "--seed"},
      {{"--seed", "18446744073709551616"}, 2, "from 0 to 18446744073709551615"},
      {{"--hop-timeout", "0"}, 2, "--hop-timeout"},
      {{"--threads", "0", "--colocated"}, 2, "--threads"},
      {{"--port", "0"}, 2, "--port"},
      {{"--port", "65536"}, 2, "--port"},
      {{"--placement", "moon"}, 2, "--placement"},
      {{"--connector", "Foo"}, 2, "unsupported AFD connector type: Foo; available: P2pAFD"},
      {{"--connector", "P2pNcclAFDConnector"}, 1, "libafd_connector_p2p_nccl.so"},
      {{"--no-such-flag"}, 2, "--no-such-flag"},
      {{"--prompt", "twice"}, 2, "only one of --prompt, --prompt-ids and --prompts"},
  };
  for (BadCall bad : calls) {
    bad.args.insert(bad.args.begin(), base.begin(), base.end());
    expect_refusal(bad);
  }
}

TEST(BadInputTest, Prompts) {
  const std::vector<BadCall> calls = {
      {{"run", "--model", kModel}, 2, "no prompt: give --prompt, --prompt-ids or --prompts"},
      {{"run", "--prompt", "x"}, 2, "--model is required"},
      {{"run", "--model", kModel, "--prompt", ""}, 2, "--prompt: the prompt is empty"},
      {{"run", "--model", kModel, "--prompt", "\xff"}, 2, "--prompt: "},
      {{"run", "--model", kModel, "--prompt-ids", "1,2048"},
       2,
       "--prompt-ids: token id 2048 at position 1 is not in [0, 2048)"},
      {{"run", "--model", kModel, "--prompt-ids", "1,,2"}, 2, "'' is no token id"},
      {{"run", "--model", kModel, "--prompt-ids", "1,-2"}, 2, "'-2' is no token id"},
      {{"run", "--model", kModel, "--prompt-ids", "99999999999"}, 2, "is no token id"},
      {{"run", "--model", kModel, "--prompt-ids", ids(512)},
       2,
       "the prompt has 512 tokens, the model's context of 512 leaves room for 511"},
      {{"run", "--model", kVariant, "--prompt", "text"}, 2, "the model has no tokenizer.json"},
      {{"run", "--model", kModel, "--prompts", "/no/such/file"}, 2, "No such file"},
      {{"run", "--model", kModel, "--prompts", "/tmp"}, 2, "/tmp: a directory"},
      {{"run", "--model", kModel, "--prompts", "/dev/zero"},
       2,
       "a line of more than 67108864 bytes"},
      {{"run", "--model", kModel, "--prompts", "/proc/self/mem"},
       2,
       "/proc/self/mem: Input/output error"},
      {{"config", "check", "/tmp"}, 2, "/tmp: a directory"},
      {{"config", "check", "/proc/self/mem"}, 2, "/proc/self/mem: Input/output error"},
      {{"config", "check", "/dev/zero"}, 1, "expected at most 1048576"},
  };
  for (const BadCall& bad : calls) {
    expect_refusal(bad);
  }
}

TEST(BadInputTest, ThePromptOfTheWholeContextButOneTokenRuns) {
  const Json report = afd_run(kModel, {"--prompt-ids", ids(511)});
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("outputs")[0].at("token_ids").size(), 1u);
  EXPECT_EQ(report.at("outputs")[0].at("finish_reason"), "length");
}

TEST(BadInputTest, LinesOfAPromptsFile) {
  const TempFolder folder;
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"{", "bad JSON: line 1, column 1"},
      {std::string(200'000, '[') + std::string(200'000, ']'), "deep in each other"},
      {"[1]", "a line is an object"},
      {"{}", "expected one of prompt and prompt_ids"},
      {R"({"prompt":"a","prompt_ids":[1]})", "expected one of prompt and prompt_ids"},
      {R"({"prompt":1})", "prompt is 1, expected text"},
      {R"({"prompt_ids":1})", "prompt_ids is 1, expected an array"},
      {R"({"prompt_ids":[1,-1]})", "prompt_ids[1] is -1"},
      {R"({"prompt_ids":[1.5]})", "prompt_ids[0] is 1.5"},
      {R"({"prompt_ids":[4294967296]})", "prompt_ids[0] is 4294967296"},
      {R"({"prompt_ids":[]})", "the prompt has no tokens"},
      {R"({"prompt":"a","x":1})", "unknown key 'x'"},
      {R"({"prompt":"a","prompt":"b"})", R"(the key "prompt" stands twice)"},
      {R"({"prompt":"a","max_new_tokens":0})", "max_new_tokens is 0"},
      {R"({"prompt":"a","temperature":"hot"})", "temperature is \"hot\""},
      {R"({"prompt":""})", "the prompt is empty"},
  };
  for (const auto& [line, message] : lines) {
    const std::string path =
        folder.write("prompts.jsonl", "{\"prompt\":\"fine\"}\n\n" + line + "\n");
    expect_refusal({{"run", "--model", kModel, "--prompts", path}, 2, path + ":3: "});
    expect_refusal({{"run", "--model", kModel, "--prompts", path}, 2, message});
  }
  expect_refusal({{"run", "--model", kModel, "--prompts", folder.write("empty.jsonl", "\n")},
                  2,
                  "it holds no prompt"});
}

TEST(BadInputTest, OutputThatCannotBeWrittenIsAFailure) {
  const std::string run = std::string(AFD_BINARY) + " run --colocated --model " + kModel +
                          " --prompt-ids 1,2 --max-new-tokens 2 > /dev/full";
  const Ended ended = run_program({"/bin/sh", "-c", run});
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_NE(ended.err.find("stdout cannot be written: No space left"), std::string::npos)
      << describe(ended);
}

TEST(BadInputTest, ClosedStandardFilesAreNotPrintedInto) {
  const std::string port = free_port();
  const std::string rank = std::string("exec ") + AFD_BINARY + " rank --model " + kModel +
                           " --port " + port + " --role-rank 0 --role ";
  // The FFN rank has to wait, and says so, when the first file that it opened is shared memory.
  const Ended ended =
      run_program({"/bin/sh", "-c",
                   "(" + rank + "ffn <&- >&- 2>&-) & sleep 1.5; (" + rank +
                       "attention --prompt-ids 1,2 --max-new-tokens 2) && wait $!"});
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
}

TEST(BadInputTest, AFileThatMayNotGrowIsAnError) {
  const Ended ended = run_program({"/bin/sh", "-c",
                                   std::string("ulimit -f 0; exec ") + AFD_BINARY +
                                       " run --model " + kModel + " --prompt-ids 1,2"});
  EXPECT_EQ(ended.exit_code, 1) << describe(ended);
  EXPECT_NE(ended.err.find("File too large"), std::string::npos) << describe(ended);
}

TEST(BadInputTest, AStdinThatCannotBeReadIsNoEmptyOne) {
  for (const std::string& args :
       {"run --prompts - --model " + kModel, std::string("config check -")}) {
    const Ended ended = run_program({"/bin/sh", "-c", "exec " AFD_BINARY " " + args + " </tmp"});
    EXPECT_EQ(ended.exit_code, 2) << describe(ended);
    EXPECT_NE(ended.err.find("Is a directory"), std::string::npos) << describe(ended);
  }
}

TEST(BadInputTest, TextBehindAZeroByteIsPrinted) {
  std::ifstream file(kModel + "/tokenizer.json");
  const int zero = Json::parse(file).at("model").at("vocab").at("\u0100").get<int>();
  const Ended ended = run_program({AFD_BINARY, "run", "--colocated", "--model", kModel,
                                   "--prompt-ids", std::to_string(zero), "--max-new-tokens", "2"});
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  const std::size_t at = ended.out.find('\0');
  ASSERT_NE(at, std::string::npos) << describe(ended);
  EXPECT_EQ(ended.out.back(), '\n');
}

/// A copy of a checkpoint that can be damaged.
class BadModelTest : public ::testing::Test {
 protected:
  std::string copy(const std::string& model) {
    const std::string target = folder_.path() + "/" + std::to_string(num_copies_++);
    fs::copy(model, target);
    return target;
  }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
  /// Applies `change` to a JSON file.
  static void edit(const std::string& path, const std::function<void(Json&)>& change) {
    Json json = Json::parse(read(path));
    change(json);
    write(path, json.dump());
  }
  /// Both layouts refuse it, with the same words.
  static void expect_refused(const std::string& model, const std::string& message) {
    expect_refusal({{"run", "--model", model, "--prompt-ids", "1"}, 1, message});
    expect_refusal({{"run", "--model", model, "--prompt-ids", "1", "--colocated"}, 1, message});
  }

  const TempFolder folder_;
  int num_copies_ = 0;
};

TEST_F(BadModelTest, ATruncatedCheckpoint) {
  const std::string model = copy(kVariant);
  const std::string path = model + "/model.safetensors";
  fs::resize_file(path, fs::file_size(path) - 100);
  expect_refused(model, "model.safetensors");
}

TEST_F(BadModelTest, ASafetensorsHeaderThatLies) {
  const std::string model = copy(kVariant);
  const std::string path = model + "/model.safetensors";
  std::string bytes = read(path);
  bytes[7] = '\x7f';  // a header of 2^62 bytes
  write(path, bytes);
  expect_refused(model, "model.safetensors");
}

TEST_F(BadModelTest, AMissingTensor) {
  const std::string model = copy(kVariant);
  const std::string path = model + "/model.safetensors";
  std::string bytes = read(path);
  const std::size_t at = bytes.find("model.layers.1.self_attn.o_proj.weight");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 6] = 'X';
  write(path, bytes);
  expect_refused(model, "model.layers.1.self_attn.o_proj.weight");
}

TEST_F(BadModelTest, AMissingTensorOfAnExpert) {
  const std::string model = copy(kVariant);
  const std::string path = model + "/model.safetensors";
  std::string bytes = read(path);
  const std::size_t at = bytes.find("model.layers.1.mlp.experts.3.up_proj.weight");
  ASSERT_NE(at, std::string::npos);
  bytes[at + 6] = 'X';
  write(path, bytes);
  expect_refused(model, "model.layers.1.mlp.experts.3.up_proj.weight");
}

TEST_F(BadModelTest, AnotherFamily) {
  const std::string model = copy(kVariant);
  edit(model + "/config.json", [](Json& config) { config["model_type"] = "llama"; });
  expect_refused(model, "llama");
}

TEST_F(BadModelTest, AShapeThatIsNotTheConfigs) {
  const std::string model = copy(kVariant);
  edit(model + "/config.json", [](Json& config) { config["hidden_size"] = 128; });
  expect_refused(model, "128");
}

TEST_F(BadModelTest, AFolderWithoutAModel) {
  expect_refused(folder_.path(), "config.json");
  expect_refused(folder_.path() + "/none", "config.json");
}

TEST_F(BadModelTest, AWeightThatIsNoNumberIsNamed) {
  const std::string model = copy(kVariant);
  std::string bytes = read(model + "/model.safetensors");
  // The last tensor's last number (bf16 or f32, little-endian) becomes NaN; the file's end is its.
  bytes[bytes.size() - 1] = '\x7f';
  bytes[bytes.size() - 2] = '\xff';
  write(model + "/model.safetensors", bytes);
  for (const char* layout : {"--stages=2", "--colocated"}) {
    const Ended ended =
        run_program({AFD_BINARY, "run", "--model", model, "--prompt-ids", "1,2,3", layout});
    SCOPED_TRACE(describe(ended));
    EXPECT_EQ(ended.exit_code, 1);
    EXPECT_NE(ended.err.find("request 0, position "), std::string::npos);
    EXPECT_NE(
        ended.err.find(
            ": the logits are not finite: tensor \"lm_head.weight\" is NaN at element 8191 of "),
        std::string::npos);
    EXPECT_NE(ended.err.find("hint: a damaged checkpoint"), std::string::npos);
    EXPECT_EQ(ended.err.find("bug in afd"), std::string::npos);
  }
}

TEST_F(BadModelTest, TensorsThatNobodyReadsAreNoted) {
  const std::string model = copy(kVariant);
  edit(model + "/config.json", [](Json& config) { config["num_hidden_layers"] = 2; });
  const Ended ended = run_program(
      {AFD_BINARY, "run", "--model", model, "--prompt-ids", "1,2,3", "--max-new-tokens", "2"});
  EXPECT_EQ(ended.exit_code, 0) << describe(ended);
  EXPECT_NE(ended.err.find("note: the model does not use "), std::string::npos) << describe(ended);
  EXPECT_NE(ended.err.find(": model.layers.2."), std::string::npos) << describe(ended);
  EXPECT_NE(ended.err.find("(config.json: 2 layers, 8 experts)"), std::string::npos)
      << describe(ended);
  const Ended quiet = run_program({AFD_BINARY, "run", "--model", kVariant, "--prompt-ids", "1"});
  EXPECT_EQ(quiet.err.find("note:"), std::string::npos) << describe(quiet);
}

TEST_F(BadModelTest, ATokenizerWithoutMerges) {
  const std::string model = copy(kModel);
  edit(model + "/tokenizer.json", [](Json& tokenizer) { tokenizer["model"].erase("merges"); });
  expect_refusal({{"run", "--model", model, "--prompt", "x"}, 1, "merges"});
}

}  // namespace
}  // namespace afd::testing
