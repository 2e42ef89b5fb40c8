// A file that is there while a rank serves: for probes and for who waits for it.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include <afd/result.h>

namespace afd::cli {

/// Threads: remove() from any, the others from one at a time.
class ReadyFile {
 public:
  /// @param path  empty: there is none, and every call does nothing
  explicit ReadyFile(std::string path) : path_(std::move(path)) {}
  ~ReadyFile() { remove(); }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  /// Removes what an earlier process left, and sees that the file can be made.
  /// @return kInvalidArgument  it cannot, and why
  Result<void> prepare();
  /// Makes it, in one step: whoever finds it finds all of the text. Not after remove().
  /// @return kUnavailable  it could not be written
  Result<void> write(std::string_view text);
  /// Removes it, if it was made. Repeatable, async-signal-safe.
  void remove() noexcept;

 private:
  Result<void> make(const std::string& path, std::string_view text) const;

  const std::string path_;
  // Set with release once it is there; exchanged by whoever removes it.
  std::atomic<bool> there_{false};
  std::atomic<bool> over_{false};
};

}  // namespace afd::cli
