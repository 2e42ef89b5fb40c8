#include "model/tokenizer.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "core/json.h"
#include "model/bpe.h"
#include "model/json_file.h"
#include "model/pre_tokenizer.h"
#include "model/utf8.h"

namespace afd::model {
namespace {

constexpr std::uint64_t kFileBytesMax = 256u << 20;
constexpr std::size_t kTextBytesMax = std::size_t{1} << 30;

// Ids beyond twice the number of tokens and this are no vocabulary's: a table of them would be
// mostly holes, and as large as somebody likes.
constexpr std::size_t kIdsToSpare = 1024;

bool is_true(const JsonValue& object, const char* key) {
  const JsonValue* const value = object.find(key);
  return value != nullptr && value->kind == JsonValue::Kind::kBoolean && value->boolean;
}

std::string text_of(const JsonValue& object, const char* key) {
  const JsonValue* const value = object.find(key);
  return value != nullptr && value->kind == JsonValue::Kind::kString ? value->text : std::string();
}

/// The member, or null where it is missing or null.
const JsonValue* find_set(const JsonValue& object, const char* key) {
  const JsonValue* const value = object.find(key);
  return value == nullptr || value->kind == JsonValue::Kind::kNull ? nullptr : value;
}

/// Vocabularies spell each byte as a printable character: those that are printable in Latin-1 as
/// themselves, the others as U+0100 and up, in order.
bool is_spelled_as_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

char32_t spelling_of(unsigned byte) {
  if (is_spelled_as_itself(byte)) {
    return byte;
  }
  char32_t next = 0x100;
  for (unsigned other = 0; other < byte; ++other) {
    next += is_spelled_as_itself(other) ? 0 : 1;
  }
  return next;
}

/// From spelled characters back to bytes.
class Spelling {
 public:
  Spelling() {
    for (unsigned byte = 0; byte < 256; ++byte) {
      bytes_[spelling_of(byte)] = static_cast<char>(byte);
    }
  }

  /// The bytes, or the text itself where a character of it spells none.
  std::string bytes_of(std::string_view text) const {
    std::string bytes;
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Head head = read_utf8(text.substr(at));
      const auto found = bytes_.find(head.code_point);
      if (head.kind != Utf8Head::Kind::kCharacter || found == bytes_.end()) {
        return std::string(text);
      }
      bytes += found->second;
      at += head.bytes;
    }
    return bytes;
  }

 private:
  std::unordered_map<char32_t, char> bytes_;
};

struct AddedToken {
  std::int32_t id;
  std::string content;
};

/// Added tokens that are looked for in the same pass over a text.
class AddedTokens {
 public:
  void add(AddedToken token) {
    by_first_byte_[static_cast<unsigned char>(token.content.front())].push_back(std::move(token));
  }

  /// Of two that begin at the same place the longer one is found.
  void sort() {
    for (std::vector<AddedToken>& tokens : by_first_byte_) {
      std::sort(tokens.begin(), tokens.end(), [](const AddedToken& a, const AddedToken& b) {
        return a.content.size() > b.content.size();
      });
    }
  }

  const AddedToken* at_front(std::string_view text) const {
    for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text.front())]) {
      if (text.starts_with(token.content)) {
        return &token;
      }
    }
    return nullptr;
  }

 private:
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
};

/// A stretch of the text: an added token, or what is still to be encoded.
struct Piece {
  std::string_view text;
  std::int32_t added_id = -1;
};

std::vector<Piece> cut_out(const std::vector<Piece>& pieces, const AddedTokens& tokens) {
  std::vector<Piece> finer;
  for (const Piece& piece : pieces) {
    if (piece.added_id >= 0) {
      finer.push_back(piece);
      continue;
    }
    std::size_t done = 0;
    for (std::size_t at = 0; at < piece.text.size();) {
      const AddedToken* const token = tokens.at_front(piece.text.substr(at));
      if (token == nullptr) {
        ++at;
        continue;
      }
      if (at > done) {
        finer.push_back({piece.text.substr(done, at - done)});
      }
      finer.push_back({piece.text.substr(at, token->content.size()), token->id});
      at += token->content.size();
      done = at;
    }
    if (done < piece.text.size()) {
      finer.push_back({piece.text.substr(done)});
    }
  }
  return finer;
}

}  // namespace

struct Tokenizer::State {
  struct Token {
    std::string bytes;
    bool exists = false;
    bool is_special = false;
  };

