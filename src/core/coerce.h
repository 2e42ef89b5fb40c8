// Configuration values that people write in several ways: "yes" for true, "8" for 8. What is taken
// and what is refused, and the messages, are the reference's.
//
// Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <afd/result.h>

#include "core/json.h"

namespace afd {

/// An integer of any length, since a message has to show what was found.
struct WideInteger {
  std::int64_t value = 0;  ///< Valid if fits.
  bool fits = true;
  std::string text = "0";  ///< Decimal digits, with '-' if negative; neither '+' nor leading zeros.

  WideInteger() = default;
  WideInteger(std::int64_t number) : value(number), text(std::to_string(number)) {}

  bool positive() const { return fits ? value > 0 : text.front() != '-'; }
};

/// true, false, 1, 0, and in any case and with space around: "1", "true", "yes", "on", "0",
/// "false", "no", "off".
/// @return kInvalidArgument  "<field> must be a boolean, got 'maybe'"
Result<bool> coerce_bool(const JsonValue& value, std::string_view field);

/// Integers, and strings of decimal digits with an optional sign, single underscores between digits
/// and space around. No booleans, no fractions.
/// @return kInvalidArgument  "<field> must be an integer, got 2.5"
Result<WideInteger> coerce_integer(const JsonValue& value, std::string_view field);

/// `text` without the white space around it, ASCII letters in lower case.
std::string stripped_lower(std::string_view text);

}  // namespace afd
