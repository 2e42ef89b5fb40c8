#include "runtime/launcher.h"

#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/program.h"

namespace afd::runtime {
namespace {

/// Ranks that do what a script says. @return how many times an FFN rank was started
std::size_t num_starts(const std::string& ffn, const std::string& attention) {
  const testing::TempFolder folder;
  const std::string starts = folder.path() + "/starts";
  LaunchOptions options;
  options.program = folder.write("rank", "#!/bin/sh\ncase $3 in\nffn) printf x >>" + starts + "; " +
                                             ffn + ";;\n*) " + attention + ";;\nesac\n");
  EXPECT_EQ(::chmod(options.program.c_str(), 0700), 0);
  EXPECT_FALSE(launch_job(options, {}, {}));
  std::ifstream file(starts);
  return static_cast<std::size_t>(
      std::distance(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()));
}

/// Shell text: reports an error as a rank does.
std::string failing(const std::string& code, const std::string& message) {
  return R"(echo '{"type":"failed","code":")" + code + R"(","message":")" + message +
         R"("}' >&4; exit 1)";
}

TEST(LauncherTest, TriesAnotherPortWhateverElseAStolenOneBrings) {
  const std::string stolen = failing("InvalidArgument", "port 4711 of 127.0.0.1 is in use");
  EXPECT_EQ(num_starts(stolen, "exec sleep 20"), 3u);
  // The attention rank met whoever has the port, and died of it: that is the better cause.
  EXPECT_EQ(num_starts(stolen, "kill -9 $$"), 3u);
  EXPECT_EQ(num_starts("exit 1", failing("ProtocolMismatch", "no hello")), 1u);
}

}  // namespace
}  // namespace afd::runtime
