// Lines out of a byte stream that arrives in pieces.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace afd::runtime {

class LineBuffer {
 public:
  /// @param line_bytes_max  a longer line is cut there
  explicit LineBuffer(std::size_t line_bytes_max) : line_bytes_max_(line_bytes_max) {}

  /// Appends bytes and hands out every complete line, without its newline.
  template <typename Handler>
  void append(std::string_view bytes, Handler&& handler) {
    for (const char byte : bytes) {
      if (byte == '\n' || pending_.size() == line_bytes_max_) {
        handler(std::string_view(pending_));
        pending_.clear();
        if (byte == '\n') {
          continue;
        }
      }
      pending_ += byte;
    }
  }

  /// Hands out what stands after the last newline, if anything.
  template <typename Handler>
  void finish(Handler&& handler) {
    if (!pending_.empty()) {
      handler(std::string_view(pending_));
      pending_.clear();
    }
  }

 private:
  std::size_t line_bytes_max_;
  std::string pending_;
};

}  // namespace afd::runtime
