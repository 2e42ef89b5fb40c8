#include <afd/control_payload.h>

#include <gtest/gtest.h>

#include "core/golden_testing.h"

namespace afd {
namespace {

using golden::Json;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

/// The payload of a golden `ok`.
ControlPayload to_payload(const Json& decoded) {
  ControlPayload payload;
  for (const Json& stage : decoded["dp_metadata_list"]) {
    payload.dp_metadata_list[stage["stage"]] = {stage["num_tokens_across_dp_cpu"],
                                                stage["max_tokens_across_dp_cpu"]};
  }
  payload.is_graph_capturing = decoded["is_graph_capturing"];
  payload.is_graph_replaying = decoded["is_graph_replaying"];
  payload.is_profile = decoded["is_profile"];
  payload.is_warmup = decoded["is_warmup"];
  return payload;
}

Result<ControlPayload> to_payload_from_input(const Json& input) {
  ControlPayload payload;
  for (const Json& stage : input["stages"]) {
    const auto counts = stage[1]["num_tokens"].get<std::vector<std::int32_t>>();
    Result<DpMetadata> metadata = DpMetadata{counts, 0};
    if (!stage[1].contains("max_tokens")) {
      metadata = DpMetadata::create(counts);
    } else {
      metadata->max_tokens_across_dp = stage[1]["max_tokens"];
    }
    if (!metadata) {
      return fail(std::move(metadata).error());
    }
    payload.dp_metadata_list[stage[0]] = *metadata;
  }
  payload.is_graph_capturing = input["is_graph_capturing"];
  payload.is_graph_replaying = input["is_graph_replaying"];
  payload.is_profile = input["is_profile"];
  payload.is_warmup = input["is_warmup"];
  return payload;
}

TEST(ControlPayloadGoldenTest, EncodesTheReferencesBytes) {
  const std::string types = "the types of ControlPayload rule it out: ";
  const golden::Inapplicable inapplicable = {
      {"explicit_max_one_element_vector", types + "a maximum is one integer"},
      {"explicit_max_two_elements", types + "a maximum is one integer"},
      {"int32_overflow", types + "counts are int32"},
      {"scalar_0d_counts", types + "counts are a list"},
      {"two_dimensional_counts", types + "counts are a flat list"},
      {"float_counts_truncate", types + "counts are integers"},
      {"bool_counts", types + "counts are integers"},
      {"flag_int_truthy", types + "flags are booleans"},
      {"flag_string_truthy", types + "flags are booleans"},
      {"flag_none", types + "flags are booleans"},
      {"stage_key_numeric_string", types + "stage keys are integers"},
      {"stage_key_float", types + "stage keys are integers"},
      {"stage_key_true", types + "stage keys are integers"},
      {"stage_key_nonnumeric", types + "stage keys are integers"},
      {"stage_key_collision_on_encode", types + "keys of a map are unique"},
  };
  // Our decoder is stricter than the reference's: these it refuses to read back.
  const std::map<std::string, std::string> not_read_back = {
      {"negative_stage", "a stage index is not negative"},
      {"int32_min", "a count is not negative"},
  };
  std::size_t num_refused = 0;
  std::size_t num_compared = 0;
  golden::run_cases(golden::load("control_payload.json")["encode"], 25, inapplicable,
                    [&](const Json& one) {
                      const Result<ControlPayload> payload = to_payload_from_input(one["input"]);
                      ASSERT_EQ(payload.has_value(), !one.contains("error"));
                      if (!payload) {
                        return;
                      }
                      const std::string encoded = encode_control_payload(*payload);
                      EXPECT_EQ(encoded, one["encoded"]);
                      EXPECT_EQ(encoded.size(), one["encoded_len"]);

                      const Result<ControlPayload> decoded = decode_control_payload(encoded);
                      if (not_read_back.contains(one["name"])) {
                        EXPECT_FALSE(decoded);
                        ++num_refused;
                        return;
                      }
                      ASSERT_TRUE(decoded) << decoded.error().message;
                      EXPECT_EQ(*decoded, *payload);
                      if (one.contains("decoded")) {
                        EXPECT_EQ(*decoded, to_payload(one["decoded"]["ok"]));
                        ++num_compared;
                      }
                    });
  EXPECT_EQ(num_refused, not_read_back.size());
  EXPECT_EQ(num_compared, 19u);
}

TEST(ControlPayloadGoldenTest, DecodesStrictly) {
  std::map<std::string, std::size_t> num_expected;
  golden::run_cases(golden::load("control_payload.json")["decode"], 42, {}, [&](const Json& one) {
    const Result<ControlPayload> decoded =
        decode_control_payload(from_hex(one["input_hex"].get<std::string>()));
    const std::string expect = one["expect"];
    ++num_expected[expect];
    if (expect == "accept") {
      ASSERT_TRUE(decoded) << decoded.error().message;
      EXPECT_EQ(*decoded, to_payload(one["ok"]));
    } else {
      // "either" is a key that stands twice, which we refuse.
      ASSERT_FALSE(decoded);
      EXPECT_EQ(decoded.error().code, ErrorCode::kProtocolMismatch);
      EXPECT_TRUE(decoded.error().message.starts_with("control payload: "))
          << decoded.error().message;
    }
  });
  EXPECT_EQ(num_expected,
            (std::map<std::string, std::size_t>{{"accept", 8}, {"either", 1}, {"reject", 33}}));
}

TEST(ControlPayloadGoldenTest, ReadsReceivedBodies) {
  const golden::Inapplicable inapplicable = {
      {"fragment_source_mismatch", "length and body are one frame here"},
      {"announced_negative", "the frame's length is unsigned"},
  };
  golden::run_cases(golden::load("control_payload.json")["recv"], 3, inapplicable,
                    [](const Json& one) {
                      const std::string body = from_hex(one["body_hex"].get<std::string>());
                      const Result<ControlPayload> decoded =
                          decode_control_payload(body.substr(0, one["announced_size"]));
                      ASSERT_EQ(decoded.has_value(), one.contains("ok"));
                      if (decoded) {
                        EXPECT_EQ(*decoded, to_payload(one["ok"]));
                      } else {
                        EXPECT_EQ(decoded.error().code, ErrorCode::kProtocolMismatch);
                      }
                    });
}

/// The message without "control payload: ", or "" where the text is accepted.
std::string problem(std::string_view text) {
  const Result<ControlPayload> decoded = decode_control_payload(text);
  if (decoded) {
    return "";
  }
  EXPECT_EQ(decoded.error().code, ErrorCode::kProtocolMismatch);
  const std::string_view prefix = "control payload: ";
  EXPECT_TRUE(decoded.error().message.starts_with(prefix));
  return decoded.error().message.substr(prefix.size());
}

/// The same for a document whose only stage 0 has these fields.
std::string stage_problem(const std::string& fields) {
  return problem(R"({"dp_metadata_list":{"0":{)" + fields + "}}}");
}

std::string key_problem(const std::string& key) {
  return problem(R"({"dp_metadata_list":{")" + key +
                 R"(":{"num_tokens_across_dp_cpu":[1],"max_tokens_across_dp_cpu":1}}})");
}

