#include "cli/exit_status.h"

#include <cstdio>
#include <string>

#include "runtime/sampler.h"

namespace afd::cli {
namespace {

void print(std::string_view command, const Error& error, std::string_view hint) {
  std::string text =
      "afd" + (command.empty() ? "" : " " + std::string(command)) + ": " + error.message + "\n";
  if (!hint.empty()) {
    text += "hint: " + std::string(hint) + "\n";
  }
  std::fflush(stdout);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

std::string_view hint_for(const Error& error) {
  const auto mentions = [&](std::string_view word) {
    return error.message.find(word) != std::string::npos;
  };
  if (mentions("Too many open files")) {
    return "raise the limit of open files: `ulimit -n` shows it, `ulimit -n 1024` sets it";
  }
  if (mentions(runtime::kLogitsNotFinite)) {
    return "a damaged checkpoint, or one that was converted badly, looks like this: compare its "
           "files' checksums, or fetch it again";
  }
  switch (error.code) {
    case ErrorCode::kUnavailable:
      if (mentions("shared memory") && (mentions("Read-only") || mentions("Permission denied"))) {
        return "/dev/shm must be writable: `mount -o remount,rw,mode=1777 /dev/shm`, or in a "
               "container a tmpfs there; `afd doctor` looks at it";
      }
      if (mentions("shared memory") || mentions("/dev/shm")) {
        return "use a smaller --max-num-tokens or --stages, or enlarge /dev/shm; `afd doctor` "
               "shows "
               "what is there";
      }
      return "`afd connectors` shows what can run here and why not, `afd doctor` looks at the "
             "machine";
    case ErrorCode::kDeadlineExceeded:
      if (mentions("did not arrive")) {
        return "every rank needs the same --host, --port and rank counts; --init-timeout sets the "
               "limit";
      }
      return "a rank that is stopped or overloaded looks like this; --hop-timeout and "
             "--init-timeout "
             "set the limits";
    case ErrorCode::kPeerLost:
      return "the named rank ended first; what it printed, if anything, stands above";
    case ErrorCode::kProtocolMismatch:
      return "all ranks of a job need the same model, layout and release";
    case ErrorCode::kInternal:
      return "this is a bug in afd: please report it with the command line";
    default:
      if (mentions("in use")) {
        return "choose another --port, for `afd rank` the same on all ranks; `afd run` takes a "
               "free one "
               "by itself";
      }
      if (mentions("shared secret")) {
        return "every rank of a job is given a copy of one file with --secret-file";
      }
      return {};
  }
}

}  // namespace

int exit_status_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::kPeerLost:
      return kExitPeerLost;
    case ErrorCode::kDeadlineExceeded:
      return kExitDeadline;
    case ErrorCode::kProtocolMismatch:
      return kExitRefused;
    default:
      return kExitFailed;
  }
}

int report_failure(std::string_view command, const Error& error, std::string_view hint) {
  print(command, error, hint.empty() ? hint_for(error) : hint);
  return exit_status_of(error);
}

int report_usage(std::string_view command, const Error& error, std::string_view hint) {
  const std::string help = "`afd " + std::string(command) + (command.empty() ? "" : " ") +
                           "--help` lists the " + (command.empty() ? "commands" : "options");
  print(command, error, hint.empty() ? help : hint);
  return kExitUsage;
}

int report(std::string_view command, const Error& error) {
  return error.code == ErrorCode::kInvalidArgument ? report_usage(command, error)
                                                   : report_failure(command, error);
}

}  // namespace afd::cli
