#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include "model/json_file.h"
#include "model/utf8.h"

namespace afd::model {
namespace {

const Tokenizer& austen() {
  static const Tokenizer tokenizer = [] {
    Result<Tokenizer> loaded = Tokenizer::load(AFD_MODELS "/austen-moe/tokenizer.json");
    EXPECT_TRUE(loaded) << loaded.error().message;
    return *std::move(loaded);
  }();
  return tokenizer;
}

std::vector<std::int32_t> ids_of(const JsonValue& value) {
  std::vector<std::int32_t> ids;
  for (const JsonValue& id : value.items) {
    ids.push_back(static_cast<std::int32_t>(id.integer));
  }
  return ids;
}

TEST(TokenizerTest, GivesEveryGoldenIdAndText) {
  const Result<JsonValue> golden =
      read_json_file(AFD_MODELS "/austen-moe/tokenizer_golden.json", 1u << 20);
  ASSERT_TRUE(golden) << golden.error().message;
  const JsonValue* const cases = golden->find("cases");
  ASSERT_NE(cases, nullptr);
  ASSERT_GT(cases->items.size(), 20u);
  for (const JsonValue& item : cases->items) {
    const std::string& text = item.find("text")->text;
    const Result<std::vector<std::int32_t>> ids = austen().encode(text);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_EQ(*ids, ids_of(*item.find("ids"))) << text;
    const Result<std::string> decoded = austen().decode(*ids, /*skip_special=*/false);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, item.find("decoded")->text);
  }
}

}  // namespace
}  // namespace afd::model
