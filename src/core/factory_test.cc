#include <afd/factory.h>

#include <atomic>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>

#include <afd/extra_config.h>

namespace afd {
namespace {

/// A connector that holds nothing and refuses every call.
class IdleConnector final : public ConnectorBase {
 public:
  Result<void> init_afd_connector(Deadline) override { return none(); }
  bool is_initialized() const noexcept override { return false; }
  void close() noexcept override {}
  Result<void> send_attn_output(ConstTensorView, const TransferContext&,
                                const SendAttnOptions&) override {
    return none();
  }
  Result<TensorView> recv_ffn_output(TensorView, std::uint32_t, const RecvFfnOptions&) override {
    return none();
  }
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t, const RecvAttnOptions&) override {
    return none();
  }
  Result<void> send_ffn_output(const F2ATransferPayload&, const TransferContext&,
                               const SendFfnOptions&) override {
    return none();
  }
  Capabilities capabilities() const override { return {}; }

 private:
  static tl::unexpected<Error> none() { return fail(ErrorCode::kFailedPrecondition, "idle"); }
};

class FakeClass : public ConnectorClass {
 public:
  std::string_view name() const override { return "Fake"; }
  Result<void> check_available() const override { return {}; }
  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.num_stages_max = 2;
    return capabilities;
  }
  Result<std::string> parse_extra_config(std::string_view raw_json) const override {
    return parse_no_extra_config("Fake", raw_json);
  }
  Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams&) const override {
    ++num_created;
    return std::make_unique<IdleConnector>();
  }
  mutable std::atomic<int> num_created{0};
};

/// A loader of `loaded` that counts how often it ran.
ConnectorLoader counting_loader(const ConnectorClass& loaded, std::atomic<int>& num_loads) {
  return [&loaded, &num_loads]() -> Result<const ConnectorClass*> {
    ++num_loads;
    return &loaded;
  };
}

ConnectorParams params_for(std::string connector) {
  ConnectorParams params;
  params.config.connector = std::move(connector);
  params.limits.hidden_size = 8;
  return params;
}

template <typename T>
std::string problem(const Result<T>& result, ErrorCode code = ErrorCode::kInvalidArgument) {
  if (result) {
    return "";
  }
  EXPECT_EQ(result.error().code, code);
  return result.error().message;
}

class FactoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(factory.register_connector("Fake", counting_loader(fake, num_loads)));
  }

  FakeClass fake;
  std::atomic<int> num_loads{0};
  ConnectorFactory factory;
};

TEST_F(FactoryTest, NamingAConnectorLoadsNothing) {
  EXPECT_EQ(factory.connector_names(), std::vector<std::string>{"Fake"});
  EXPECT_EQ(num_loads, 0);
  EXPECT_EQ(factory.get_connector_class("Fake").value(), &fake);
  EXPECT_EQ(factory.get_connector_class("Fake").value(), &fake);
  EXPECT_EQ(num_loads, 1);
}

TEST_F(FactoryTest, RefusesADuplicateUnlessItReplaces) {
  FakeClass other;
  std::atomic<int> other_loads{0};
  EXPECT_EQ(problem(factory.register_connector("Fake", counting_loader(other, other_loads))),
            "connector 'Fake' is already registered");
  EXPECT_EQ(problem(factory.register_plugin("Fake", "libx.so")),
            "connector 'Fake' is already registered");
  EXPECT_EQ(factory.get_connector_class("Fake").value(), &fake);
  ASSERT_TRUE(factory.register_connector("After", counting_loader(other, other_loads)));
  ASSERT_TRUE(factory.register_connector("Fake", counting_loader(other, other_loads), true));
  EXPECT_EQ(factory.get_connector_class("Fake").value(), &other);
  // It keeps its place.
  EXPECT_EQ(factory.connector_names(), (std::vector<std::string>{"Fake", "After"}));
  // Replacing works for new names too.
  ASSERT_TRUE(factory.register_connector("New", counting_loader(other, other_loads), true));
}

TEST_F(FactoryTest, RefusesRegistrationsThatCannotWork) {
  EXPECT_EQ(problem(factory.register_connector("", counting_loader(fake, num_loads))),
            "a connector's name is empty");
  EXPECT_EQ(problem(factory.register_connector("X", nullptr)), "connector 'X' has no loader");
  EXPECT_EQ(problem(factory.register_plugin("X", "")), "connector 'X' has no plug-in library");
  EXPECT_EQ(factory.connector_names().size(), 1u);
}

