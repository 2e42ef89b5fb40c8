#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "model/json_file.h"
#include "model/utf8.h"

namespace afd::model {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr char kAusten[] = AFD_MODELS "/austen-moe/tokenizer.json";

const Tokenizer& austen() {
  static const Tokenizer tokenizer = [] {
    Result<Tokenizer> loaded = Tokenizer::load(kAusten);
    EXPECT_TRUE(loaded) << loaded.error().message;
    return *std::move(loaded);
  }();
  return tokenizer;
}

Ids ids_of(const JsonValue& value) {
  Ids ids;
  for (const JsonValue& id : value.items) {
    ids.push_back(static_cast<std::int32_t>(id.integer));
  }
  return ids;
}

Ids encode(const Tokenizer& tokenizer, const std::string& text) {
  const Result<Ids> ids = tokenizer.encode(text);
  EXPECT_TRUE(ids) << ids.error().message;
  return ids ? *ids : Ids();
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
    const Ids ids = encode(austen(), text);
    EXPECT_EQ(ids, ids_of(*item.find("ids"))) << text;
    const Result<std::string> decoded = austen().decode(ids, /*skip_special=*/false);
    ASSERT_TRUE(decoded) << decoded.error().message;
    EXPECT_EQ(*decoded, item.find("decoded")->text);
  }
}

TEST(TokenizerTest, GivesThePromptsAndTextsOfTheModelsGoldens) {
  const Result<JsonValue> golden = read_json_file(AFD_MODELS "/austen-moe/golden.json", 1u << 20);
  ASSERT_TRUE(golden) << golden.error().message;
  for (const JsonValue& item : golden->find("cases")->items) {
    if (const JsonValue* const prompt = item.find("prompt"); prompt != nullptr) {
      EXPECT_EQ(austen().encode_prompt(prompt->text).value(), ids_of(*item.find("prompt_ids")))
          << prompt->text;
    }
    EXPECT_EQ(austen().decode(ids_of(*item.find("greedy_ids")), /*skip_special=*/true).value(),
              item.find("greedy_text")->text);
  }
}

TEST(TokenizerTest, AnyTextComesBack) {
  std::mt19937 generator(1);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (std::size_t length = generator() % 20; length > 0; --length) {
      char32_t code_point = generator() % (generator() % 2 == 0 ? 0x80 : 0x110000);
      if (code_point >= 0xd800 && code_point < 0xe000) {
        code_point = ' ';
      }
      append_utf8(text, code_point);
    }
    EXPECT_EQ(austen().decode(encode(austen(), text), false).value(), text);
  }
}

TEST(TokenizerTest, SpecialTokensInTheTextAreFoundAndCanBeLeftOut) {
  const Ids ids = encode(austen(), "x<|end_of_text|>y");
  EXPECT_EQ(ids, (Ids{87, 2047, 88}));
  EXPECT_EQ(austen().decode(ids, /*skip_special=*/true).value(), "xy");
  EXPECT_EQ(austen().encode_prompt("").value(), (Ids{2046}));
  EXPECT_EQ(austen().vocab_size(), 2048u);
}

TEST(TokenizerTest, WhiteSpaceIsWhatUnicodeSaysItIs) {
  // U+180E was white space once; U+0085 and U+3000 are. A run gives its last to the word behind.
  EXPECT_EQ(encode(austen(), "\xe3\x80\x80\xc2\x85x").size(), 6u);
  EXPECT_EQ(encode(austen(), "\xe1\xa0\x8e!").size(), 4u);
}

TEST(TokenizerTest, RefusesTextThatIsNotUtf8) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"abc\xff", "the text is not UTF-8 at byte 3"},
      {"\xc3", "the text is not UTF-8 at byte 0"},
      {"a\xc0\x80", "the text is not UTF-8 at byte 1"},
      {"\xed\xa0\x80", "the text is not UTF-8 at byte 0"},
      {"\xf4\x90\x80\x80", "the text is not UTF-8 at byte 0"},
  };
  for (const auto& item : cases) {
    const Result<Ids> ids = austen().encode(item.text);
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(ids.error().message, item.message);
  }
}

