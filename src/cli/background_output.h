// Text for people, written while something else goes on: a reader of stdout or stderr that stands
// still (`| less`, a terminal after Ctrl-S) holds up a thread of this class's own, never the
// caller.
//
// What is waiting is kept in memory: it is text, and there is an end to it.
//
// Threads: one at a time. Its own threads see no signal but SIGPIPE; they start with the first
// text, so that a process that forks before it shows anything forks alone.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace afd::cli {

class BackgroundOutput {
 public:
  /// Where stdout and stderr are the same file, their texts are written in order.
  BackgroundOutput();
  /// Waits for nobody: a thread that hangs in a write is left to the process's end.
  ~BackgroundOutput();
  BackgroundOutput(const BackgroundOutput&) = delete;
  BackgroundOutput& operator=(const BackgroundOutput&) = delete;

  /// Return at once. A failure to write to stdout is remembered as print_out() does.
  void out(std::string text);
  void err(std::string text);

  /// Waits until all is written. @return false when the time is up
  bool drain(std::optional<std::chrono::milliseconds> limit = std::nullopt);

 private:
  class Writer;
  std::array<std::shared_ptr<Writer>, 2>
      writers_;  ///< For stdout and stderr; each with its thread.
};

}  // namespace afd::cli
