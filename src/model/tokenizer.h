// Byte-level BPE from a Hugging Face `tokenizer.json`.
//
//     text -> added tokens cut out -> words (pre-tokenizer) -> bytes merged in pairs -> ids
//
// Threads: immutable after load; encode and decode from many threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

namespace afd::model {

class Tokenizer {
 public:
  /// @return kInvalidArgument  which file and what is wrong: no merges, another model or
  ///                           pre-tokenizer, a merge of unknown tokens, ids out of range, ...
  static Result<Tokenizer> load(const std::string& path);
  static Result<Tokenizer> parse(std::string_view json_text);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Without special tokens in front; special tokens that the text itself spells out are found.
  /// @return kInvalidArgument  not UTF-8 (with the byte's offset), or longer than 1 GiB
  Result<std::vector<std::int32_t>> encode(std::string_view text) const;
  /// encode() with what the post-processor puts around a single sequence (begin_of_text).
  Result<std::vector<std::int32_t>> encode_prompt(std::string_view text) const;

  /// Raw bytes of the ids joined; may end inside a character.
  /// @return kInvalidArgument  an id that has no token
  Result<std::string> decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const;
  /// The same as valid UTF-8: broken sequences become U+FFFD.
  Result<std::string> decode(std::span<const std::int32_t> ids, bool skip_special) const;

  std::uint32_t vocab_size() const;  ///< Highest id + 1, added tokens included.

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Turns a stream of ids into text without ever giving out part of a character: bytes of an
/// unfinished UTF-8 sequence are held back until they are complete or proved broken (then U+FFFD).
/// All that it gives out is what Tokenizer::decode() makes of all the ids.
///
/// The tokenizer outlives it. Threads: one at a time.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  /// Text that became complete with this id; may be empty.
  Result<std::string> push(std::int32_t id);
  /// What is left at the end of the stream. The stream then starts anew.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace afd::model