TEST(TokenizerTest, RefusesIdsWithoutAToken) {
  for (std::int32_t id : {-1, 2048, std::numeric_limits<std::int32_t>::max()}) {
    const Result<std::string> text = austen().decode({&id, 1}, false);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().message,
              "id " + std::to_string(id) + " has no token, expected one below 2048");
  }
}

TEST(TokenizerTest, AWordOfAMillionBytesIsNoTrouble) {
  // Quadratic merging would take hours, and the test's time limit ends it.
  std::string text;
  for (std::uint32_t i = 0, seed = 1; i < (1u << 20); ++i) {
    seed = seed * 1664525u + 1013904223u;
    text += static_cast<char>('a' + (seed >> 24) % 26);
  }
  EXPECT_EQ(austen().decode(encode(austen(), text), false).value(), text);
  const std::string same(1u << 20, 'e');
  EXPECT_EQ(austen().decode(encode(austen(), same), false).value(), same);
}

TEST(StreamDecoderTest, NeverGivesHalfACharacterAndLosesNothing) {
  // Every way of cutting bytes into tokens: here each byte is one, so that each prefix is seen.
  const std::string text = "na\xc3\xafve \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x99\x82!";
  StreamDecoder decoder(austen());
  std::string all;
  for (char byte : text) {
    const std::int32_t id = [&] {
      for (std::int32_t candidate = 0; candidate < 256; ++candidate) {
        if (austen().decode_bytes({&candidate, 1}, false).value() == std::string(1, byte)) {
          return candidate;
        }
      }
      return -1;
    }();
    ASSERT_GE(id, 0);
    const Result<std::string> piece = decoder.push(id);
    ASSERT_TRUE(piece) << piece.error().message;
    EXPECT_EQ(find_invalid_utf8(*piece), std::string::npos);
    all += *piece;
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(decoder.finish(), "");
}

/// Ids 0 to 255 of this tokenizer are single bytes, in the order of bytes that are spelled as
/// themselves first.
std::vector<std::int32_t> id_of_each_byte() {
  std::vector<std::int32_t> ids(256, -1);
  for (std::int32_t id = 0; id < 256; ++id) {
    const std::string bytes = austen().decode_bytes({&id, 1}, false).value();
    ids[static_cast<unsigned char>(bytes[0])] = id;
  }
  return ids;
}

TEST(StreamDecoderTest, GivesWhatDecodingAllAtOnceGivesForAnyBytes) {
  const std::vector<std::int32_t> byte_ids = id_of_each_byte();
  std::mt19937 generator(1);
  const unsigned char interesting[] = {0x00, 0x41, 0x7f, 0x80, 0xbf, 0xc0, 0xc2, 0xc3, 0xdf, 0xe0,
                                       0xa0, 0x9f, 0xed, 0xef, 0xf0, 0x90, 0xf4, 0x8f, 0xff};
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (std::size_t length = generator() % 9; length > 0; --length) {
      ids.push_back(byte_ids[interesting[generator() % sizeof interesting]]);
    }
    StreamDecoder decoder(austen());
    std::string all;
    for (std::int32_t id : ids) {
      const std::string piece = decoder.push(id).value();
      EXPECT_EQ(find_invalid_utf8(piece), std::string::npos);
      all += piece;
    }
    all += decoder.finish();
    EXPECT_EQ(all, austen().decode(ids, true).value());
    EXPECT_EQ(find_invalid_utf8(all), std::string::npos);
  }
}

