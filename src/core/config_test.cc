#include <afd/config.h>

#include <limits>

#include <gtest/gtest.h>

#include <afd/extra_config.h>
#include <afd/topology.h>

namespace afd {
namespace {

const ParseConfigOptions kOptions = {
    .connector_names = {"P2pNcclAFDConnector", "CAMAsyncAFDConnector", "VendorConnector"}};

Result<AfdConfig> parse(std::string_view text) {
  return parse_afd_config(text, kOptions);
}

/// The message of the error, or "" where there is none.
std::string problem(std::string_view text) {
  const Result<AfdConfig> config = parse(text);
  if (config) {
    return "";
  }
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  return config.error().message;
}

TEST(ConfigTest, AcceptsEveryRegisteredConnectorAndNoOther) {
  EXPECT_EQ(parse(R"({"connector": "VendorConnector"})").value().connector, "VendorConnector");
  EXPECT_EQ(problem(R"({"connector": "CAMP2pAFDConnector"})"),
            "AFD connector must be one of ('P2pNcclAFDConnector', 'CAMAsyncAFDConnector', "
            "'VendorConnector'), got 'CAMP2pAFDConnector'");
  const Result<AfdConfig> one =
      parse_afd_config(R"({"connector": 5})", {.connector_names = {"VendorConnector"}});
  EXPECT_EQ(one.error().message, "AFD connector must be one of ('VendorConnector',), got 5");
}

TEST(ConfigTest, AcceptsEveryRatioUnlessTheStrictRuleIsAskedFor) {
  EXPECT_EQ(parse(R"({"num_attention_ranks": 3, "num_ffn_ranks": 5})").value().num_ffn_ranks, 5u);
  ParseConfigOptions strict = kOptions;
  strict.strict_topology = true;
  EXPECT_FALSE(parse_afd_config(R"({"num_attention_ranks": 3, "num_ffn_ranks": 5})", strict));
  // The rule belongs to one connector.
  EXPECT_TRUE(parse_afd_config(
      R"({"connector": "VendorConnector", "num_attention_ranks": 3, "num_ffn_ranks": 5})", strict));
}

TEST(ConfigTest, RefusesNoFfnRanks) {
  EXPECT_EQ(problem(R"({"num_ffn_ranks": 0})"), "num_ffn_ranks must be positive, got 0");
}

TEST(ConfigTest, RefusesIntegersBeyondEveryRangeInsteadOfWrapping) {
  EXPECT_EQ(problem(R"({"port": 65537})"), "AFD port must be in 1..65535, got 65537");
  EXPECT_EQ(problem(R"({"port": 0})"), "AFD port must be in 1..65535, got 0");
  EXPECT_EQ(problem(R"({"port": 4294967297})"), "AFD port must be in 1..65535, got 4294967297");
  EXPECT_EQ(problem(R"({"port": 18446744073709551617})"),
            "AFD port must be in 1..65535, got 18446744073709551617");
  EXPECT_EQ(problem(R"({"port": "-18446744073709551615"})"),
            "AFD port must be in 1..65535, got -18446744073709551615");
  EXPECT_EQ(problem(R"({"num_attention_ranks": 4294967297})"),
            "num_attention_ranks must be at most 65536, got 4294967297");
  EXPECT_EQ(problem(R"({"num_attention_ranks": 99999999999999999999})"),
            "num_attention_ranks must be at most 65536, got 99999999999999999999");
  EXPECT_EQ(problem(R"({"num_ffn_ranks": -99999999999999999999})"),
            "num_ffn_ranks must be positive, got -99999999999999999999");
  EXPECT_EQ(problem(R"({"num_ffn_ranks": 9223372036854775808})"),
            "num_ffn_ranks must be at most 65536, got 9223372036854775808");
}

TEST(ConfigTest, ReadsIntegersAsPythonDoes) {
  const auto port = [](std::string_view value) {
    const Result<AfdConfig> config = parse(R"({"port": )" + std::string(value) + "}");
    return config ? std::to_string(config->port) : config.error().message;
  };
  EXPECT_EQ(port(R"("1_000")"), "1000");
  EXPECT_EQ(port(R"("0007")"), "7");
  EXPECT_EQ(port(R"("\t 80\n")"), "80");
  EXPECT_EQ(port(R"("1__0")"), "port must be an integer, got '1__0'");
  EXPECT_EQ(port(R"("_1")"), "port must be an integer, got '_1'");
  EXPECT_EQ(port(R"("1_")"), "port must be an integer, got '1_'");
  EXPECT_EQ(port(R"("+")"), "port must be an integer, got '+'");
  EXPECT_EQ(port(R"("1 0")"), "port must be an integer, got '1 0'");
  EXPECT_EQ(port(R"("12.0")"), "port must be an integer, got '12.0'");
  EXPECT_EQ(port("1239.0"), "port must be an integer, got 1239.0");
  EXPECT_EQ(port("1e3"), "port must be an integer, got 1000.0");
  EXPECT_EQ(port("1e22"), "port must be an integer, got 1e+22");
  EXPECT_EQ(port("-0.00001"), "port must be an integer, got -1e-05");
  EXPECT_EQ(port("0.0001"), "port must be an integer, got 0.0001");
  EXPECT_EQ(port("[1, \"a\", null, {\"b\": true}]"),
            "port must be an integer, got [1, 'a', None, {'b': True}]");
  EXPECT_EQ(port("true"), "port must be an integer, got True");
}

TEST(ConfigTest, ShowsStringsAsPythonDoes) {
  EXPECT_EQ(problem(R"({"role": "it's"})"),
            R"(AFD role must be one of ('attention', 'ffn'), got "it's")");
  EXPECT_EQ(problem(R"({"role": "'\""})"),
            R"(AFD role must be one of ('attention', 'ffn'), got '\'"')");
  EXPECT_EQ(
      problem(R"({"role": "a\\b\nc\u0001\u007f\u00e9\u0085"})"),
      "AFD role must be one of ('attention', 'ffn'), got 'a\\\\b\\nc\\x01\\x7f\xc3\xa9\\x85'");
}

TEST(ConfigTest, CutsLongValuesInMessages) {
  const std::string message = problem(R"({"role": ")" + std::string(100'000, 'x') + R"("})");
  EXPECT_LT(message.size(), 300u);
  EXPECT_TRUE(message.ends_with("xxx...")) << message;
}

TEST(ConfigTest, SaysWhereTheJsonIsWrong) {
  EXPECT_EQ(problem("{\"port\": 1,\n  \"role\": }"),
            "AFD config: line 2, column 11: syntax error while parsing value - unexpected '}'; "
            "expected '[', '{', or a literal");
  EXPECT_EQ(problem("{\"port\": 1"),
            "AFD config: line 1, column 10: syntax error while parsing object - unexpected end of "
            "input; expected '}'");
  EXPECT_EQ(problem(""),
            "AFD config: line 1, column 1: syntax error while parsing value - "
            "unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(problem("{}{}"),
            "AFD config: line 1, column 3: syntax error while parsing value - "
            "unexpected '{'; expected end of input");
}

TEST(ConfigTest, RefusesAKeyThatStandsTwice) {
  EXPECT_EQ(problem(R"({"port": 1, "role": "ffn", "port": 2})"),
            R"(AFD config: line 1, column 33: the key "port" stands twice in one object)");
  EXPECT_EQ(problem(R"({"connector_extra_config": {"a": {"b": 1, "b": 1}}})"),
            R"(AFD config: line 1, column 45: the key "b" stands twice in one object)");
}

TEST(ConfigTest, RefusesHostileTextWithoutDamage) {
  EXPECT_EQ(
      problem(std::string(1'000'000, '[')),
      "AFD config: line 1, column 65: arrays and objects lie more than 64 deep in each other");
  EXPECT_EQ(problem(std::string(2'000'000, ' ')),
            "AFD config: the text has 2000000 bytes, expected at most 1048576");
  EXPECT_NE(problem(R"({"port": 1)" + std::string(5000, '0') + "}"), "");
  EXPECT_NE(problem(R"({"port": 1e999})"), "");
  EXPECT_NE(problem(R"({"port": NaN})"), "");
  EXPECT_NE(problem(R"({"port": Infinity})"), "");
  EXPECT_NE(problem("{\"host\": \"\xff\"}"), "");
  EXPECT_NE(problem("{\"host\": \"\xed\xa0\x80\"}"), "");  // A lone surrogate.
  EXPECT_NE(problem(R"({"host": "\ud800"})"), "");
  EXPECT_EQ(problem(std::string("{}\0", 3)), "AFD config: line 1, column 3: a zero byte");
  EXPECT_EQ(problem("\xef\xbb\xbf{}"),
            "AFD config: the text starts with a byte order mark, expected plain UTF-8");
  // Messages stay valid UTF-8 whatever they quote.
  EXPECT_EQ(problem("{\"a\xff"),
            "AFD config: line 1, column 4: syntax error while parsing object key - invalid string: "
            "ill-formed UTF-8 byte; last read: '\"a\\xff'; expected string literal");
}

TEST(ConfigTest, RefusesAHostThatIsNoAddress) {
  EXPECT_EQ(problem(R"({"host": null})"), "AFD host must be non-empty");
  EXPECT_EQ(problem(R"({"host": false})"), "AFD host must be non-empty");
  EXPECT_EQ(problem(R"({"host": []})"), "AFD host must be non-empty");
  EXPECT_EQ(problem(R"({"host": 0.0})"), "AFD host must be non-empty");
  EXPECT_EQ(problem(R"({"host": true})"), "AFD host must be a string, got True");
  EXPECT_EQ(problem(R"({"host": ["a"]})"), "AFD host must be a string, got ['a']");
  EXPECT_EQ(parse(R"({"host": 12.5})").value().host, "12.5");
}

TEST(ConfigTest, BooleansBeyondIntRangeAreNoBooleans) {
  EXPECT_EQ(problem(R"({"async": 18446744073709551616})"),
            "async must be a boolean, got 18446744073709551616");
  EXPECT_TRUE(
      parse(R"({"compute_gate_on_attention": " tRuE\n"})").value().compute_gate_on_attention);
}

TEST(ConfigTest, KeepsExtraSettingsAsTheyWereWritten) {
  const AfdConfig config =
      parse(R"({"connector_extra_config": {"z": 1.50, "a": [123456789012345678901, "\u00e9\n"]}})")
          .value();
  EXPECT_EQ(config.connector_extra_config,
            "{\"z\":1.50,\"a\":[123456789012345678901,\"\xc3\xa9\\u000a\"]}");
}

TEST(ConfigTest, PrintsItselfInTableOrderAndReadsItselfBack) {
  AfdConfig config;
  config.connector = "VendorConnector";
  config.role = Role::kFfn;
  config.host = "a\"b";
  config.port = 7;
  config.num_attention_ranks = 5;
  config.num_ffn_ranks = 3;
  config.compute_gate_on_attention = true;
  config.connector_extra_config = R"({"core_num":[8]})";
  const std::string text = to_json(config);
  EXPECT_EQ(text, R"({
  "connector": "VendorConnector",
  "async_dp": false,
  "role": "ffn",
  "port": 7,
  "host": "a\"b",
  "num_attention_ranks": 5,
  "num_ffn_ranks": 3,
  "compute_gate_on_attention": true,
  "session": {
    "bind_host": "",
    "addresses": [],
    "secret_file": "",
    "tls_certificate_file": "",
    "tls_key_file": "",
    "tls_ca_file": "",
    "insecure": false,
    "heartbeat_interval_s": 1,
    "heartbeat_limit_s": 5
  },
  "connector_extra_config": {
    "core_num": [
      8
    ]
  }
})");
  EXPECT_EQ(parse(text).value(), config);
}

TEST(ConfigTest, ReadsAndPrintsHowRanksMeet) {
  EXPECT_EQ(parse("{}").value().session, SessionConfig());
  EXPECT_EQ(parse(R"({"session": {}})").value().session, SessionConfig());
  const AfdConfig config = parse(R"({"session": {"bind_host": "::", "addresses": ["10.0.0.2"],
      "secret_file": "/run/afd/secret", "heartbeat_interval_s": 2, "heartbeat_limit_s": "9"}})")
                               .value();
  EXPECT_EQ(config.session, (SessionConfig{.bind_host = "::",
                                           .addresses = {"10.0.0.2"},
                                           .secret_file = "/run/afd/secret",
                                           .heartbeat_interval = std::chrono::seconds(2),
                                           .heartbeat_limit = std::chrono::seconds(9)}));
  EXPECT_EQ(parse(to_json(config)).value(), config);
  EXPECT_TRUE(parse(R"({"session": {"insecure": true}})").value().session.insecure);
}

TEST(ConfigTest, RefusesAWayToMeetThatIsNone) {
  const auto problem_of = [](const std::string& session) {
    return problem(R"({"session": )" + session + "}");
  };
  EXPECT_EQ(problem_of("[]"), "AFD session must be a mapping, got list");
  EXPECT_EQ(problem_of(R"({"port": 1})"),
            "unknown AFD session field 'port'; known: 'bind_host', 'addresses', 'secret_file', "
            "'tls_certificate_file', 'tls_key_file', 'tls_ca_file', 'insecure', "
            "'heartbeat_interval_s', 'heartbeat_limit_s'");
  EXPECT_EQ(problem_of(R"({"bind_host": 1})"), "AFD session bind_host must be a string, got 1");
  EXPECT_EQ(problem_of(R"({"bind_host": "a b"})"),
            "session bind_host must be an address, got 'a b'");
  EXPECT_EQ(problem_of(R"({"addresses": "10.0.0.2"})"),
            "AFD session addresses must be a list of strings, got '10.0.0.2'");
  EXPECT_EQ(problem_of(R"({"addresses": [null]})"),
            "AFD session addresses must be a string, got None");
  EXPECT_EQ(problem_of(R"({"addresses": [""]})"), "session addresses must be addresses, got ''");
  EXPECT_EQ(problem_of(R"({"addresses": ["1","2","3","4","5","6","7","8","9"]})"),
            "session addresses must be at most 8, got 9");
  EXPECT_EQ(problem_of(R"({"heartbeat_interval_s": 0})"),
            "session heartbeat_interval must be in 1..3600 s, got 0");
  EXPECT_EQ(problem_of(R"({"heartbeat_limit_s": 1})"),
            "session heartbeat_limit must be at least three times the interval and at most 3600 s, "
            "got 1 s "
            "with an interval of 1 s");
  EXPECT_EQ(
      problem_of(R"({"heartbeat_limit_s": 3601})"),
      "session heartbeat_limit must be at least three times the interval and at most 3600 s, got "
      "3601 s with an interval of 1 s");
  EXPECT_EQ(problem_of(R"({"insecure": true, "secret_file": "f"})"),
            "session insecure excludes secret_file and TLS");
  for (const char* some : {R"({"tls_key_file": "k", "tls_ca_file": "a"})",
                           R"({"tls_certificate_file": "c", "tls_ca_file": "a"})",
                           R"({"tls_certificate_file": "c", "tls_key_file": "k"})"}) {
    EXPECT_EQ(
        problem_of(some),
        "session tls_certificate_file, tls_key_file and tls_ca_file are given together or not "
        "at all");
  }
  EXPECT_EQ(problem_of(R"({"insecure": true, "tls_certificate_file": "c", "tls_key_file": "k",
                           "tls_ca_file": "a"})"),
            "session insecure excludes secret_file and TLS");
}

TEST(ConfigTest, PrintsExtraSettingsThatAreNoJsonAsText) {
  AfdConfig config;
  config.connector_extra_config = "{oops";
  EXPECT_NE(to_json(config).find(R"("connector_extra_config": "{oops")"), std::string::npos);
}

TEST(ConfigTest, AnEngineWithoutAdditionalConfigHasNone) {
  for (const char* source : {"", "null", "{}", " {\"x\": 1} "}) {
    EXPECT_FALSE(parse_optional_afd_config(source, kOptions).value()) << source;
    EXPECT_FALSE(has_afd_config(source).value()) << source;
  }
  EXPECT_EQ(has_afd_config("{").error().message.substr(0, 26), "additional_config: line 1,");
}

TEST(ExtraConfigTest, NamesEveryUnknownKey) {
  const ExtraConfig extra =
      ExtraConfig::parse("CAMP2P", R"({"z": 1, "core_num": 2, "a": 3})").value();
  EXPECT_TRUE(extra.check_keys({"core_num", "z", "a"}));
  const Result<void> checked = extra.check_keys({"core_num", "quant_mode"});
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(checked.error().message,
            "unknown CAMP2P connector_extra_config fields: 'a', 'z'; known: 'core_num', "
            "'quant_mode'");
}

TEST(ExtraConfigTest, AbsentKeysGiveTheFallback) {
  for (const char* text : {"", "null", "{}"}) {
    const ExtraConfig extra = ExtraConfig::parse("Test", text).value();
    EXPECT_TRUE(extra.empty());
    EXPECT_FALSE(extra.has("f"));
    EXPECT_EQ(extra.to_json(), "{}");
    EXPECT_EQ(extra.integer("f", -4).value(), -4);
    EXPECT_EQ(extra.positive_integer("f", 8).value(), 8);
    EXPECT_EQ(extra.optional_positive_integer("f").value(), std::nullopt);
    EXPECT_EQ(extra.boolean("f", true).value(), true);
    EXPECT_EQ(extra.word("f", "Request").value(), "Request");
  }
}

TEST(ExtraConfigTest, RefusesValuesThatDoNotFit) {
  const ExtraConfig extra =
      ExtraConfig::parse("Test", R"({"big": 9223372036854775808, "maybe": "maybe"})").value();
  EXPECT_EQ(extra.integer("big", 0).error().message,
            "big must be a 64-bit integer, got 9223372036854775808");
  EXPECT_EQ(extra.boolean("maybe", false).error().message, "maybe must be a boolean, got 'maybe'");
  EXPECT_EQ(ExtraConfig::parse("Test", "[]").error().message,
            "Test connector_extra_config must be a mapping");
  EXPECT_EQ(ExtraConfig::parse("Test", "{").error().message.substr(0, 45),
            "Test connector_extra_config: line 1, column 1");
}

TEST(ExtraConfigTest, AConnectorWithoutSettingsRefusesAny) {
  EXPECT_EQ(parse_no_extra_config("Quiet", "").value(), "{}");
  EXPECT_EQ(parse_no_extra_config("Quiet", "{}").value(), "{}");
  EXPECT_EQ(parse_no_extra_config("Quiet", R"({"core_num": 8})").error().message,
            "Quiet does not support connector_extra_config");
  EXPECT_EQ(parse_no_extra_config("Quiet", "[]").error().message,
            "Quiet connector_extra_config must be a mapping");
}

}  // namespace
}  // namespace afd
