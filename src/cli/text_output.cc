#include "cli/text_output.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "base/clock.h"

namespace afd::cli {
namespace {

constexpr std::int64_t kProgressEveryNs = 100'000'000;

std::atomic<int> first_stdout_errno{0};  // A plain value: nothing else is handed over with it.

}  // namespace

void print_out(std::string_view text) {
  // An empty view may have no data at all, which fwrite() must not be given.
  const bool written =
      text.empty() || std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (std::fflush(stdout) != 0 || !written) {
    note_stdout_error(errno);
  }
}

void note_stdout_error(int error) {
  int none = 0;
  first_stdout_errno.compare_exchange_strong(none, error);
}

int flush_stdout() {
  print_out({});
  if (std::ferror(stdout) != 0) {
    note_stdout_error(EIO);  // Written by printf() and lost then; nobody kept why.
  }
  return first_stdout_errno;
}

std::string ids_to_text(const model::Tokenizer* tokenizer, std::span<const std::int32_t> ids) {
  if (tokenizer != nullptr) {
    if (Result<std::string> text = tokenizer->decode(ids, /*skip_special=*/true)) {
      return *std::move(text);
    }
  }
  std::string text;
  for (const std::int32_t id : ids) {
    text += (text.empty() ? "" : ",") + std::to_string(id);
  }
  return text;
}

std::string output_text(const model::Tokenizer* tokenizer, const runtime::Request& request,
                        const runtime::Output& output, bool numbered) {
  std::string text = numbered ? "[" + std::to_string(output.request_idx) + "] " : "";
  text += ids_to_text(tokenizer, request.prompt_ids) + (tokenizer == nullptr ? " -> " : "") +
          ids_to_text(tokenizer, output.token_ids) + "\n";
  if (!output.logits_sha256.empty()) {
    text += "logits_sha256 " + output.logits_sha256 + "\n";
  }
  return text;
}

LiveOutput::LiveOutput(const model::Tokenizer* tokenizer,
                       const std::vector<runtime::Request>& requests, bool allowed,
                       BackgroundOutput& output)
    : tokenizer_(tokenizer), requests_(requests), output_(output) {
  if (!allowed) {
    return;
  }
  if (requests.size() == 1) {
    mode_ = Mode::kText;
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
    }
    return;
  }
  mode_ = Mode::kOutputs;
  finished_.resize(requests.size());
  counts_ = ::isatty(STDERR_FILENO) == 1;
}

void LiveOutput::on_tokens(std::span<const runtime::TokenEvent> tokens) {
  num_tokens_ += tokens.size();
  if (mode_ == Mode::kText) {
    // The prompt comes with its first token: a run that cannot begin has written nothing.
    std::string text =
        std::exchange(begun_, true) ? "" : ids_to_text(tokenizer_, requests_[0].prompt_ids);
    for (const runtime::TokenEvent& token : tokens) {
      if (!decoder_) {
        text += (num_tokens_ == tokens.size() && &token == &tokens[0] ? " -> " : ",") +
                std::to_string(token.token_id);
      } else if (Result<std::string> piece = decoder_->push(token.token_id)) {
        text += *piece;
      }
    }
    output_.out(std::move(text));
  } else if (counts_) {
    show_progress(false);
  }
}

void LiveOutput::on_finished(const runtime::Output& output) {
  ++num_finished_;
  if (mode_ == Mode::kText) {
    sha256_of_the_one_ = output.logits_sha256;
  }
  if (mode_ != Mode::kOutputs) {
    return;
  }
  finished_[output.request_idx] = output;
  std::string text;
  for (; next_output_ < finished_.size() && finished_[next_output_]; ++next_output_) {
    text += output_text(tokenizer_, requests_[next_output_], *finished_[next_output_],
                        /*numbered=*/true);
    finished_[next_output_].reset();
  }
  if (text.empty()) {
    return;
  }
  if (counts_) {
    output_.err("\r\x1b[K");  // The line that counts makes room, and comes again below.
    next_progress_ns_ = 0;
  }
  output_.out(std::move(text));
}

void LiveOutput::show_progress(bool last) {
  const std::int64_t now = base::steady_ns();
  if (!last && now < next_progress_ns_) {
    return;
  }
  next_progress_ns_ = now + kProgressEveryNs;
  output_.err("\r" + std::to_string(num_finished_) + " of " + std::to_string(requests_.size()) +
              " prompts, " + std::to_string(num_tokens_) + " tokens" + (last ? "\n" : ""));
}

void LiveOutput::end() {
  if (mode_ == Mode::kText && begun_) {
    output_.out((decoder_ ? decoder_->finish() : std::string()) + "\n");
    if (!sha256_of_the_one_.empty()) {
      output_.out("logits_sha256 " + sha256_of_the_one_ + "\n");
    }
  } else if (counts_) {
    show_progress(true);
  }
}

}  // namespace afd::cli
