// docs/json.md names every key that `--json` prints, and no other.
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/fault/port.h"
#include "tests/multiprocess/afd_run.h"

namespace afd::testing {
namespace {

const std::string kModel = std::string(AFD_MODELS) + "/austen-moe";
using Keys = std::set<std::string>;

/// Paths of all values: "ranks[].peers[]". An empty array counts as one of plain values.
void collect(const Json& json, const std::string& path, Keys& keys) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      collect(value, path.empty() ? key : path + "." + key, keys);
    }
  } else if (json.is_array()) {
    for (const Json& entry : json) {
      collect(entry, path + "[]", keys);
    }
  } else {
    keys.insert(path);
  }
}

Keys printed_by(const std::vector<std::vector<std::string>>& calls) {
  Keys keys;
  for (std::vector<std::string> args : calls) {
    args.insert(args.begin(), AFD_BINARY);
    args.push_back("--json");
    const Ended ended = run_program(args);
    EXPECT_EQ(ended.exit_code, 0) << describe(ended);
    collect(Json::parse(ended.out, nullptr, /*allow_exceptions=*/false), "", keys);
  }
  return keys;
}

/// What the section's tables have in their first column.
Keys documented(const std::string& heading) {
  std::ifstream file(std::string(AFD_MODELS) + "/../docs/json.md");
  EXPECT_TRUE(file.is_open());
  Keys keys;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("## ", 0) == 0) {
      inside = line == "## " + heading;
    } else if (inside && line.rfind("| `", 0) == 0) {
      keys.insert(line.substr(3, line.find('`', 3) - 3));
    }
  }
  return keys;
}

TEST(JsonKeysTest, RunAndRank) {
  Keys keys = printed_by({{"run", "--model", kModel, "--prompt", "Emma", "--max-new-tokens", "2",
                           "--logits-sha256", "--colocated"},
                          {"run", "--model", kModel, "--prompt", "Emma", "--max-new-tokens", "2"}});
  const std::string port = free_port();
  const auto rank = [&](const char* role) {
    return std::vector<std::string>{
        AFD_BINARY, "rank",   "--json", "--model",  kModel, "--role",           role, "--role-rank",
        "0",        "--port", port,     "--prompt", "Emma", "--max-new-tokens", "2"};
  };
  Program ffn(rank("ffn"));
  Program attention(rank("attention"));
  for (Program* program : {&ffn, &attention}) {
    const Ended ended = program->wait(std::chrono::seconds(60));
    ASSERT_EQ(ended.exit_code, 0) << describe(ended);
    collect(Json::parse(ended.out, nullptr, /*allow_exceptions=*/false), "", keys);
  }
  EXPECT_EQ(keys, documented("afd run and afd rank"));
}

TEST(JsonKeysTest, TheOthers) {
  const std::map<std::string, std::vector<std::string>> commands = {
      {"afd topology", {"topology", "--attention-ranks", "66", "--ffn-ranks", "1"}},
      {"afd connectors", {"connectors"}},
      {"afd doctor", {"doctor"}}};
  for (const auto& [heading, args] : commands) {
    EXPECT_EQ(printed_by({args}), documented(heading)) << heading;
  }
}

TEST(JsonKeysTest, BenchHop) {
  const Ended text = run_program({AFD_BINARY, "bench", "hop", "--sizes", "64", "--samples", "8"});
  if (text.err.find("bench hop needs two processors") != std::string::npos) {
    GTEST_SKIP() << text.err;
  }
  EXPECT_EQ(text.exit_code, 0) << describe(text);
  EXPECT_NE(text.out.find("    size direction "), std::string::npos) << describe(text);
  EXPECT_EQ(printed_by({{"bench", "hop", "--sizes", "64", "--samples", "8"}}),
            documented("afd bench hop"));
}

}  // namespace
}  // namespace afd::testing
