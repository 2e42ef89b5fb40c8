#include "runtime/launcher.h"

#include <sys/stat.h>

#include <chrono>
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

TEST(LauncherTest, ARankMayStandStillForTheInitTimeoutBeforeTheJobBegins) {
  const testing::TempFolder folder;
  const std::string pid = folder.path() + "/pid";
  LaunchOptions options;
  options.program =
      folder.write("rank", "#!/bin/sh\ncase $3 in\nffn) until [ -s " + pid +
                               " ]; do sleep 0.05; done; sleep 0.6; " + "kill -CONT $(cat " + pid +
                               "); exec sleep 20;;\n*) echo $$ >" + pid + "; kill -STOP $$; " +
                               failing("PeerLost", "it went on") + ";;\nesac\n");
  EXPECT_EQ(::chmod(options.program.c_str(), 0700), 0);
  options.job.hop_timeout = std::chrono::milliseconds(100);
  const Result<JobReport> report = launch_job(options, {}, {});
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message.find("it went on"), std::string::npos) << report.error().message;
}

}  // namespace
}  // namespace afd::runtime