TEST(StreamDecoderTest, BrokenSequencesBecomeReplacementCharactersAtOnce) {
  const std::vector<std::int32_t> byte_ids = id_of_each_byte();
  const auto push = [&](StreamDecoder& decoder, unsigned char byte) {
    return decoder.push(byte_ids[byte]).value();
  };
  StreamDecoder decoder(austen());
  EXPECT_EQ(push(decoder, 0xf0), "");
  EXPECT_EQ(push(decoder, 0x9f), "");
  EXPECT_EQ(push(decoder, 'a'),
            "\xEF\xBF\xBD"
            "a");  // One for the part that could have been.
  EXPECT_EQ(push(decoder, 0x80), "\xEF\xBF\xBD");
  EXPECT_EQ(push(decoder, 0xe4), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(push(decoder, 'b'), "b");
}

TEST(StreamDecoderTest, SpecialTokensLeaveAnUnfinishedCharacterAlone) {
  const std::vector<std::int32_t> byte_ids = id_of_each_byte();
  StreamDecoder decoder(austen());
  EXPECT_EQ(decoder.push(byte_ids[0xc3]).value(), "");
  EXPECT_EQ(decoder.push(2046).value(), "");
  EXPECT_EQ(decoder.push(byte_ids[0xaf]).value(), "\xc3\xaf");
  EXPECT_FALSE(decoder.push(-5));
}

/// The austen tokenizer's file with something changed.
class TokenizerFile : public ::testing::Test {
 protected:
  JsonValue file_ = read_json_file(kAusten, 1u << 24).value();

  static JsonValue& member(JsonValue& object, const std::string& key) {
    for (JsonMember& candidate : object.members) {
      if (candidate.key == key) {
        return candidate.value;
      }
    }
    object.members.push_back({key, {}});
    return object.members.back().value;
  }
  JsonValue& at(std::initializer_list<const char*> path) {
    JsonValue* value = &file_;
    for (const char* key : path) {
      value = &member(*value, key);
    }
    return *value;
  }
  void set(std::initializer_list<const char*> path, const std::string& json) {
    at(path) = parse_json(json).value();
  }
  std::string problem() const {
    const Result<Tokenizer> tokenizer = Tokenizer::parse(write_json(file_));
    if (tokenizer) {
      return "accepted";
    }
    EXPECT_EQ(tokenizer.error().code, ErrorCode::kInvalidArgument);
    return tokenizer.error().message;
  }
  Tokenizer parse() const {
    Result<Tokenizer> tokenizer = Tokenizer::parse(write_json(file_));
    EXPECT_TRUE(tokenizer) << tokenizer.error().message;
    return *std::move(tokenizer);
  }
};

TEST_F(TokenizerFile, RefusesOtherKinds) {
  set({"model", "type"}, "\"WordPiece\"");
  EXPECT_EQ(problem(), "model has type \"WordPiece\", expected \"BPE\": nothing else is supported");
  set({"model"}, "null");
  EXPECT_EQ(problem(), "model is missing, expected one of type \"BPE\"");
}

TEST_F(TokenizerFile, RefusesSettingsThatChangeTheResult) {
  const struct {
    std::initializer_list<const char*> path;
    const char* value;
    const char* message;
  } cases[] = {
      {{"model", "dropout"}, "0.1", "model.dropout is 0.1, expected none: it is not supported"},
      {{"model", "end_of_word_suffix"},
       "\"</w>\"",
       "model.end_of_word_suffix is \"</w>\", expected none: it is not supported"},
      {{"model", "byte_fallback"},
       "true",
       "model.byte_fallback is true, expected false: it is not supported"},
      {{"normalizer"}, "{\"type\":\"NFC\"}", "normalizer is {\"type\":\"NFC\"}, expected none"},
      {{"decoder"},
       "{\"type\":\"Metaspace\"}",
       "decoder is {\"type\":\"Metaspace\"}, expected one of type \"ByteLevel\""},
      {{"decoder"}, "null", "decoder is missing, expected one of type \"ByteLevel\""},
      {{"pre_tokenizer"}, "null", "pre_tokenizer is missing, expected one of type \"ByteLevel\""},
      {{"pre_tokenizer"},
       "{\"type\":\"Whitespace\"}",
       "pre_tokenizer is {\"type\":\"Whitespace\"}, expected one of type \"ByteLevel\", or a "
       "\"Sequence\" that ends in one"},
      {{"post_processor"},
       "{\"type\":\"RobertaProcessing\"}",
       "post_processor is {\"type\":\"RobertaProcessing\"}, expected one of type "
       "\"TemplateProcessing\" or \"ByteLevel\""},
  };
  for (const auto& item : cases) {
    const JsonValue before = file_;
    set(item.path, item.value);
    EXPECT_EQ(problem(), item.message);
    file_ = before;
  }
}

TEST_F(TokenizerFile, RefusesMergesThatCannotBe) {
  const auto with_merges = [&](const char* merges) {
    set({"model", "merges"}, merges);
    return problem();
  };
  const std::string expected = "expected a list of pairs: \"a b\" or [\"a\", \"b\"]";
  EXPECT_EQ(with_merges("null"), "model.merges is missing, " + expected);
  EXPECT_EQ(with_merges("[]"), "model.merges is empty, " + expected);
  EXPECT_EQ(with_merges("\"h e\""), "model.merges is a string, " + expected);
  EXPECT_EQ(with_merges("{\"h\":\"e\"}"), "model.merges is an object, " + expected);
  EXPECT_EQ(with_merges("[\"ab\"]"), "merge 0, \"ab\", is no pair of tokens");
  EXPECT_EQ(with_merges("[\"a b c\"]"), "merge 0, \"a b c\", is no pair of tokens");
  EXPECT_EQ(with_merges("[\"h e\", 3]"), "merge 1, 3, is no pair of tokens");
  EXPECT_EQ(with_merges("[[\"h\"]]"), "merge 0, [\"h\"], is no pair of tokens");
  EXPECT_EQ(with_merges("[[1.5, \"e\"]]"), "merge 0, [1.5,\"e\"], is no pair of tokens");
  EXPECT_EQ(with_merges("[\"h qqq\"]"),
            "merge 0, \"h qqq\", needs token \"qqq\", which model.vocab lacks");
  EXPECT_EQ(with_merges("[\"z q\"]"),
            "merge 0, \"z q\", needs token \"zq\", which model.vocab lacks");
  EXPECT_EQ(with_merges("[\"h e\", \"h e\"]"), "merge 1, \"h e\", was there before");
}

TEST_F(TokenizerFile, ReadsMergesAsTextAndAsPairs) {
  for (const char* merges : {"[\"h e\"]", "[[\"h\", \"e\"]]", "[[\"h\", \"e\"], \"t h\"]"}) {
    set({"model", "merges"}, merges);
    EXPECT_EQ(encode(parse(), "he"), encode(austen(), "he")) << merges;
  }
}

TEST_F(TokenizerFile, OfEqualPairsTheLeftmostIsMergedFirst) {
  set({"model", "merges"}, "[\"l l\"]");
  const Tokenizer tokenizer = parse();
  const Ids ids = encode(tokenizer, "lll");
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(tokenizer.decode({ids.data(), 1}, false).value(), "ll");
}

TEST_F(TokenizerFile, OfTwoPairsTheOneOfLowerRankIsMergedFirst) {
  set({"model", "merges"}, "[\"h e\", \"t h\", \"th e\"]");
  EXPECT_EQ(encode(parse(), "the").size(), 2u);
  set({"model", "merges"}, "[\"t h\", \"h e\", \"th e\"]");
  EXPECT_EQ(encode(parse(), "the").size(), 1u);
}

TEST_F(TokenizerFile, RefusesVocabulariesThatCannotBe) {
  set({"model", "vocab", "a"}, "-1");
  EXPECT_EQ(problem(), "the id of token \"a\" is -1, expected an integer in [0, 5120)");
  set({"model", "vocab", "a"}, "5120");
  EXPECT_EQ(problem(), "the id of token \"a\" is 5120, expected an integer in [0, 5120)");
  set({"model", "vocab", "a"}, "\"0\"");
  EXPECT_EQ(problem(), "the id of token \"a\" is \"0\", expected an integer in [0, 5120)");
  set({"model", "vocab", "a"}, "65");
  EXPECT_NE(problem().find("is taken by another token"), std::string::npos);
  std::erase_if(at({"model", "vocab"}).members,
                [](const JsonMember& member) { return member.key == "a"; });
  EXPECT_EQ(problem(), "model.vocab has no token \"a\" for byte 97, expected one for every byte");
  set({"model", "vocab"}, "{}");
  EXPECT_EQ(problem(),
            "model.vocab is missing or empty, expected an object of tokens and their ids");
}

TEST_F(TokenizerFile, RefusesAddedTokensThatCannotBe) {
  const auto with_added = [&](const std::string& added) {
    set({"added_tokens"}, "[" + added + "]");
    return problem();
  };
  // The template needs begin_of_text, so that all but the refused ones fail there.
  EXPECT_EQ(with_added("{\"id\": 2046, \"content\": \"\"}"),
            "an added token is {\"id\":2046,\"content\":\"\"}, expected an object with id and "
            "content");
  EXPECT_EQ(with_added("{\"id\": 5, \"content\": \"<x>\"}"),
            "id 5 of added token \"<x>\" is taken by another token");
  EXPECT_EQ(with_added("{\"id\": 5, \"content\": \"a\"}"), "added token \"a\" has id 5 and id 64");
  EXPECT_EQ(with_added("{\"content\": \"<x>\"}"),
            "the id of added token \"<x>\" is missing, expected an integer in [0, 5118)");
  EXPECT_EQ(with_added("{\"id\": 2050, \"content\": \"<x>\", \"lstrip\": true}"),
            "added token \"<x>\" has lstrip, expected none: it is not supported");
}

TEST_F(TokenizerFile, RefusesTemplatesThatCannotBe) {
  set({"post_processor", "single"}, "[]");
  EXPECT_EQ(problem(), "the post_processor's template lacks the sequence A");
  set({"post_processor", "single"}, "[{\"SpecialToken\": {\"id\": \"<x>\", \"type_id\": 0}}]");
  EXPECT_TRUE(problem().starts_with("the post_processor's template has {\"SpecialToken\""));
  set({"post_processor", "single"},
      "[{\"Sequence\": {\"id\": \"A\"}}, {\"Sequence\": {\"id\": \"A\"}}]");
  EXPECT_TRUE(problem().starts_with("the post_processor's template has {\"Sequence\""));
}

TEST_F(TokenizerFile, TheTemplatesTokensStandWhereItSays) {
  set({"post_processor", "single"},
      "[{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"<|begin_of_text|>\"}}]");
  EXPECT_EQ(parse().encode_prompt("a").value(), (Ids{64, 2046}));
  set({"post_processor"}, "null");
  EXPECT_EQ(parse().encode_prompt("a").value(), (Ids{64}));
}

TEST_F(TokenizerFile, OfTwoAddedTokensAtOnePlaceTheLongerIsFound) {
  JsonValue& added = at({"added_tokens"});
  for (const auto& [id, content] :
       {std::pair{2048, "<|begin"}, {2049, "<|begin|>"}, {2050, "in|"}}) {
    added.items.push_back(parse_json("{\"id\": " + std::to_string(id) + ", \"content\": \"" +
                                     content + "\", \"special\": false}")
                              .value());
  }
  const Tokenizer tokenizer = parse();
  EXPECT_EQ(encode(tokenizer, "<|begin|>a"), (Ids{2049, 64}));
  EXPECT_EQ(encode(tokenizer, "<|begina"), (Ids{2048, 64}));
  EXPECT_EQ(encode(tokenizer, "<|begin_of_text|>"), (Ids{2046}));
  EXPECT_EQ(tokenizer.vocab_size(), 2051u);
  EXPECT_EQ(tokenizer.decode(Ids{2049}, /*skip_special=*/true).value(), "<|begin|>");
}

TEST_F(TokenizerFile, ASequenceOfSplitsCutsInTurn) {
  set({"pre_tokenizer"},
      "{\"type\": \"Sequence\", \"pretokenizers\": ["
      "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[h]\"}, \"behavior\": \"Isolated\", "
      "\"invert\": false},"
      "{\"type\": \"Digits\", \"individual_digits\": false},"
      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}");
  const Tokenizer tokenizer = parse();
  // "the" is one token, but not across the cut.
  EXPECT_EQ(encode(austen(), "the").size(), 1u);
  EXPECT_EQ(encode(tokenizer, "the").size(), 3u);
  EXPECT_EQ(tokenizer.decode(encode(tokenizer, "the 42 ships"), false).value(), "the 42 ships");
}

TEST_F(TokenizerFile, RefusesStepsOfASequenceThatItDoesNotKnow) {
  const auto with_steps = [&](const std::string& steps) {
    set({"pre_tokenizer"}, "{\"type\": \"Sequence\", \"pretokenizers\": [" + steps + "]}");
    return problem();
  };
  const std::string last = "{\"type\": \"ByteLevel\", \"use_regex\": false}";
  EXPECT_NE(with_steps(""), "accepted");
  EXPECT_EQ(with_steps("{\"type\": \"Digits\"}"),
            "step 0 of the pre_tokenizer is {\"type\":\"Digits\"}, expected \"Split\" or "
            "\"Digits\", and \"ByteLevel\" as the last");
  EXPECT_EQ(with_steps(last + "," + last).substr(0, 29), "step 0 of the pre_tokenizer i");
  EXPECT_EQ(with_steps("{\"type\": \"Punctuation\"}," + last),
            "a step of the pre_tokenizer is {\"type\":\"Punctuation\"}, expected \"ByteLevel\", "
            "\"Digits\", or \"Split\" with behavior \"Isolated\"");
  EXPECT_EQ(with_steps("{\"type\": \"Split\", \"behavior\": \"Isolated\", \"pattern\": "
                       "{\"Regex\": \"(\"}}," +
                       last),
            "the pre-tokenizer's regular expression \"(\" is wrong at byte 1: missing closing "
            "parenthesis");
}

TEST_F(TokenizerFile, ARegexThatNeverEndsIsAnErrorAndNoHang) {
  set({"pre_tokenizer"},
      "{\"type\": \"Sequence\", \"pretokenizers\": ["
      "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a|aa)+$\"}, \"behavior\": \"Isolated\"},"
      "{\"type\": \"ByteLevel\", \"use_regex\": false}]}");
  const Result<Ids> ids = parse().encode(std::string(40, 'a') + "b");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().message,
            "the pre-tokenizer's regular expression failed at byte 0: match limit exceeded");
}

