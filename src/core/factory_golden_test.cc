#include <gtest/gtest.h>

#include <afd/config.h>
#include <afd/extra_config.h>
#include <afd/factory.h>
#include <afd/topology.h>

#include "core/golden_testing.h"

namespace afd {
namespace {

using golden::Json;

/// Stands in for the reference's connector of that name: no settings of its own.
class P2pNcclClass final : public ConnectorClass {
 public:
  std::string_view name() const override { return "P2pNcclAFDConnector"; }
  Result<void> check_available() const override { return {}; }
  Capabilities capabilities() const override { return {}; }
  Result<std::string> parse_extra_config(std::string_view raw_json) const override {
    return parse_no_extra_config(name(), raw_json);
  }
  Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams&) const override {
    return fail(ErrorCode::kUnavailable, "not in this test");
  }
};

class FactoryGoldenTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(add("P2pNcclAFDConnector", false)); }

  Result<void> add(std::string name, bool replace) {
    return factory.register_connector(
        std::move(name), [this]() -> Result<const ConnectorClass*> { return &p2p; }, replace);
  }
  Result<const ConnectorClass*> get_from(const std::string& library) {
    EXPECT_TRUE(factory.register_plugin("Plugin", library, {}, true));
    return factory.get_connector_class("Plugin");
  }
  Error create(const std::string& connector, const std::string& extra) {
    ConnectorParams params;
    params.config.connector = connector;
    params.config.connector_extra_config = extra;
    params.limits.hidden_size = 8;
    return factory.create_connector(params).error();
  }
  /// Ours may add to the reference's message.
  void expect_error(const Error& error, const Json& one) {
    EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
    const std::string wanted = one["error"]["message"];
    EXPECT_EQ(error.message.substr(0, wanted.size()), wanted);
  }
  void run(const Json& one);

  P2pNcclClass p2p;
  ConnectorFactory factory;
};

void FactoryGoldenTest::run(const Json& one) {
  const std::string name = one["name"];
  const std::string raw = one.value("raw", Json::object()).dump();
  if (name == "get_unknown") {
    expect_error(factory.get_connector_class("dummy").error(), one);
  } else if (name == "register_duplicate") {
    expect_error(add("P2pNcclAFDConnector", false).error(), one);
  } else if (name == "register_missing_module_is_lazy") {
    EXPECT_TRUE(factory.register_plugin("Lazy", "no.such.library"));
  } else if (name == "get_missing_module") {
    EXPECT_EQ(get_from("no.such.library").error().code, ErrorCode::kUnavailable);
  } else if (name == "get_missing_attribute") {
    const Result<const ConnectorClass*> loaded = get_from("libc.so.6");
    ASSERT_FALSE(loaded);
    EXPECT_NE(loaded.error().message.find("does not export"), std::string::npos);
  } else if (name == "replace_existing") {
    EXPECT_TRUE(add("P2pNcclAFDConnector", true));
    EXPECT_EQ(factory.get_connector_class("P2pNcclAFDConnector").value()->name(), one["ok"]);
  } else if (name == "replace_on_new_name_and_abstract_base_accepted_by_loader") {
    EXPECT_TRUE(add("New", true));
    EXPECT_TRUE(factory.get_connector_class("New"));
  } else if (name == "create_explicit_config_not_validated_unknown_connector") {
    expect_error(create("Nope", "{}"), one);
  } else if (name == "create_extra_config_from_vllm_config_rejected") {
    expect_error(create("P2pNcclAFDConnector", R"({"core_num": 8})"), one);
  } else if (name == "create_role_rank_out_of_range") {
    expect_error(resolve_role_rank({.data_parallel_size = 2, .data_parallel_rank = 1},
                                   Role::kAttention, {1, 1})
                     .error(),
                 one);
  } else if (name == "p2p_parse_extra_empty") {
    EXPECT_EQ(parse_no_extra_config("P2pNcclAFDConnector", raw).value(),
              one["ok"]["to_mapping"].dump());
  } else if (name == "p2p_parse_extra_nonempty") {
    expect_error(parse_no_extra_config("P2pNcclAFDConnector", raw).error(), one);
  } else if (name == "p2p_parse_extra_list_empty") {
    expect_error(ExtraConfig::parse("P2P", raw).error(), one);
  } else if (name == "parse_connector_extra_info_p2p_rejects") {
    expect_error(
        factory.parse_connector_extra_info("P2pNcclAFDConnector", R"({"core_num": 8})").error(),
        one);
  } else if (name == "parse_connector_extra_info_does_not_validate_role") {
    const Result<std::string> extra =
        connector_extra_config_from_source(R"({"afd": {"role": "decode"}})");
    ASSERT_TRUE(extra);
    EXPECT_TRUE(factory.parse_connector_extra_info("P2pNcclAFDConnector", *extra));
  } else {
    ADD_FAILURE() << "a case without a test";
  }
}

TEST_F(FactoryGoldenTest, RegistersLoadsAndCreatesAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"registry_builtin_names", "the composition root has more: src/builtin's test"},
      {"get_wrong_type", "a library may export anything: tests/plugins has one case for each"},
      {"get_not_a_class", "as above"},
      {"create_from_vllm_config", "needs the connector itself"},
      {"create_explicit_config_bad_topology_fails_in_mapping", "every ratio is legal here"},
      {"create_explicit_config_still_reads_extra_from_vllm_config", "there is one config"},
      {"base_extra_info_from_mapping", "the method is pure: the compiler refuses it"},
  };
  golden::run_cases(golden::load("config.json")["factory"], 15, inapplicable,
                    [&](const Json& one) { run(one); });
}

}  // namespace
}  // namespace afd
