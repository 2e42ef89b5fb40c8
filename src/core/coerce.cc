#include "core/coerce.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/python_text.h"

namespace afd {
namespace {

bool is_space(char c) {
  // What Python strips, within ASCII.
  return (c >= '\t' && c <= '\r') || (c >= '\x1c' && c <= ' ');
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_space(text.front())) {
    text.remove_prefix(1);
  }
  while (!text.empty() && is_space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

/// The digits without underscores, or nothing if one stands where it may not or another character
/// does.
std::optional<std::string> plain_digits(std::string_view text) {
  std::string digits;
  bool last_was_digit = false;
  for (char c : text) {
    if (is_digit(c)) {
      digits += c;
    } else if (c != '_' || !last_was_digit) {
      return std::nullopt;
    }
    last_was_digit = is_digit(c);
  }
  return last_was_digit ? std::optional(std::move(digits)) : std::nullopt;
}

std::optional<WideInteger> parse_integer(std::string_view text) {
  text = stripped(text);
  bool negative = false;
  if (!text.empty() && (text.front() == '+' || text.front() == '-')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  std::optional<std::string> digits = plain_digits(text);
  if (!digits) {
    return std::nullopt;
  }
  digits->erase(0, std::min(digits->find_first_not_of('0'), digits->size() - 1));
  WideInteger integer;
  integer.text = negative && *digits != "0" ? "-" + *digits : *digits;
  const char* end = integer.text.data() + integer.text.size();
  integer.fits = std::from_chars(integer.text.data(), end, integer.value).ec == std::errc();
  return integer;
}

}  // namespace

std::string stripped_lower(std::string_view text) {
  std::string lower(stripped(text));
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return lower;
}

Result<bool> coerce_bool(const JsonValue& value, std::string_view field) {
  constexpr std::array<std::string_view, 4> kTrue = {"1", "true", "yes", "on"};
  constexpr std::array<std::string_view, 4> kFalse = {"0", "false", "no", "off"};
  switch (value.kind) {
    case JsonValue::Kind::kBoolean:
      return value.boolean;
    case JsonValue::Kind::kInteger:
      if (value.integer == 0 || value.integer == 1) {
        return value.integer == 1;
      }
      break;
    case JsonValue::Kind::kString: {
      const std::string word = stripped_lower(value.text);
      if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) {
        return true;
      }
      if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end()) {
        return false;
      }
      break;
    }
    default:
      break;
  }
  return fail(ErrorCode::kInvalidArgument,
              std::string(field) + " must be a boolean, got " + python_repr(value));
}

Result<WideInteger> coerce_integer(const JsonValue& value, std::string_view field) {
  if (value.kind == JsonValue::Kind::kInteger) {
    return WideInteger(value.integer);
  }
  if (value.kind == JsonValue::Kind::kString || is_python_int(value)) {
    if (std::optional<WideInteger> integer = parse_integer(value.text)) {
      return *std::move(integer);
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              std::string(field) + " must be an integer, got " + python_repr(value));
}

}  // namespace afd
