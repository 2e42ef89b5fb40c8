// What `afd run` shows to people: text as it comes, finished prompts, progress.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/background_output.h"
#include "model/tokenizer.h"
#include "runtime/request.h"

namespace afd::cli {

/// Writes all of it to stdout, zero bytes too, and flushes. A failure is remembered.
void print_out(std::string_view text);
/// Remembers that stdout could not be written, unless something is remembered. From any thread.
void note_stdout_error(int error);
/// The errno of the first failure of print_out() or of what else was written to stdout; 0: none.
int flush_stdout();

/// Shows a run while it goes on, on a terminal or not. One prompt: its text as it comes. Several:
/// each output in the order of the prompts, as soon as it and those before it are finished, and
/// where stderr is a terminal a line there that counts.
class LiveOutput {
 public:
  /// @param tokenizer  null: ids are shown
  /// @param allowed    false: shows nothing
  LiveOutput(const model::Tokenizer* tokenizer, const std::vector<runtime::Request>& requests,
             bool allowed, BackgroundOutput& output);

  /// Whether token events are wanted.
  bool wants_tokens() const { return mode_ == Mode::kText || counts_; }
  void on_tokens(std::span<const runtime::TokenEvent> tokens);
  void on_finished(const runtime::Output& output);
  /// Ends the line that is being written.
  void end();

 private:
  enum class Mode { kSilent, kText, kOutputs };
  void show_progress(bool last);

  const model::Tokenizer* tokenizer_;
  const std::vector<runtime::Request>& requests_;
  BackgroundOutput& output_;
  Mode mode_ = Mode::kSilent;
  bool counts_ = false;  ///< Shows the line that counts.
  bool begun_ = false;   ///< The one prompt was written.
  std::optional<model::StreamDecoder> decoder_;
  std::vector<std::optional<runtime::Output>> finished_;  ///< By request, until it is written.
  std::size_t next_output_ = 0;
  std::string sha256_of_the_one_;
  std::uint64_t num_tokens_ = 0;
  std::size_t num_finished_ = 0;
  std::int64_t next_progress_ns_ = 0;
};

/// The ids as text, or "1,2,3" without a tokenizer.
std::string ids_to_text(const model::Tokenizer* tokenizer, std::span<const std::int32_t> ids);

/// One output with its prompt, for people: a line, and one for the hash where it was asked for.
/// @param numbered  with the prompt's number in front
std::string output_text(const model::Tokenizer* tokenizer, const runtime::Request& request,
                        const runtime::Output& output, bool numbered);

}  // namespace afd::cli