TEST_F(FactoryTest, AnUnknownNameGetsTheListOfNames) {
  ASSERT_TRUE(factory.register_plugin("Other", "libother.so"));
  const std::string unknown = "unsupported AFD connector type: dummy; available: Fake, Other";
  EXPECT_EQ(problem(factory.get_connector_class("dummy")), unknown);
  EXPECT_EQ(problem(factory.create_connector(params_for("dummy"))), unknown);
  EXPECT_EQ(problem(factory.parse_connector_extra_info("dummy", "{}")), unknown);
  EXPECT_EQ(problem(ConnectorFactory().get_connector_class("dummy")),
            "unsupported AFD connector type: dummy; available: none");
}

TEST_F(FactoryTest, ThreadsThatAskAtOnceLoadOnce) {
  constexpr int kNumThreads = 8;
  std::atomic<int> num_asking{0};
  ASSERT_TRUE(factory.register_connector("Slow", [&]() -> Result<const ConnectorClass*> {
    ++num_loads;
    // Loads until all others ask, and then for as long as one that is not held back needs to come.
    while (num_asking < kNumThreads) {
      std::this_thread::yield();
    }
    for (int i = 0; i < 1000 && num_loads == 1; ++i) {
      std::this_thread::yield();
    }
    return &fake;
  }));
  std::vector<const ConnectorClass*> seen(kNumThreads);
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kNumThreads; ++i) {
    threads.emplace_back([&, i] {
      ++num_asking;
      seen[i] = factory.get_connector_class("Slow").value();
    });
  }
  threads.clear();
  EXPECT_EQ(seen, std::vector<const ConnectorClass*>(kNumThreads, &fake));
  EXPECT_EQ(num_loads, 1);
}

TEST_F(FactoryTest, ALoadThatFailedIsTriedAgain) {
  int num_tries = 0;
  ASSERT_TRUE(factory.register_connector("Late", [&]() -> Result<const ConnectorClass*> {
    if (++num_tries == 1) {
      return fail(ErrorCode::kUnavailable, "not yet");
    }
    return &fake;
  }));
  EXPECT_EQ(problem(factory.get_connector_class("Late"), ErrorCode::kUnavailable), "not yet");
  EXPECT_EQ(factory.get_connector_class("Late").value(), &fake);
  EXPECT_EQ(factory.get_connector_class("Late").value(), &fake);
  EXPECT_EQ(num_tries, 2);
}

TEST_F(FactoryTest, CreatesAfterItCheckedWhatHoldsForEveryConnector) {
  ConnectorParams params = params_for("Fake");
  EXPECT_TRUE(factory.create_connector(params));
  EXPECT_EQ(fake.num_created, 1);

  const auto with = [&](auto change) {
    ConnectorParams changed = params;
    change(changed);
    return problem(factory.create_connector(changed));
  };
  EXPECT_EQ(with([](auto& p) { p.role_rank = 1; }),
            "Attention role rank must be within attention size (rank=1, size=1)");
  EXPECT_EQ(with([](auto& p) { p.config.num_ffn_ranks = 0; }),
            "num_ffn_ranks must be positive, got 0");
  EXPECT_EQ(with([](auto& p) { p.config.connector_extra_config = R"({"core_num": 8})"; }),
            "Fake does not support connector_extra_config");
  EXPECT_EQ(with([](auto& p) { p.limits.hidden_size = 0; }),
            "hidden_size is 0, expected at least 1");
  EXPECT_EQ(with([](auto& p) { p.limits.num_layers = 0; }), "num_layers is 0, expected at least 1");
  EXPECT_EQ(with([](auto& p) { p.limits.max_num_tokens = 0; }),
            "max_num_tokens is 0, expected at least 1");
  EXPECT_EQ(with([](auto& p) { p.limits.num_stages = 0; }), "num_stages is 0, expected at least 1");
  EXPECT_EQ(with([](auto& p) { p.limits.num_stages = 3; }),
            "num_stages is 3, expected at most 2 for Fake");
  EXPECT_EQ(fake.num_created, 1);
}

