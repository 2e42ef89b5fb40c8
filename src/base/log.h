// Logging to stderr, for a person at 3 a.m.: lower case, what happened, then key=value.
//
//   log(LogLevel::kInfo, "attached", {{"rank", 1}, {"peer", 2}});
//   -> 2026-01-31 03:00:00.123 [4711] info: attached rank=1 peer=2
//
// Info only on start, connect and close; nothing per transfer above trace. From any thread.
#pragma once

#include <concepts>
#include <initializer_list>
#include <string>
#include <string_view>

namespace afd::base {

enum class LogLevel { kTrace, kDebug, kInfo, kWarn, kError, kOff };

/// One key and its value. Borrowed for the call.
struct LogField {
  LogField(std::string_view field_key, std::string_view field_value)
      : key(field_key), value(field_value) {}
  LogField(std::string_view field_key, const char* field_value)
      : key(field_key), value(field_value) {}
  template <typename Number>
  requires std::integral<Number> || std::floating_point<Number> LogField(std::string_view field_key,
                                                                         Number field_value)
      : key(field_key), value(std::to_string(field_value)) {}

  std::string_view key;
  std::string value;
};

/// Writes one line if `level` is enabled. Does not throw.
void log(LogLevel level, std::string_view message,
         std::initializer_list<LogField> fields = {}) noexcept;

/// Lowest level that is written; kWarn at first.
void set_log_level(LogLevel level) noexcept;
bool log_enabled(LogLevel level) noexcept;

}  // namespace afd::base
