// How `afd` ends, and how it says what was wrong, on stderr, always in this form:
//
//   afd COMMAND: what was wrong
//   hint: what to do about it
#pragma once

#include <string_view>

#include <afd/result.h>

namespace afd::cli {

// What whoever started it can act on. The README has the table.
inline constexpr int kExitOk = 0;        ///< Done, or drained after SIGTERM.
inline constexpr int kExitFailed = 1;    ///< Anything that has no number of its own.
inline constexpr int kExitUsage = 2;     ///< Called wrongly: the same call fails again.
inline constexpr int kExitPeerLost = 3;  ///< Another rank died, left or was cut off.
inline constexpr int kExitDeadline = 4;  ///< A rank did not come or did not answer in time.
inline constexpr int kExitRefused = 5;   ///< Does not fit the job: the same call fails again.
inline constexpr int kExitSignal = 128;  ///< + n: ended by signal n.
inline constexpr char kExitStatuses[] =
    "Exit status: 0 done, or drained after SIGTERM; 1 failed; 2 called wrongly; 3 another rank was "
    "lost; 4 a rank did not come or answer in time; 5 refused, this rank does not fit the job; 130 "
    "SIGINT. Starting again helps after 1, 3 and 4 at most.";

/// @return kExitPeerLost, kExitDeadline, kExitRefused (kProtocolMismatch) or kExitFailed
int exit_status_of(const Error& error);

/// @param command  "run", "bench hop", ...; empty: `afd` itself
/// @param hint     what to do; empty: the one for this kind of error, if there is one to give
/// @return exit_status_of(error)
int report_failure(std::string_view command, const Error& error, std::string_view hint = {});

/// The same for what is wrong with the call.
/// @param hint  empty: where the options are listed
/// @return kExitUsage
int report_usage(std::string_view command, const Error& error, std::string_view hint = {});

/// Either, by the error: an invalid argument is the call's fault.
int report(std::string_view command, const Error& error);

}  // namespace afd::cli