  Result<void> read(const JsonValue& json);
  Result<void> read_model(const JsonValue& model);
  Result<void> read_merges(const JsonValue& model);
  Result<void> read_added_tokens(const JsonValue& added_tokens);
  Result<void> read_added_token(const JsonValue& value);
  Result<void> read_post_processor(const JsonValue& value);
  Result<void> read_template(const JsonValue& value);
  Result<std::int32_t> read_id(const JsonValue* value, const std::string& what) const;
  Result<void> set_token(std::int32_t id, std::string bytes, const std::string& what);

  std::int64_t ids_end = 0;  ///< No id of this file is as large.
  std::vector<Token> tokens;
  std::unordered_map<std::string, std::int32_t> vocab;        ///< As spelled in the file.
  std::unordered_map<std::string, std::int32_t> whole_words;  ///< With "ignore_merges", by bytes.
  Bpe bpe;
  PreTokenizer pre_tokenizer;
  AddedTokens raw_added;         ///< Looked for first.
  AddedTokens normalized_added;  ///< Looked for in what is left.
  std::vector<std::int32_t> prompt_prefix;
  std::vector<std::int32_t> prompt_suffix;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  const Result<std::string> text = read_text_file(path, kFileBytesMax);
  if (!text) {
    return fail(text.error());
  }
  Result<Tokenizer> tokenizer = parse(*text);
  if (!tokenizer) {
    return fail(std::move(tokenizer).error().with_context(path));
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view json_text) {
  const Result<JsonValue> json =
      parse_json(json_text, {.bytes_max = static_cast<std::size_t>(kFileBytesMax)});
  if (!json) {
    return fail(json.error());
  }
  auto state = std::make_unique<State>();
  Result<void> done = state->read(*json);
  if (!done) {
    return fail(std::move(done).error());
  }
  return Tokenizer(std::move(state));
}

Result<void> Tokenizer::State::read(const JsonValue& json) {
  if (json.kind != JsonValue::Kind::kObject) {
    return fail(ErrorCode::kInvalidArgument,
                "the text is " + std::string(kind_of(json)) + ", expected an object");
  }
  const JsonValue* const normalizer = find_set(json, "normalizer");
  if (normalizer != nullptr) {
    const JsonValue* const steps = normalizer->find("normalizers");
    if (text_of(*normalizer, "type") != "Sequence" || steps == nullptr || !steps->items.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "normalizer is " + shown(*normalizer) + ", expected none");
    }
  }
  const JsonValue* const decoder = find_set(json, "decoder");
  if (decoder == nullptr || text_of(*decoder, "type") != "ByteLevel") {
    return fail(ErrorCode::kInvalidArgument,
                "decoder is " + (decoder == nullptr ? "missing" : shown(*decoder)) +
                    ", expected one of type \"ByteLevel\"");
  }
  const JsonValue* const pre = find_set(json, "pre_tokenizer");
  if (pre == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "pre_tokenizer is missing, expected one of type \"ByteLevel\"");
  }
  Result<PreTokenizer> parsed = PreTokenizer::parse(*pre);
  if (!parsed) {
    return fail(std::move(parsed).error());
  }
  pre_tokenizer = *std::move(parsed);
  const JsonValue* const model = find_set(json, "model");
  if (model == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "model is missing, expected one of type \"BPE\"");
  }
  const JsonValue* const vocabulary = model->find("vocab");
  const JsonValue* const added = find_set(json, "added_tokens");
  const std::size_t num_tokens = (vocabulary == nullptr ? 0 : vocabulary->members.size()) +
                                 (added == nullptr ? 0 : added->items.size());
  ids_end = static_cast<std::int64_t>(2 * num_tokens + kIdsToSpare);
  Result<void> done = read_model(*model);
  if (!done) {
    return done;
  }
  if (added != nullptr) {
    done = read_added_tokens(*added);
    if (!done) {
      return done;
    }
  }
  const JsonValue* const post = find_set(json, "post_processor");
  return post == nullptr ? Result<void>() : read_post_processor(*post);
}

Result<std::int32_t> Tokenizer::State::read_id(const JsonValue* value,
                                               const std::string& what) const {
  if (value == nullptr || value->kind != JsonValue::Kind::kInteger || value->integer < 0 ||
      value->integer >= ids_end) {
    return fail(ErrorCode::kInvalidArgument,
                "the id of " + what + " is " + (value == nullptr ? "missing" : shown(*value)) +
                    ", expected an integer in [0, " + std::to_string(ids_end) + ")");
  }
  return static_cast<std::int32_t>(value->integer);
}

