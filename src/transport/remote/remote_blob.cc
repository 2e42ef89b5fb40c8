#include "transport/remote/remote_blob.h"

#include <cstring>
#include <optional>
#include <utility>

namespace afd::transport {
namespace {

constexpr std::string_view kMagic = "afd-remote 2 ";
constexpr std::size_t kAddressBytesMax = 16 * 1024;
constexpr std::string_view kWindowMagic = "afd-window ";
constexpr std::string_view kEmpty = "-";

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  const auto digit = [](char c) -> int {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(high << 4 | low);
  }
  return text.size() % 2 == 0 ? std::optional(bytes) : std::nullopt;
}

std::string or_dash(const std::string& text) {
  return text.empty() ? std::string(kEmpty) : text;
}

/// Cuts the text before the next space off, or everything.
std::string take_word(std::string_view& text) {
  const std::size_t space = text.find(' ');
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  return std::string(word == kEmpty ? "" : word);
}

}  // namespace

std::string format_remote_blob(const RemoteBlob& blob) {
  std::string token(sizeof(blob.token), '\0');
  std::memcpy(token.data(), &blob.token, sizeof(blob.token));
  std::string text(kMagic);
  for (const std::string& word :
       {to_hex(token), to_hex(blob.address), blob.place, blob.fifo, blob.window}) {
    text += or_dash(word) + ' ';
  }
  text.pop_back();
  return text;
}

Result<RemoteBlob> parse_remote_blob(std::string_view text) {
  RemoteBlob blob;
  std::string_view rest = text;
  if (rest.starts_with(kMagic)) {
    rest.remove_prefix(kMagic.size());
    const std::optional<std::string> token = from_hex(take_word(rest));
    std::optional<std::string> address = from_hex(take_word(rest));
    blob.place = take_word(rest);
    blob.fifo = take_word(rest);
    blob.window = rest == kEmpty ? "" : std::string(rest);
    const bool right_window = blob.window.empty() || blob.window.starts_with(kWindowMagic);
    if (right_window && token && token->size() == sizeof(blob.token) && address &&
        address->size() <= kAddressBytesMax) {
      std::memcpy(&blob.token, token->data(), sizeof(blob.token));
      blob.address = *std::move(address);
      if (format_remote_blob(blob) == text) {
        return blob;
      }
    }
  }
  return fail(ErrorCode::kProtocolMismatch, "the peer cannot be reached: its description of " +
                                                std::to_string(text.size()) +
                                                " bytes is none of a remote transport");
}

}  // namespace afd::transport
