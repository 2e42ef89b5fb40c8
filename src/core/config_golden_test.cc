#include <gtest/gtest.h>

#include <afd/config.h>
#include <afd/extra_config.h>

#include "core/afd_section.h"
#include "core/golden_testing.h"

namespace afd {
namespace {

using golden::Json;

/// The reference's rules: its three connectors and its strict topology.
ParseConfigOptions reference_options() {
  return {.connector_names = {"P2pNcclAFDConnector", "CAMP2pAFDConnector", "CAMAsyncAFDConnector"},
          .expected_role = {},
          .strict_topology = true};
}

/// F = 0 divides by zero on the reference.
std::string expected_message(const Json& error) {
  return error["kind"] == "ZeroDivisionError" ? "num_ffn_ranks must be positive, got 0"
                                              : error["message"].get<std::string>();
}

template <typename T>
void expect_error(const Result<T>& result, const Json& error) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().message, expected_message(error));
}

void expect_config(const Result<AfdConfig>& config, const Json& wanted) {
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->connector, wanted["connector"]);
  EXPECT_EQ(config->async_dp, wanted["async_dp"]);
  EXPECT_EQ(to_string(config->role), wanted["role"]);
  EXPECT_EQ(config->port, wanted["port"]);
  // The reference keeps a number as a host; ours is its text.
  EXPECT_EQ(config->host,
            wanted["host"].is_string() ? wanted["host"].get<std::string>() : wanted["host"].dump());
  EXPECT_EQ(config->num_attention_ranks, wanted["num_attention_ranks"]);
  EXPECT_EQ(config->num_ffn_ranks, wanted["num_ffn_ranks"]);
  EXPECT_EQ(config->compute_gate_on_attention, wanted["compute_gate_on_attention"]);
  EXPECT_EQ(config->is_attention_server(), wanted["is_attention_server"]);
  EXPECT_EQ(config->is_ffn_server(), wanted["is_ffn_server"]);
  EXPECT_EQ(config->compute_hash(), wanted["compute_hash"]);
}

/// A case that the reference parses without validation.
void expect_section(const Json& one) {
  const Result<AfdSection> section = read_section(parse_json(one["raw"].dump()).value());
  if (one.contains("error")) {
    expect_error(section, one["error"]);
    return;
  }
  ASSERT_TRUE(section) << section.error().message;
  const Json& wanted = one["ok"];
  EXPECT_EQ(section->connector.text, wanted["connector"]);
  EXPECT_EQ(section->async_dp, wanted["async_dp"]);
  EXPECT_EQ(section->role.text, wanted["role"]);
  EXPECT_EQ(section->port.value, wanted["port"]);
  EXPECT_EQ(section->host.text, wanted["host"]);
  EXPECT_EQ(section->num_attention_ranks.value, wanted["num_attention_ranks"]);
  EXPECT_EQ(section->num_ffn_ranks.value, wanted["num_ffn_ranks"]);
  EXPECT_EQ(section->compute_gate_on_attention, wanted["compute_gate_on_attention"]);
}

TEST(ConfigGoldenTest, EverySectionIsReadHereOrListed) {
  const std::map<std::string, std::string> listed = {
      {"source", "where the vectors come from"},
      {"supported_roles", "Role"},
      {"supported_connectors", "reference_options() above"},
      {"aliases", "below"},
      {"factory", "factory_golden_test.cc"},
  };
  const Json sections = golden::load("config.json");
  std::size_t num_read = 0;
  for (const auto& [section, cases] : sections.items()) {
    num_read += listed.contains(section) ? 0 : 1;
  }
  EXPECT_EQ(num_read, 5u);  // One test each, below.
  EXPECT_EQ(Json(reference_options().connector_names), sections["supported_connectors"]);
}

TEST(ConfigGoldenTest, ParsesAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"expected_role_unknown", "the expected role is a Role, which 'decode' is not"},
  };
  std::size_t num_without_validation = 0;
  golden::run_cases(golden::load("config.json")["parse"], 122, inapplicable, [&](const Json& one) {
    if (!one.value("validate", true)) {
      ++num_without_validation;
      expect_section(one);
      return;
    }
    ParseConfigOptions options = reference_options();
    if (one.contains("expected_role")) {
      options.expected_role = parse_role(one["expected_role"].get<std::string>()).value();
    }
    const Result<AfdConfig> config = parse_afd_config(one["raw"].dump(), options);
    if (one.contains("error")) {
      expect_error(config, one["error"]);
    } else {
      expect_config(config, one["ok"]);
    }
  });
  EXPECT_EQ(num_without_validation, 5u);
}

TEST(ConfigGoldenTest, KnowsEveryAlias) {
  const Json aliases = golden::load("config.json")["aliases"];
  EXPECT_EQ(aliases.size(), 5u);
  for (const auto& [alias, field] : aliases.items()) {
    const std::string text = R"({")" + alias + R"(": 1, ")" + field.get<std::string>() + R"(": 1})";
    const Result<AfdConfig> config = parse_afd_config(text, reference_options());
    ASSERT_FALSE(config);
    EXPECT_EQ(config.error().message, "duplicate AFD config field for '" +
                                          field.get<std::string>() +
                                          "': both alias and canonical key were provided");
  }
}

