// How `afd` ends: 0 done, 1 the run failed, 2 it was called wrongly, 128 + n ended by signal n; and
// how it says what was wrong, on stderr, always in this form:
//
//   afd COMMAND: what was wrong
//   hint: what to do about it
#pragma once

#include <string_view>

#include <afd/result.h>

namespace afd::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitSignal = 128;

/// @param command  "run", "bench hop", ...; empty: `afd` itself
/// @param hint     what to do; empty: the one for this kind of error, if there is one to give
/// @return kExitFailed
int report_failure(std::string_view command, const Error& error, std::string_view hint = {});

/// The same for what is wrong with the call.
/// @param hint  empty: where the options are listed
/// @return kExitUsage
int report_usage(std::string_view command, const Error& error, std::string_view hint = {});

/// Either, by the error: an invalid argument is the call's fault.
int report(std::string_view command, const Error& error);

}  // namespace afd::cli
