// What `afd run` shows to people: streamed text, progress, the summary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "runtime/request.h"

namespace afd::cli {

/// Shows a run while it goes on. One prompt on a terminal: its text as it comes. Many: a line that
/// counts. Not a terminal: nothing.
class LiveOutput {
 public:
  /// @param tokenizer  null: ids are shown
  LiveOutput(const model::Tokenizer* tokenizer, const std::vector<runtime::Request>& requests,
             bool allowed);

  /// Whether token events are wanted.
  bool wants_tokens() const { return mode_ != Mode::kSilent; }
  void begin();
  void on_tokens(std::span<const runtime::TokenEvent> tokens);
  void on_finished();
  /// Ends the line that is being written.
  void end();
  /// The text of the one prompt was written already.
  bool streamed() const { return mode_ == Mode::kText; }

 private:
  enum class Mode { kSilent, kText, kProgress };
  void show_progress(bool last);

  const model::Tokenizer* tokenizer_;
  const std::vector<runtime::Request>& requests_;
  Mode mode_ = Mode::kSilent;
  std::optional<model::StreamDecoder> decoder_;
  std::uint64_t num_tokens_ = 0;
  std::size_t num_finished_ = 0;
  std::int64_t next_progress_ns_ = 0;
};

/// The ids as text, or "1,2,3" without a tokenizer.
std::string ids_to_text(const model::Tokenizer* tokenizer, std::span<const std::int32_t> ids);

}  // namespace afd::cli