/// Runs the reference's function of that name and gives its result as JSON.
Result<Json> call(const std::string& function, const std::string& source,
                  const ParseConfigOptions& options) {
  const auto boolean = [](const Result<bool>& result) -> Result<Json> {
    return result ? Result<Json>(Json(*result)) : Result<Json>(fail(result.error()));
  };
  if (function == "has_afd_config") {
    return boolean(has_afd_config(source));
  }
  if (function == "is_afd_active") {
    return boolean(is_afd_active(source, options));
  }
  if (function == "is_afd_async_dp") {
    return boolean(is_afd_async_dp(source));
  }
  EXPECT_EQ(function, "connector_extra_config_from_source");
  const Result<std::string> extra = connector_extra_config_from_source(source);
  return extra ? Result<Json>(Json::parse(*extra)) : Result<Json>(fail(extra.error()));
}

TEST(ConfigGoldenTest, ReadsAnEnginesAdditionalConfigAsTheReference) {
  std::size_t num_parsed = 0;
  golden::run_cases(golden::load("config.json")["source_level"], 54, {}, [&](const Json& one) {
    ParseConfigOptions options = reference_options();
    if (one["kwargs"].contains("expected_role")) {
      options.expected_role = parse_role(one["kwargs"]["expected_role"].get<std::string>()).value();
    }
    const std::string source = one["source"].dump();
    const std::string function = one["function"];
    if (function == "parse_optional_afd_config" || function == "parse_afd_config") {
      ++num_parsed;
      const bool optional = function == "parse_optional_afd_config";
      Result<std::optional<AfdConfig>> config = std::optional<AfdConfig>();
      if (optional) {
        config = parse_optional_afd_config(source, options);
      } else if (Result<AfdConfig> required = parse_required_afd_config(source, options)) {
        config = *std::move(required);
      } else {
        config = fail(std::move(required).error());
      }
      if (one.contains("error")) {
        expect_error(config, one["error"]);
      } else if (one["ok"].is_null()) {
        ASSERT_TRUE(config);
        EXPECT_FALSE(config->has_value());
      } else {
        ASSERT_TRUE(config && *config);
        expect_config(**config, one["ok"]);
      }
      return;
    }
    const Result<Json> result = call(function, source, options);
    if (one.contains("error")) {
      expect_error(result, one["error"]);
    } else {
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(*result, one["ok"]);
    }
  });
  EXPECT_EQ(num_parsed, 19u);
}

TEST(ConfigGoldenTest, FindsTheExtraConfigAsTheReference) {
  golden::run_cases(golden::load("config.json")["extra_config"], 6, {}, [](const Json& one) {
    const Result<std::string> extra = connector_extra_config(one["raw"].dump());
    if (one.contains("error")) {
      expect_error(extra, one["error"]);
    } else {
      ASSERT_TRUE(extra) << extra.error().message;
      EXPECT_EQ(*extra, one["ok"].dump());
    }
  });
}

TEST(ConfigGoldenTest, HashesAsTheReference) {
  golden::run_cases(golden::load("config.json")["hash"], 6, {}, [](const Json& one) {
    AfdConfig config;
    const Json& fields = one["fields"];
    config.connector = fields.value("connector", config.connector);
    config.async_dp = fields.value("async_dp", config.async_dp);
    config.role = parse_role(fields.value("role", std::string("attention"))).value();
    config.host = fields.value("host", config.host);
    config.port = fields.value("port", config.port);
    config.num_attention_ranks = fields.value("num_attention_ranks", 1u);
    config.num_ffn_ranks = fields.value("num_ffn_ranks", 1u);
    EXPECT_EQ(config.compute_hash(), one["sha256"]);
  });
}

TEST(ConfigGoldenTest, CoercesConnectorSettingsAsTheReference) {
  std::map<std::string, std::size_t> num_calls;
  golden::run_cases(golden::load("config.json")["coercion_helpers"], 31, {}, [&](const Json& one) {
    const Json settings = {{"f", one["value"]}};
    const ExtraConfig extra = ExtraConfig::parse("Test", settings.dump()).value();
    const std::string function = one["function"];
    ++num_calls[function];
    Result<Json> result = Json();
    const auto take = [&](const auto& coerced) {
      if (!coerced) {
        result = fail(coerced.error());
      } else {
        result = Json(*coerced);
      }
    };
    if (function == "coerce_extra_int") {
      take(extra.integer("f", 99));
    } else if (function == "coerce_extra_positive_int") {
      take(extra.positive_integer("f", 99));
    } else if (function == "coerce_optional_extra_positive_int") {
      const Result<std::optional<std::int64_t>> coerced = extra.optional_positive_integer("f");
      if (!coerced) {
        result = fail(coerced.error());
      } else if (*coerced) {
        result = Json(**coerced);
      }
    } else {
      ASSERT_EQ(function, "coerce_extra_str");
      take(extra.word("f", "none"));
    }
    if (one.contains("error")) {
      expect_error(result, one["error"]);
    } else {
      ASSERT_TRUE(result) << result.error().message;
      EXPECT_EQ(*result, one["ok"]);
    }
  });
  EXPECT_EQ(num_calls.size(), 4u);
}

}  // namespace
}  // namespace afd
