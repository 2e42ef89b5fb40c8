// afd_conformance: runs the conformance suite on any connector, without a line of code.
//
//   afd_conformance --connector NAME [--library PATH [--symbol SYMBOL]] [--extra-config JSON]
//                   [--patience-ms N] [--seed N] [--gtest_filter=... and the like]
//
// Without --library NAME is one of the connectors of this library. The exit status is 0 if every
// test passed, 1 if one failed, 2 for bad usage and for a connector that cannot run here.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <gtest/gtest.h>

#include <afd/factory.h>

#include "conformance/conformance.h"

namespace {

using afd::conformance::ConnectorUnderTest;

constexpr const char* kUsage =
    "usage: afd_conformance --connector NAME [--library PATH [--symbol SYMBOL]]\n"
    "                       [--extra-config JSON] [--patience-ms N] [--seed N]\n"
    "                       [GoogleTest's options, such as --gtest_filter=*R7*]\n"
    "\n"
    "Runs rules R1 to R12 of the connector contract on a connector: one of libafd's, or the one "
    "that\n"
    "a plug-in exports.\n"
    "\n"
    "  --connector NAME     as in the configuration's `connector`\n"
    "  --library PATH       the plug-in; absent: NAME is built in\n"
    "  --symbol SYMBOL      what it exports; absent: afd_connector_plugin_v1\n"
    "  --extra-config JSON  `connector_extra_config` of every rank\n"
    "  --patience-ms N      how long a call may take before it counts as hanging (20000)\n"
    "  --seed N             of the sweeps: repeats what a failing one printed\n";

struct Arguments {
  std::string connector;
  std::string library;
  std::string symbol;
  std::string extra_config = "{}";
  std::uint64_t patience_ms = 20'000;
  std::uint64_t seed = 0;
};

[[noreturn]] void bad_usage(const std::string& problem) {
  std::fprintf(stderr, "afd_conformance: %s\n%s", problem.c_str(), kUsage);
  std::exit(2);
}

std::uint64_t parse_number(std::string_view name, std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    bad_usage(std::string(name) + " must be a number, got '" + std::string(text) + "'");
  }
  return number;
}

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--help" || name == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (i + 1 == argc) {
      bad_usage("'" + std::string(name) + "' is unknown or lacks its value");
    }
    const std::string_view value = argv[++i];
    if (name == "--connector") {
      arguments.connector = value;
    } else if (name == "--library") {
      arguments.library = value;
    } else if (name == "--symbol") {
      arguments.symbol = value;
    } else if (name == "--extra-config") {
      arguments.extra_config = value;
    } else if (name == "--patience-ms") {
      arguments.patience_ms = parse_number(name, value);
    } else if (name == "--seed") {
      arguments.seed = parse_number(name, value);
    } else {
      bad_usage("unknown option '" + std::string(name) + "'");
    }
  }
  if (arguments.connector.empty()) {
    bad_usage("--connector is missing");
  }
  return arguments;
}

// Set before InitGoogleTest, which asks for the cases.
std::optional<ConnectorUnderTest>& under_test() {
  static std::optional<ConnectorUnderTest> connector;
  return connector;
}

std::vector<afd::conformance::CaseParam> cases() {
  return under_test() ? afd::conformance::cases_of(*under_test())
                      : std::vector<afd::conformance::CaseParam>();
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Connector, ConnectorConformance, ::testing::ValuesIn(cases()),
                         afd::conformance::case_name);

int main(int argc, char** argv) {
  // GoogleTest's own options go first, so that what is left is ours; it asks for the cases then.
  int num_own = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--gtest_", 8) != 0) {
      std::swap(argv[num_own++], argv[i]);
    }
  }
  const Arguments arguments = parse(num_own, argv);

  auto factory = std::make_shared<afd::ConnectorFactory>(afd::builtin_connectors());
  if (!arguments.library.empty()) {
    if (afd::Result<void> registered = factory->register_plugin(
            arguments.connector, arguments.library, arguments.symbol, /*replace=*/true);
        !registered) {
      bad_usage(registered.error().message);
    }
  }
  afd::Result<ConnectorUnderTest> connector =
      afd::conformance::from_factory(factory, arguments.connector);
  if (!connector) {
    std::fprintf(stderr, "afd_conformance: %s\n", connector.error().message.c_str());
    return 2;
  }
  connector->extra_config = arguments.extra_config;
  connector->patience = std::chrono::milliseconds(arguments.patience_ms);
  connector->seed = arguments.seed;
  under_test() = *std::move(connector);

  ::testing::InitGoogleTest(&argc, argv);
  const int status = RUN_ALL_TESTS();
  if (::testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
    std::fprintf(stderr,
                 "afd_conformance: no case was run: the filter fits none that this "
                 "connector can be asked\n");
    return 2;
  }
  return status;
}
