#include "cli/text_output.h"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <utility>

#include "base/clock.h"

namespace afd::cli {
namespace {

constexpr std::int64_t kProgressEveryNs = 100'000'000;

void put(std::FILE* file, const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
}

}  // namespace

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

LiveOutput::LiveOutput(const model::Tokenizer* tokenizer,
                       const std::vector<runtime::Request>& requests, bool allowed)
    : tokenizer_(tokenizer), requests_(requests) {
  if (!allowed) {
    return;
  }
  if (requests.size() == 1 && ::isatty(STDOUT_FILENO) == 1) {
    mode_ = Mode::kText;
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
    }
  } else if (requests.size() > 1 && ::isatty(STDERR_FILENO) == 1) {
    mode_ = Mode::kProgress;
  }
}

void LiveOutput::begin() {
  if (mode_ == Mode::kText) {
    put(stdout, ids_to_text(tokenizer_, requests_[0].prompt_ids));
  }
}

void LiveOutput::on_tokens(std::span<const runtime::TokenEvent> tokens) {
  num_tokens_ += tokens.size();
  if (mode_ == Mode::kText) {
    for (const runtime::TokenEvent& token : tokens) {
      if (!decoder_) {
        put(stdout, "," + std::to_string(token.token_id));
      } else if (Result<std::string> text = decoder_->push(token.token_id)) {
        put(stdout, *text);
      }
    }
  } else if (mode_ == Mode::kProgress) {
    show_progress(false);
  }
}

void LiveOutput::on_finished() {
  ++num_finished_;
}

void LiveOutput::show_progress(bool last) {
  const std::int64_t now = base::steady_ns();
  if (!last && now < next_progress_ns_) {
    return;
  }
  next_progress_ns_ = now + kProgressEveryNs;
  std::fprintf(stderr, "\r%zu of %zu prompts, %" PRIu64 " tokens%s", num_finished_,
               requests_.size(), num_tokens_, last ? "\n" : "");
  std::fflush(stderr);
}

void LiveOutput::end() {
  if (mode_ == Mode::kText) {
    put(stdout, (decoder_ ? decoder_->finish() : std::string()) + "\n");
  } else if (mode_ == Mode::kProgress) {
    show_progress(true);
  }
}

}  // namespace afd::cli
