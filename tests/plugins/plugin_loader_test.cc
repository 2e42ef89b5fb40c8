#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <latch>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include <afd/factory.h>
#include <afd/plugin.h>

namespace afd {
namespace {

std::string library(const std::string& name) {
  return std::string(AFD_TEST_PLUGINS "/afd_test_plugin_") + name + ".so";
}

bool is_open(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  std::stringstream text;
  text << maps.rdbuf();
  return text.str().find(path) != std::string::npos;
}

/// The message of loading that library as TestConnector, without the words in front that are the
/// same for all.
std::string problem(const std::string& path) {
  ConnectorFactory factory;
  EXPECT_TRUE(factory.register_plugin("TestConnector", path));
  const Result<const ConnectorClass*> loaded = factory.get_connector_class("TestConnector");
  if (loaded) {
    return "";
  }
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnavailable);
  const std::string prefix = "plug-in library '" + path + "' of connector 'TestConnector': ";
  EXPECT_TRUE(loaded.error().message.starts_with(prefix)) << loaded.error().message;
  return loaded.error().message.substr(std::min(prefix.size(), loaded.error().message.size()));
}

TEST(PluginLoaderTest, NamingAPluginOpensNothingAndAskingOpensIt) {
  ConnectorFactory factory;
  const std::string path = library("lazy");
  ASSERT_TRUE(factory.register_plugin("LazyConnector", path));
  EXPECT_FALSE(is_open(path));
  const Result<const ConnectorClass*> loaded = factory.get_connector_class("LazyConnector");
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_TRUE(is_open(path));
  EXPECT_EQ((*loaded)->name(), "LazyConnector");
}

TEST(PluginLoaderTest, PluginsWithTheSameFunctionNamesDoNotMeet) {
  ConnectorFactory factory;
  ASSERT_TRUE(factory.register_plugin("TestConnector", library("good")));
  ASSERT_TRUE(factory.register_plugin("SecondConnector", library("second")));
  EXPECT_EQ(factory.get_connector_class("TestConnector").value()->name(), "TestConnector");
  EXPECT_EQ(factory.get_connector_class("SecondConnector").value()->name(), "SecondConnector");
}

TEST(PluginLoaderTest, ThreadsThatAskAtOnceAskThePluginOnce) {
  constexpr int kNumThreads = 8;
  ConnectorFactory factory;
  ASSERT_TRUE(
      factory.register_plugin("TestConnector", library("own_symbol"), "my_connector_plugin"));
  std::latch start(kNumThreads);
  std::vector<std::jthread> threads;
  for (int i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      EXPECT_TRUE(factory.get_connector_class("TestConnector"));
    });
  }
  threads.clear();
  EXPECT_EQ(factory.parse_connector_extra_info("TestConnector", "{}").value(),
            R"({"num_class_calls":1})");
}

TEST(PluginLoaderTest, APluginsErrorsComeThrough) {
  ConnectorFactory factory;
  ASSERT_TRUE(factory.register_plugin("TestConnector", library("good")));
  ConnectorParams params;
  params.config.connector = "TestConnector";
  params.limits.hidden_size = 8;
  const auto connector = factory.create_connector(params);
  ASSERT_FALSE(connector);
  EXPECT_EQ(connector.error(),
            (Error{ErrorCode::kUnavailable, "the test plug-in makes no TestConnector"}));
}

TEST(PluginLoaderTest, RefusesALibraryThatIsMissingOrNone) {
  const std::string missing = library("missing");
  EXPECT_EQ(problem(missing),
            "cannot open it: cannot open shared object file: No such file or directory");
  EXPECT_TRUE(problem(AFD_NO_LIBRARY).starts_with("cannot open it: ")) << problem(AFD_NO_LIBRARY);
  // A device, like a FIFO, is not given to the loader, which would wait there for bytes.
  EXPECT_EQ(problem("/dev/zero"), "cannot open it: not a regular file");
}

TEST(PluginLoaderTest, RefusesALibraryThatLacksAFunctionAtOnce) {
  const std::string message = problem(library("lacks_a_function"));
  EXPECT_TRUE(message.starts_with("cannot open it: ")) << message;
  EXPECT_NE(message.find("afd_test_plugin_function_that_nobody_has"), std::string::npos) << message;
}

TEST(PluginLoaderTest, RefusesALibraryWithoutTheSymbol) {
  const std::string message = problem(library("own_symbol"));
  EXPECT_TRUE(
      message.starts_with("it does not export 'afd_connector_plugin_v1', so it is no "
                          "connector plug-in, or one for another release: "))
      << message;
}

TEST(PluginLoaderTest, RefusesAnotherStructSize) {
  EXPECT_EQ(problem(library("wrong_size")),
            "its 'afd_connector_plugin_v1' says that it has 8 bytes, expected 32");
}

TEST(PluginLoaderTest, RefusesAnotherBuildTagAndNamesBoth) {
  EXPECT_EQ(problem(library("wrong_tag")),
            "it was built as 'afd-0.0.9/gcc4/libstdc++-1/abi0', expected '" AFD_BUILD_TAG
            "': rebuild it against this library");
  EXPECT_EQ(problem(library("null_tag")),
            "it was built as '', expected '" AFD_BUILD_TAG "': rebuild it against this library");
}

TEST(PluginLoaderTest, RefusesAnotherConnectorsName) {
  EXPECT_EQ(problem(library("wrong_name")),
            "it has the connector 'OtherConnector' in it, expected 'TestConnector'");
  EXPECT_EQ(problem(library("wrong_class_name")),
            "its class calls itself 'SomebodyElse', expected 'TestConnector'");
}

TEST(PluginLoaderTest, RefusesAMissingClass) {
  EXPECT_EQ(problem(library("null_class")), "its connector_class() returned null");
  EXPECT_EQ(problem(library("null_function")), "its connector_class is null, expected a function");
}

TEST(PluginLoaderTest, APluginInstalledLaterIsFound) {
  const std::string path =
      ::testing::TempDir() + "afd_test_plugin_late_" + std::to_string(getpid()) + ".so";
  ConnectorFactory factory;
  ASSERT_TRUE(factory.register_plugin("TestConnector", path));
  EXPECT_FALSE(factory.get_connector_class("TestConnector"));
  {
    std::ifstream source(library("good"), std::ios::binary);
    std::ofstream(path, std::ios::binary) << source.rdbuf();
  }
  const Result<const ConnectorClass*> loaded = factory.get_connector_class("TestConnector");
  std::remove(path.c_str());
  EXPECT_TRUE(loaded) << loaded.error().message;
}

}  // namespace
}  // namespace afd