TEST_F(TokenizerFile, APrefixSpaceMakesTheFirstWordLikeTheOthers) {
  set({"pre_tokenizer", "add_prefix_space"}, "true");
  const Tokenizer tokenizer = parse();
  EXPECT_EQ(encode(tokenizer, "the"), encode(austen(), " the"));
  EXPECT_EQ(encode(tokenizer, " the"), encode(austen(), " the"));
}

TEST_F(TokenizerFile, WholeWordsGoBeforeMergesWhereTheFileSaysSo) {
  set({"model", "ignore_merges"}, "true");
  set({"model", "merges"}, "[\"q u\"]");
  EXPECT_EQ(encode(parse(), "the"), encode(austen(), "the"));
  EXPECT_EQ(encode(parse(), "thezz").size(), 5u);
}

TEST(TokenizerTest, NamesTheFile) {
  const Result<Tokenizer> tokenizer = Tokenizer::load("/nowhere/tokenizer.json");
  ASSERT_FALSE(tokenizer);
  EXPECT_EQ(tokenizer.error().message,
            "/nowhere/tokenizer.json: No such file or directory (errno 2)");
  EXPECT_EQ(Tokenizer::parse("[]").error().message, "the text is an array, expected an object");
}

}  // namespace
}  // namespace afd::model
