// For tests only: runs the cases of a section of tests/data/golden and sees that none is left out
// unnoticed.
#pragma once

#include <cstddef>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace afd::golden {

// Keeps the order of keys, which is significant in config.json.
using Json = nlohmann::ordered_json;

inline Json load(const std::string& file) {
  std::ifstream stream(std::string(AFD_TEST_DATA "/golden/") + file);
  EXPECT_TRUE(stream.good()) << file;
  return Json::parse(stream);
}

/// Cases that have no counterpart here, with the reason.
using Inapplicable = std::map<std::string, std::string>;

/// Calls run(one) for each case, except those named in `inapplicable`, and checks that `num_run`
/// ran and that every name in `inapplicable` was met.
inline void run_cases(const Json& cases, std::size_t num_run, const Inapplicable& inapplicable,
                      const std::function<void(const Json&)>& run) {
  std::size_t ran = 0;
  std::size_t skipped = 0;
  for (const Json& one : cases) {
    const std::string name = one.value("name", one.dump().substr(0, 120));
    SCOPED_TRACE(name);
    if (inapplicable.contains(name)) {
      ++skipped;
      continue;
    }
    run(one);
    ++ran;
  }
  EXPECT_EQ(ran, num_run) << "the section has " << cases.size() << " cases";
  EXPECT_EQ(skipped, inapplicable.size()) << "a name in the list of inapplicable cases is wrong";
}

}  // namespace afd::golden