Result<void> Tokenizer::State::set_token(std::int32_t id, std::string bytes,
                                         const std::string& what) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens.size()) {
    tokens.resize(index + 1);
  }
  if (tokens[index].exists) {
    return fail(ErrorCode::kInvalidArgument,
                "id " + std::to_string(id) + " of " + what + " is taken by another token");
  }
  tokens[index].bytes = std::move(bytes);
  tokens[index].exists = true;
  return {};
}

Result<void> Tokenizer::State::read_model(const JsonValue& model) {
  if (text_of(model, "type") != "BPE") {
    return fail(ErrorCode::kInvalidArgument, "model has type \"" + text_of(model, "type") +
                                                 "\", expected \"BPE\": nothing else is supported");
  }
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonValue* const value = find_set(model, key);
    const bool is_empty =
        value == nullptr || (value->kind == JsonValue::Kind::kString && value->text.empty());
    if (!is_empty) {
      return fail(ErrorCode::kInvalidArgument, "model." + std::string(key) + " is " +
                                                   shown(*value) +
                                                   ", expected none: it is not supported");
    }
  }
  if (is_true(model, "byte_fallback")) {
    return fail(ErrorCode::kInvalidArgument,
                "model.byte_fallback is true, expected false: it is not supported");
  }

  const JsonValue* const entries = find_set(model, "vocab");
  if (entries == nullptr || entries->kind != JsonValue::Kind::kObject || entries->members.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "model.vocab is missing or empty, expected an object of tokens and their ids");
  }
  const Spelling spelling;
  for (const auto& [spelled, value] : entries->members) {
    const std::string what = "token " + shown_name(spelled);
    const Result<std::int32_t> id = read_id(&value, what);
    if (!id) {
      return fail(id.error());
    }
    Result<void> set = set_token(*id, spelling.bytes_of(spelled), what);
    if (!set) {
      return set;
    }
    vocab.emplace(spelled, *id);
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string spelled;
    append_utf8(spelled, spelling_of(byte));
    const auto found = vocab.find(spelled);
    if (found == vocab.end()) {
      return fail(ErrorCode::kInvalidArgument, "model.vocab has no token " + shown_name(spelled) +
                                                   " for byte " + std::to_string(byte) +
                                                   ", expected one for every byte");
    }
    bpe.set_byte(static_cast<std::uint8_t>(byte), found->second);
  }
  if (is_true(model, "ignore_merges")) {
    for (const auto& [spelled, id] : vocab) {
      whole_words.emplace(spelling.bytes_of(spelled), id);
    }
  }
  return read_merges(model);
}

Result<void> Tokenizer::State::read_merges(const JsonValue& model) {
  const JsonValue* const merges = find_set(model, "merges");
  constexpr const char* kExpected = "expected a list of pairs: \"a b\" or [\"a\", \"b\"]";
  if (merges == nullptr || merges->kind != JsonValue::Kind::kArray || merges->items.empty()) {
    std::string problem = "model.merges is missing, ";
    if (merges != nullptr && merges->kind != JsonValue::Kind::kArray) {
      problem = "model.merges is " + std::string(kind_of(*merges)) + ", ";
    } else if (merges != nullptr) {
      problem = "model.merges is empty, ";
    }
    return fail(ErrorCode::kInvalidArgument, problem + kExpected);
  }
  for (std::size_t i = 0; i < merges->items.size(); ++i) {
    const JsonValue& value = merges->items[i];
    const std::string what = "merge " + std::to_string(i) + ", " + shown(value) + ",";
    std::string left;
    std::string right;
    if (value.kind == JsonValue::Kind::kString) {
      const std::size_t space = value.text.find(' ');
      if (space != std::string::npos && value.text.find(' ', space + 1) == std::string::npos) {
        left = value.text.substr(0, space);
        right = value.text.substr(space + 1);
      }
    } else if (value.kind == JsonValue::Kind::kArray && value.items.size() == 2 &&
               value.items[0].kind == JsonValue::Kind::kString &&
               value.items[1].kind == JsonValue::Kind::kString) {
      left = value.items[0].text;
      right = value.items[1].text;
    }
    if (left.empty() || right.empty()) {
      return fail(ErrorCode::kInvalidArgument, what + " is no pair of tokens");
    }
    const auto left_id = vocab.find(left);
    const auto right_id = vocab.find(right);
    const auto merged_id = vocab.find(left + right);
    for (const auto& [found, spelled] :
         {std::pair{left_id, left}, {right_id, right}, {merged_id, left + right}}) {
      if (found == vocab.end()) {
        return fail(ErrorCode::kInvalidArgument,
                    what + " needs token " + shown_name(spelled) + ", which model.vocab lacks");
      }
    }
    if (!bpe.add_merge(left_id->second, right_id->second, merged_id->second)) {
      return fail(ErrorCode::kInvalidArgument, what + " was there before");
    }
  }
  return {};
}

