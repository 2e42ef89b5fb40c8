// AFD_CHECK: for this library's own bugs, on in release builds too. Never reachable from a peer, a
// file, the environment or an argument: those get an Error.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

namespace afd::base {

/// Prints "file:line: check failed: condition (names = values)" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* names,
                               const std::string& values) noexcept;

template <typename... Values>
std::string join_values(const Values&... values) {
  std::ostringstream text;
  [[maybe_unused]] const char* separator = "";
  ((text << separator << values, separator = ", "), ...);
  return text.str();
}

}  // namespace afd::base

// A macro, since it prints the condition's text and evaluates the values only on failure:
// AFD_CHECK(offset <= size, offset, size) -> "check failed: offset <= size (offset, size = 9, 8)".
#define AFD_CHECK(condition, ...)                                                \
  do {                                                                           \
    if (!(condition)) [[unlikely]] {                                             \
      ::afd::base::check_failed(__FILE__, __LINE__, #condition, "" #__VA_ARGS__, \
                                ::afd::base::join_values(__VA_ARGS__));          \
    }                                                                            \
  } while (false)