TEST(ControlPayloadTest, NamesWhatWasFoundWhereAndWhatWasWanted) {
  EXPECT_EQ(stage_problem(R"("num_tokens_across_dp_cpu":[7,"3"])"),
            "line 1, column 59: dp_metadata_list[\"0\"].num_tokens_across_dp_cpu[1] is \"3\", "
            "expected an integer in [0, 2147483647]");
  EXPECT_EQ(
      stage_problem(R"("max_tokens_across_dp_cpu":-1)"),
      "line 1, column 56: dp_metadata_list[\"0\"].max_tokens_across_dp_cpu is -1, expected an "
      "integer in [0, 2147483647]");
  EXPECT_EQ(stage_problem(R"("max_tokens_across_dp_cpu":1.0)"),
            "line 1, column 57: dp_metadata_list[\"0\"].max_tokens_across_dp_cpu is 1.0, expected "
            "an integer in [0, 2147483647]");
  EXPECT_EQ(stage_problem(R"("num_tokens_across_dp_cpu":{})"),
            "line 1, column 54: dp_metadata_list[\"0\"].num_tokens_across_dp_cpu is an object, "
            "expected an array of integers");
  EXPECT_EQ(stage_problem(R"("num_tokens_across_dp_cpu":[1])"),
            "line 1, column 57: dp_metadata_list[\"0\"] has no max_tokens_across_dp_cpu");
  EXPECT_EQ(problem("\n{\"dp_metadata_list\":\n {\"5\":true}}"),
            "line 3, column 10: dp_metadata_list[\"5\"] is true, expected an object");
  EXPECT_EQ(problem(R"({"dp_metadata_list":{},"is_profile":1})"),
            "line 1, column 38: is_profile is 1, expected true or false");
  EXPECT_EQ(problem("[]"), "line 1, column 1: the payload is an array, expected an object");
  EXPECT_EQ(problem("3"), "line 1, column 1: the payload is 3, expected an object");
  EXPECT_EQ(problem("{}"), "line 1, column 2: the payload has no dp_metadata_list");
}