Result<void> Tokenizer::State::read_added_tokens(const JsonValue& added_tokens) {
  if (added_tokens.kind != JsonValue::Kind::kArray) {
    return fail(ErrorCode::kInvalidArgument,
                "added_tokens is " + std::string(kind_of(added_tokens)) + ", expected an array");
  }
  for (const JsonValue& value : added_tokens.items) {
    Result<void> done = read_added_token(value);
    if (!done) {
      return done;
    }
  }
  raw_added.sort();
  normalized_added.sort();
  return {};
}

Result<void> Tokenizer::State::read_added_token(const JsonValue& value) {
  const std::string content = text_of(value, "content");
  if (content.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "an added token is " + shown(value) + ", expected an object with id and content");
  }
  const std::string what = "added token " + shown_name(content);
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    if (is_true(value, key)) {
      return fail(ErrorCode::kInvalidArgument,
                  what + " has " + key + ", expected none: it is not supported");
    }
  }
  const Result<std::int32_t> id = read_id(value.find("id"), what);
  if (!id) {
    return fail(id.error());
  }
  // Many vocabularies list their special tokens too: the same token, if the id is the same.
  const auto known = vocab.find(content);
  if (known != vocab.end() && known->second != *id) {
    return fail(ErrorCode::kInvalidArgument, what + " has id " + std::to_string(*id) + " and id " +
                                                 std::to_string(known->second));
  }
  if (known == vocab.end()) {
    Result<void> set = set_token(*id, content, what);
    if (!set) {
      return set;
    }
    vocab.emplace(content, *id);
  }
  tokens[static_cast<std::size_t>(*id)].is_special = is_true(value, "special");
  (is_true(value, "normalized") ? normalized_added : raw_added).add({*id, content});
  return {};
}

Result<void> Tokenizer::State::read_post_processor(const JsonValue& value) {
  const std::string type = text_of(value, "type");
  if (type == "ByteLevel") {
    return {};  // Changes offsets only.
  }
  if (type == "TemplateProcessing") {
    return read_template(value);
  }
  const JsonValue* const steps = value.find("processors");
  if (type == "Sequence" && steps != nullptr) {
    for (const JsonValue& step : steps->items) {
      Result<void> done =
          text_of(step, "type") == "Sequence"
              ? fail(ErrorCode::kInvalidArgument, "post_processor has a Sequence inside a Sequence")
              : read_post_processor(step);
      if (!done) {
        return done;
      }
    }
    return {};
  }
  return fail(ErrorCode::kInvalidArgument,
              "post_processor is " + shown(value) +
                  ", expected one of type \"TemplateProcessing\" or \"ByteLevel\"");
}

