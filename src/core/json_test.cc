#include "core/json.h"

#include <gtest/gtest.h>

namespace afd {
namespace {

std::string problem(std::string_view text, const JsonLimits& limits = {}) {
  const Result<JsonValue> parsed = parse_json(text, limits);
  if (parsed) {
    return "";
  }
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  return parsed.error().message;
}

TEST(JsonTest, KeepsOrderKindsAndNumbersAsWritten) {
  const std::string text = R"({"z":[null,true,-5,1.50,1e2,9223372036854775807,9223372036854775808,)"
                           R"(-123456789012345678901],"a":{"é\"\\":""},"e":[],"o":{}})";
  const JsonValue value = parse_json(text).value();
  EXPECT_EQ(write_json(value), text);
  EXPECT_EQ(parse_json(write_json(value, 3)).value().members.size(), 4u);
  EXPECT_EQ(write_json(parse_json(write_json(value, 3)).value()), text);
  EXPECT_EQ(value.find("z")->items[2].kind, JsonValue::Kind::kInteger);
  EXPECT_EQ(value.find("z")->items[3].kind, JsonValue::Kind::kOtherNumber);
  EXPECT_EQ(value.find("z")->items[5].kind, JsonValue::Kind::kInteger);
  EXPECT_EQ(value.find("z")->items[6].kind, JsonValue::Kind::kOtherNumber);
  EXPECT_EQ(value.find("y"), nullptr);
}

TEST(JsonTest, IndentsByLevel) {
  EXPECT_EQ(write_json(parse_json(R"({"a":[1,{"b":2}],"c":{}})").value(), 2),
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": {}\n}");
}

TEST(JsonTest, ReadsScalarsAtTheTop) {
  EXPECT_EQ(parse_json(" 7 ").value().integer, 7);
  EXPECT_EQ(parse_json(R"("\u00e9")").value().text, "\xc3\xa9");
  EXPECT_EQ(problem(""),
            "line 1, column 1: syntax error while parsing value - unexpected end of "
            "input; expected '[', '{', or a literal");
}

TEST(JsonTest, BoundsDepthAndLength) {
  EXPECT_EQ(problem("[[[]]]", {.depth_max = 3}), "");
  EXPECT_EQ(problem("[[[{}]]]", {.depth_max = 3}),
            "line 1, column 4: arrays and objects lie more than 3 deep in each other");
  EXPECT_EQ(problem("[[],[],[]]", {.depth_max = 2}), "");
  EXPECT_EQ(problem("[1, 2]", {.bytes_max = 6}), "");
  EXPECT_EQ(problem("[1, 2]", {.bytes_max = 5}), "the text has 6 bytes, expected at most 5");
}

TEST(JsonTest, FindsAKeyThatStandsTwiceInOneObjectOnly) {
  EXPECT_EQ(problem(R"([{"a":1},{"a":{"a":2}}])"), "");
  EXPECT_EQ(problem("{\n\"a\":1,\"\\u0061\":2}"),
            "line 2, column 14: the key \"a\" stands twice in one object");
}

TEST(JsonTest, ManyKeysInOneObjectTakeLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i) {
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  }
  // With a search per key this would take minutes, and the test's time limit would end it.
  EXPECT_EQ(parse_json(text + "}", {.bytes_max = 2'000'000}).value().members.size(), 100'000u);
}

TEST(PrintableTest, EscapesWhatIsNoTextAndCutsBetweenCharacters) {
  EXPECT_EQ(printable("a\n\x7f\x01 \xc3\xa9"), "a\\x0a\\x7f\\x01 \xc3\xa9");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\x80\xe0\x80\x80\xed\xa0\x80\xf4\x90\x80\x80"),
            "\\xc0\\x80\\xe0\\x80\\x80\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80");
  EXPECT_EQ(printable("\xf0\x9f\x98\x80!"), "\xf0\x9f\x98\x80!");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(printable("ab\xc3\xa9\xc3\xa9", 3), "ab\xc3\xa9...");
}

}  // namespace
}  // namespace afd
