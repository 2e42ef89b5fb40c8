#include "model/utf8.h"

namespace afd::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

Utf8Head read_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return {Utf8Head::Kind::kCharacter, 1, lead};
  }
  if (lead < 0xc2 || lead > 0xf4) {
    return {Utf8Head::Kind::kBroken, 1, 0};
  }
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte's range keeps overlong forms, surrogates and what lies beyond Unicode out.
  const unsigned char second_min = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char second_max = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  char32_t code_point = lead & (0xffu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) {
      return {Utf8Head::Kind::kIncomplete, i, 0};
    }
    const unsigned char min = i == 1 ? second_min : 0x80;
    const unsigned char max = i == 1 ? second_max : 0xbf;
    if (byte(i) < min || byte(i) > max) {
      return {Utf8Head::Kind::kBroken, i, 0};
    }
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  return {Utf8Head::Kind::kCharacter, length, code_point};
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Head head = read_utf8(text.substr(at));
    if (head.kind != Utf8Head::Kind::kCharacter) {
      return at;
    }
    at += head.bytes;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto byte = [&](char32_t value) { text += static_cast<char>(value); };
  if (code_point < 0x80) {
    byte(code_point);
  } else if (code_point < 0x800) {
    byte(0xc0 | code_point >> 6);
    byte(0x80 | (code_point & 0x3f));
  } else if (code_point < 0x10000) {
    byte(0xe0 | code_point >> 12);
    byte(0x80 | (code_point >> 6 & 0x3f));
    byte(0x80 | (code_point & 0x3f));
  } else {
    byte(0xf0 | code_point >> 18);
    byte(0x80 | (code_point >> 12 & 0x3f));
    byte(0x80 | (code_point >> 6 & 0x3f));
    byte(0x80 | (code_point & 0x3f));
  }
}

void take_complete_utf8(std::string& bytes, std::string& text) {
  const std::string_view all = bytes;
  std::size_t at = 0;
  while (at < all.size()) {
    const Utf8Head head = read_utf8(all.substr(at));
    if (head.kind == Utf8Head::Kind::kIncomplete) {
      break;
    }
    text += head.kind == Utf8Head::Kind::kCharacter ? all.substr(at, head.bytes) : kReplacement;
    at += head.bytes;
  }
  bytes.erase(0, at);
}

}  // namespace afd::model