TEST(ControlPayloadTest, StageKeysArePlainDecimal) {
  EXPECT_EQ(key_problem("0"), "");
  EXPECT_EQ(key_problem("2147483648"), "");
  EXPECT_EQ(key_problem("9223372036854775807"), "");
  for (const char* key : {"", "-1", "-0", "+1", "01", "00", " 1", "1 ", "1_0", "0x1", "1.0", "1e1",
                          "a", "true", "9223372036854775808", "\\u0000"}) {
    EXPECT_NE(key_problem(key).find("expected a stage index in plain decimal"), std::string::npos)
        << key;
  }
}

TEST(ControlPayloadTest, KnownKeysMayNotStandTwice) {
  EXPECT_EQ(problem(R"({"dp_metadata_list":{},"dp_metadata_list":{}})"),
            "line 1, column 41: the key dp_metadata_list stands twice in one object");
  EXPECT_NE(problem(R"({"dp_metadata_list":{},"is_warmup":true,"is_warmup":true})"), "");
  EXPECT_NE(stage_problem(R"("num_tokens_across_dp_cpu":[1],"num_tokens_across_dp_cpu":[1])"), "");
  EXPECT_NE(stage_problem(R"("max_tokens_across_dp_cpu":1,"max_tokens_across_dp_cpu":1)"), "");
  // Escapes do not hide one.
  EXPECT_NE(
      problem(
          R"({"dp_metadata_list":{"0":{"num_tokens_across_dp_cpu":[],"max_tokens_across_dp_cpu":0},)"
          R"("\u0030":{"num_tokens_across_dp_cpu":[],"max_tokens_across_dp_cpu":0}}})"),
      "");
}

TEST(ControlPayloadTest, UnknownKeysArePassedOverWithAllThatTheyHold) {
  const std::string unknown =
      R"("x":[{"dp_metadata_list":[1.5,null,"is_warmup"]},{"is_warmup":[[[]]]}],"y":1e300,)";
  const Result<ControlPayload> decoded = decode_control_payload(
      "{" + unknown + R"("dp_metadata_list":{"3":{)" + unknown +
      R"("num_tokens_across_dp_cpu":[2,0],)" + unknown + R"("max_tokens_across_dp_cpu":2}},)" +
      R"("z":{"is_profile":7},"is_profile":true})");
  ASSERT_TRUE(decoded) << decoded.error().message;
  ControlPayload wanted;
  wanted.dp_metadata_list[3] = {{2, 0}, 2};
  wanted.is_profile = true;
  EXPECT_EQ(*decoded, wanted);
}

TEST(ControlPayloadTest, IsBoundedInLengthDepthStagesAndRanks) {
  EXPECT_EQ(problem(std::string(kControlPayloadBytesMax + 1, ' ')),
            "the text has 1048577 bytes, expected at most 1048576");
  EXPECT_EQ(problem(R"({"x":)" + std::string(500'000, '[')),
            "line 1, column 21: arrays and objects lie more than 16 deep in each other");

  std::string stages;
  for (std::size_t i = 0; i <= kControlStagesMax; ++i) {
    stages += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"num_tokens_across_dp_cpu":[1],"max_tokens_across_dp_cpu":1})";
  }
  EXPECT_NE(problem(R"({"dp_metadata_list":{)" + stages + "}}")
                .find("dp_metadata_list has more than 1024 stages"),
            std::string::npos);

  std::string counts = "1";
  for (std::size_t i = 0; i < kControlRanksMax; ++i) {
    counts += ",1";
  }
  EXPECT_NE(
      stage_problem(R"("num_tokens_across_dp_cpu":[)" + counts + "]").find("more than 65536 ranks"),
      std::string::npos);
}

TEST(ControlPayloadTest, EveryTruncationIsRefused) {
  ControlPayload payload;
  payload.dp_metadata_list[0] = {{3, 5}, 5};
  payload.dp_metadata_list[12] = {{}, 0};
  payload.is_warmup = true;
  const std::string whole = encode_control_payload(payload);
  ASSERT_EQ(decode_control_payload(whole).value(), payload);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(decode_control_payload(whole.substr(0, size))) << size;
  }
}

TEST(ControlPayloadTest, EveryChangedByteIsRefusedOrReadAsWritten) {
  ControlPayload payload;
  payload.dp_metadata_list[1] = {{3, 50}, 50};
  const std::string whole = encode_control_payload(payload);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = whole;
      changed[i] = static_cast<char>(byte);
      if (const Result<ControlPayload> decoded = decode_control_payload(changed)) {
        EXPECT_EQ(decode_control_payload(encode_control_payload(*decoded)).value(), *decoded);
      }
    }
  }
}

TEST(ControlPayloadTest, ReadsBytesAsText) {
  const std::string text = R"({"dp_metadata_list":{}})";
  EXPECT_EQ(decode_control_payload(std::as_bytes(std::span(text))).value(), ControlPayload{});
  EXPECT_FALSE(decode_control_payload(std::span<const std::byte>{}));
}

}  // namespace
}  // namespace afd
