// UTF-8, as strictly as Unicode defines it: no overlong forms, no surrogates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace afd::model {

struct Utf8Head {
  enum class Kind {
    kCharacter,   ///< `bytes` long, code point `code_point`.
    kIncomplete,  ///< All of the text is the beginning of a character.
    kBroken,      ///< The first `bytes` can begin no character: one U+FFFD stands for them.
  };
  Kind kind = Kind::kBroken;
  std::size_t bytes = 0;
  char32_t code_point = 0;
};

/// What stands at the front of `text`, which is not empty.
Utf8Head read_utf8(std::string_view text);

/// Offset of the first byte that is not UTF-8 (or begins a character that never ends), or npos.
std::size_t find_invalid_utf8(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

/// Moves complete characters from the front of `bytes` to the end of `text`, with U+FFFD for what
/// is broken. What may still become a character stays.
void take_complete_utf8(std::string& bytes, std::string& text);

}  // namespace afd::model
