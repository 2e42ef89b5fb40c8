// A tokenizer.json, and behind its first zero byte a text: what is taken encodes any text to ids
// that decode to it again, whole and as a stream.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "model/tokenizer.h"
#include "model/utf8.h"

namespace {

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(input.find('\0'), input.size());
  const auto tokenizer = afd::model::Tokenizer::parse(input.substr(0, zero));
  if (!tokenizer) {
    check(tokenizer.error().code == afd::ErrorCode::kInvalidArgument);
    check(tokenizer.error().message.size() < 4000);
    return 0;
  }
  // A regular expression may take its time for each byte.
  const std::string_view text = input.substr(std::min(zero + 1, input.size())).substr(0, 256);
  const auto ids = tokenizer->encode_prompt(text);
  if (!ids) {
    check(ids.error().code == afd::ErrorCode::kInvalidArgument);
    return 0;
  }
  check(afd::model::find_invalid_utf8(text) == std::string_view::npos);
  for (std::int32_t id : *ids) {
    check(id >= 0 && static_cast<std::uint32_t>(id) < tokenizer->vocab_size());
  }
  const std::string all = tokenizer->decode(*ids, /*skip_special=*/false).value();
  check(afd::model::find_invalid_utf8(all) == std::string::npos);
  afd::model::StreamDecoder decoder(*tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (std::int32_t id : *ids) {
    const std::string piece = decoder.push(id).value();
    check(afd::model::find_invalid_utf8(piece) == std::string::npos);
    streamed += piece;
  }
  check(streamed + decoder.finish() == all);
  return 0;
}
