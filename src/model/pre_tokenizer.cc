#include "model/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8  // The header's way of asking which of its functions are meant.
#include <pcre2.h>

#include "model/json_file.h"

namespace afd::model {
namespace {

// Unicode's White_Space. PCRE2's own \s has U+180E besides, which is none since Unicode 6.3.
#define AFD_MODEL_SPACE                                                           \
  "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
  "\\x{205f}\\x{3000}"  // A macro, because it stands in the middle of literals.

// What "use_regex" means: contractions, words, numbers and signs, each with one space in front, and
// white space.
constexpr char kByteLevelRegex[] =
    "'(?:[sdmt]|ll|ve|re)"
    "| ?\\p{L}+"
    "| ?\\p{N}+"
    "| ?[^" AFD_MODEL_SPACE
    "\\p{L}\\p{N}]+"
    "|[" AFD_MODEL_SPACE "]+(?![^" AFD_MODEL_SPACE
    "])"
    "|[" AFD_MODEL_SPACE "]+";

std::string pcre2_message(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return std::string(reinterpret_cast<const char*>(text));
}

bool is_true(const JsonValue& object, const char* key, bool otherwise) {
  const JsonValue* const value = object.find(key);
  return value != nullptr && value->kind == JsonValue::Kind::kBoolean ? value->boolean : otherwise;
}

std::string text_of(const JsonValue& object, const char* key) {
  const JsonValue* const value = object.find(key);
  return value != nullptr && value->kind == JsonValue::Kind::kString ? value->text : std::string();
}

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct PreTokenizer::Pattern {
  std::unique_ptr<pcre2_code, FreeCode> code;

  /// Appends the matches in `text` and what lies between them, each as a word of its own.
  Result<void> isolate(std::string_view text, std::vector<std::string_view>& words) const;
};

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<void> PreTokenizer::Pattern::isolate(std::string_view text,
                                            std::vector<std::string_view>& words) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code.get(), nullptr));
  if (match == nullptr) {
    return fail(ErrorCode::kUnavailable, "no memory for a regular expression's match");
  }
  const auto* const subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  std::size_t done = 0;
  std::size_t from = 0;
  while (from < text.size()) {
    // The caller has checked the text; checking it again at each match would be quadratic.
    const int found = pcre2_match(code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                                  match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) {
      break;
    }
    if (found < 0) {
      return fail(ErrorCode::kInvalidArgument,
                  "the pre-tokenizer's regular expression failed at byte " + std::to_string(from) +
                      ": " + pcre2_message(found));
    }
    const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(match.get());
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    if (end <= begin || begin < done) {  // Empty, or moved back by \K: nothing to cut out.
      ++from;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) {
        ++from;
      }
      continue;
    }
    if (begin > done) {
      words.push_back(text.substr(done, begin - done));
    }
    words.push_back(text.substr(begin, end - begin));
    done = end;
    from = end;
  }
  if (done < text.size()) {
    words.push_back(text.substr(done));
  }
  return {};
}

Result<PreTokenizer> PreTokenizer::parse(const JsonValue& value) {
  PreTokenizer result;
  const std::string type = text_of(value, "type");
  const JsonValue* const steps = value.find("pretokenizers");
  if (type == "ByteLevel") {
    Result<void> added = result.add_step(value);
    if (!added) {
      return fail(std::move(added).error());
    }
    return result;
  }
  if (type != "Sequence" || steps == nullptr || steps->items.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "pre_tokenizer is " + shown(value) +
                    ", expected one of type \"ByteLevel\", or a \"Sequence\" that ends in one");
  }
  for (std::size_t i = 0; i < steps->items.size(); ++i) {
    const bool is_last = i + 1 == steps->items.size();
    if ((text_of(steps->items[i], "type") == "ByteLevel") != is_last) {
      return fail(ErrorCode::kInvalidArgument,
                  "step " + std::to_string(i) + " of the pre_tokenizer is " +
                      shown(steps->items[i]) +
                      ", expected \"Split\" or \"Digits\", and \"ByteLevel\" as the last");
    }
    Result<void> added = result.add_step(steps->items[i]);
    if (!added) {
      return fail(std::move(added).error());
    }
  }
  return result;
}

Result<void> PreTokenizer::add_step(const JsonValue& value) {
  const std::string type = text_of(value, "type");
  if (type == "ByteLevel") {
    add_prefix_space_ = is_true(value, "add_prefix_space", true);
    return is_true(value, "use_regex", true) ? add_pattern(kByteLevelRegex, false) : Result<void>();
  }
  if (type == "Digits") {
    return add_pattern(is_true(value, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", false);
  }
  const JsonValue* const pattern = value.find("pattern");
  const bool is_supported = type == "Split" && text_of(value, "behavior") == "Isolated" &&
                            !is_true(value, "invert", false) && pattern != nullptr &&
                            pattern->members.size() == 1;
  if (is_supported && !text_of(*pattern, "Regex").empty()) {
    return add_pattern(text_of(*pattern, "Regex"), false);
  }
  if (is_supported && !text_of(*pattern, "String").empty()) {
    return add_pattern(text_of(*pattern, "String"), true);
  }
  return fail(ErrorCode::kInvalidArgument,
              "a step of the pre_tokenizer is " + shown(value) +
                  ", expected \"ByteLevel\", \"Digits\", or \"Split\" with behavior \"Isolated\"");
}

Result<void> PreTokenizer::add_pattern(const std::string& regex, bool is_literal) {
  // In the dialect these expressions are written in, ^ and $ stand at every line. \C would cut
  // characters apart.
  const std::uint32_t options =
      PCRE2_UTF |
      (is_literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern pattern;
  pattern.code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                                   options, &error, &offset, nullptr));
  if (pattern.code == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "the pre-tokenizer's regular expression " + shown_name(regex) +
                    " is wrong at byte " + std::to_string(offset) + ": " + pcre2_message(error));
  }
  patterns_.push_back(std::move(pattern));
  return {};
}

Result<void> PreTokenizer::split(std::string_view text, std::string& storage,
                                 std::vector<std::string_view>& words) const {
  if (text.empty()) {
    return {};
  }
  if (patterns_.empty() && !add_prefix_space_) {
    words.push_back(text);
    return {};
  }
  if (add_prefix_space_ && text.front() != ' ') {
    storage = " " + std::string(text);
    text = storage;
  }
  std::vector<std::string_view> pieces = {text};
  std::vector<std::string_view> finer;
  for (const Pattern& pattern : patterns_) {
    finer.clear();
    for (std::string_view piece : pieces) {
      Result<void> isolated = pattern.isolate(piece, finer);
      if (!isolated) {
        return isolated;
      }
    }
    pieces.swap(finer);
  }
  words.insert(words.end(), pieces.begin(), pieces.end());
  return {};
}

}  // namespace afd::model
