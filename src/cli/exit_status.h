// How `afd` ends: 0 done, 1 the run failed, 2 it was called wrongly, 128 + n ended by signal n.
#pragma once

#include <string_view>

#include <afd/result.h>

namespace afd::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitSignal = 128;

/// Prints "afd run: <message>" and a hint for this kind of error to stderr.
/// @return kExitFailed
int report_failure(std::string_view command, const Error& error);

/// The same for what is wrong with the call.
/// @return kExitUsage
int report_usage(std::string_view command, const Error& error);

/// Either, by the error: an invalid argument is the call's fault.
int report(std::string_view command, const Error& error);

}  // namespace afd::cli