Result<void> Tokenizer::State::read_template(const JsonValue& value) {
  const JsonValue* const single = value.find("single");
  const JsonValue* const special_tokens = value.find("special_tokens");
  bool text_seen = false;
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
  for (const JsonValue& step : single == nullptr ? std::vector<JsonValue>() : single->items) {
    const JsonValue* const sequence = step.find("Sequence");
    const JsonValue* const special = step.find("SpecialToken");
    if (sequence != nullptr && text_of(*sequence, "id") == "A" && !text_seen) {
      text_seen = true;
      continue;
    }
    const JsonValue* const listed = special == nullptr || special_tokens == nullptr
                                        ? nullptr
                                        : special_tokens->find(text_of(*special, "id"));
    const JsonValue* const ids = listed == nullptr ? nullptr : listed->find("ids");
    if (ids == nullptr || ids->items.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  "the post_processor's template has " + shown(step) +
                      ", expected the sequence A once and tokens that its special_tokens list");
    }
    for (const JsonValue& id_value : ids->items) {
      const Result<std::int32_t> id = read_id(&id_value, "a token of the template");
      if (!id) {
        return fail(id.error());
      }
      const auto index = static_cast<std::size_t>(*id);
      if (index >= tokens.size() || !tokens[index].exists) {
        return fail(ErrorCode::kInvalidArgument, "the post_processor's template has id " +
                                                     std::to_string(*id) + ", which is no token's");
      }
      (text_seen ? suffix : prefix).push_back(*id);
    }
  }
  if (!text_seen) {
    return fail(ErrorCode::kInvalidArgument, "the post_processor's template lacks the sequence A");
  }
  // Of two templates the second goes around the first.
  prompt_prefix.insert(prompt_prefix.begin(), prefix.begin(), prefix.end());
  prompt_suffix.insert(prompt_suffix.end(), suffix.begin(), suffix.end());
  return {};
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text) const {
  if (text.size() > kTextBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "the text has " + std::to_string(text.size()) +
                                                 " bytes, expected at most " +
                                                 std::to_string(kTextBytesMax));
  }
  if (const std::size_t invalid = find_invalid_utf8(text); invalid != std::string_view::npos) {
    return fail(ErrorCode::kInvalidArgument,
                "the text is not UTF-8 at byte " + std::to_string(invalid));
  }
  std::vector<Piece> pieces;
  if (!text.empty()) {
    pieces.push_back({text});
  }
  pieces = cut_out(pieces, state_->raw_added);
  pieces = cut_out(pieces, state_->normalized_added);

  std::vector<std::int32_t> ids;
  Bpe::Work work;
  std::vector<std::string_view> words;
  for (const Piece& piece : pieces) {
    if (piece.added_id >= 0) {
      ids.push_back(piece.added_id);
      continue;
    }
    words.clear();
    std::string storage;
    Result<void> split = state_->pre_tokenizer.split(piece.text, storage, words);
    if (!split) {
      return fail(std::move(split).error());
    }
    for (std::string_view word : words) {
      if (!state_->whole_words.empty()) {
        const auto whole = state_->whole_words.find(std::string(word));
        if (whole != state_->whole_words.end()) {
          ids.push_back(whole->second);
          continue;
        }
      }
      state_->bpe.encode(word, work, ids);
    }
  }
  return ids;
}

Result<std::vector<std::int32_t>> Tokenizer::encode_prompt(std::string_view text) const {
  Result<std::vector<std::int32_t>> ids = encode(text);
  if (ids) {
    ids->insert(ids->begin(), state_->prompt_prefix.begin(), state_->prompt_prefix.end());
    ids->insert(ids->end(), state_->prompt_suffix.begin(), state_->prompt_suffix.end());
  }
  return ids;
}

Result<std::string> Tokenizer::decode_bytes(std::span<const std::int32_t> ids,
                                            bool skip_special) const {
  std::string bytes;
  for (std::int32_t id : ids) {
    const auto index = static_cast<std::size_t>(id);
    if (id < 0 || index >= state_->tokens.size() || !state_->tokens[index].exists) {
      return fail(ErrorCode::kInvalidArgument, "id " + std::to_string(id) +
                                                   " has no token, expected one below " +
                                                   std::to_string(state_->tokens.size()));
    }
    if (!skip_special || !state_->tokens[index].is_special) {
      bytes += state_->tokens[index].bytes;
    }
  }
  return bytes;
}

Result<std::string> Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const std::int32_t& id : ids) {
    const Result<std::string> piece = decoder.push(id);
    if (!piece) {
      return piece;
    }
    text += *piece;
  }
  return text + decoder.finish();
}

std::uint32_t Tokenizer::vocab_size() const {
  return static_cast<std::uint32_t>(state_->tokens.size());
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

Result<std::string> StreamDecoder::push(std::int32_t id) {
  const Result<std::string> bytes = tokenizer_->decode_bytes({&id, 1}, skip_special_);
  if (!bytes) {
    return bytes;
  }
  pending_ += *bytes;
  std::string text;
  take_complete_utf8(pending_, text);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  if (!pending_.empty()) {
    append_utf8(text, 0xfffd);  // The beginning of one character, and no more.
  }
  pending_.clear();
  return text;
}

}  // namespace afd::model
