// Runs `afd run --json` and reads what it prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/program.h"

namespace afd::testing {

using Json = nlohmann::json;

/// `afd run --json --model MODEL ARGS...`; fails the test and returns null where it fails.
inline Json afd_run(const std::string& model, const std::vector<std::string>& args) {
  std::vector<std::string> command = {AFD_BINARY, "run", "--json", "--model", model};
  command.insert(command.end(), args.begin(), args.end());
  const Ended ended = run_program(command);
  if (ended.exit_code != 0) {
    std::string line;
    for (const std::string& word : command) {
      line += word + " ";
    }
    ADD_FAILURE() << line << "\n" << describe(ended);
    return nullptr;
  }
  Json report = Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(report.is_object()) << describe(ended);
  return report;
}

/// The hashes of all outputs, in order.
inline std::vector<std::string> logits_hashes(const Json& report) {
  std::vector<std::string> hashes;
  if (report.is_object()) {
    for (const Json& output : report.at("outputs")) {
      hashes.push_back(output.at("logits_sha256").get<std::string>());
    }
  }
  return hashes;
}

}  // namespace afd::testing