TEST_F(FactoryTest, ChecksSettingsWithoutCreating) {
  EXPECT_EQ(factory.parse_connector_extra_info("Fake", "{}").value(), "{}");
  EXPECT_EQ(problem(factory.parse_connector_extra_info("Fake", R"({"a": 1})")),
            "Fake does not support connector_extra_config");
  EXPECT_EQ(fake.num_created, 0);
}

TEST_F(FactoryTest, WhatAConnectorThrowsBecomesAnError) {
  class Throwing final : public FakeClass {
    Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams&) const override {
      throw std::runtime_error("out of luck");
    }
    Result<std::string> parse_extra_config(std::string_view raw_json) const override {
      if (raw_json == "{}") {
        return std::string(raw_json);
      }
      throw 5;
    }
    Result<void> check_available() const override { throw std::runtime_error("no device"); }
  };
  Throwing throwing;
  ASSERT_TRUE(factory.register_connector("Throwing", counting_loader(throwing, num_loads)));
  ASSERT_TRUE(factory.register_connector(
      "Bad", []() -> Result<const ConnectorClass*> { throw std::runtime_error("no library"); }));
  EXPECT_EQ(problem(factory.create_connector(params_for("Throwing")), ErrorCode::kInternal),
            "connector 'Throwing' threw while being created: out of luck");
  EXPECT_EQ(problem(factory.parse_connector_extra_info("Throwing", "[]"), ErrorCode::kInternal),
            "connector 'Throwing' threw while checking its settings: something that is no "
            "std::exception");
  EXPECT_EQ(problem(factory.get_connector_class("Bad"), ErrorCode::kInternal),
            "connector 'Bad' threw while loading: no library");
  EXPECT_EQ(factory.describe()[1].why_not,
            "connector 'Throwing' threw while being described: no device");
}

TEST_F(FactoryTest, ALoaderThatGivesNoClassAndAClassThatGivesNoConnectorAreErrors) {
  class Empty final : public FakeClass {
    Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams&) const override {
      return std::unique_ptr<ConnectorBase>();
    }
  };
  Empty empty;
  ASSERT_TRUE(factory.register_connector("Empty", counting_loader(empty, num_loads)));
  ASSERT_TRUE(factory.register_connector(
      "Null", []() -> Result<const ConnectorClass*> { return nullptr; }));
  EXPECT_EQ(problem(factory.create_connector(params_for("Empty")), ErrorCode::kInternal),
            "connector 'Empty' created no object");
  EXPECT_EQ(problem(factory.get_connector_class("Null"), ErrorCode::kUnavailable),
            "the loader of connector 'Null' returned no class");
}

TEST_F(FactoryTest, DescribesEachConnectorForPeople) {
  class Missing final : public FakeClass {
    Result<void> check_available() const override {
      return fail(ErrorCode::kUnavailable, "no device");
    }
  };
  Missing missing;
  ASSERT_TRUE(
      factory.register_connector("Missing", counting_loader(missing, num_loads), false, "vendor"));
  ASSERT_TRUE(factory.register_plugin("Plugin", "/nowhere/libplugin.so"));
  const std::vector<ConnectorInfo> lines = factory.describe();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].name, "Fake");
  EXPECT_EQ(lines[0].origin, "built in");
  EXPECT_TRUE(lines[0].available);
  EXPECT_EQ(lines[0].why_not, "");
  EXPECT_EQ(lines[0].capabilities.num_stages_max, 2u);
  EXPECT_EQ(lines[1].origin, "vendor");
  EXPECT_FALSE(lines[1].available);
  EXPECT_EQ(lines[1].why_not, "no device");
  EXPECT_EQ(lines[1].capabilities.num_stages_max, 2u);
  EXPECT_EQ(lines[2].origin, "/nowhere/libplugin.so");
  EXPECT_FALSE(lines[2].available);
  EXPECT_NE(lines[2].why_not.find("cannot open"), std::string::npos);
}

TEST_F(FactoryTest, MovesWithWhatItHolds) {
  ConnectorFactory moved = std::move(factory);
  EXPECT_EQ(moved.get_connector_class("Fake").value(), &fake);
}

}  // namespace
}  // namespace afd
