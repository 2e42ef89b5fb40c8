#include "model/json_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/errno_text.h"
#include "base/fd.h"

namespace afd::model {

Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max) {
  // Without O_NONBLOCK a FIFO waits here for a writer. A regular file does not know it.
  const base::Fd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(ErrorCode::kInvalidArgument, path + ": not a regular file");
  }
  std::string text;
  std::vector<char> block(64 * 1024);
  for (;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno != EINTR) {
      return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
    }
    if (got == 0) {
      return text;
    }
    text.append(block.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (text.size() > bytes_max) {
      return fail(ErrorCode::kInvalidArgument,
                  path + ": larger than " + std::to_string(bytes_max) + " bytes");
    }
  }
}

Result<JsonValue> read_json_file(const std::string& path, std::uint64_t bytes_max) {
  const Result<std::string> text = read_text_file(path, bytes_max);
  if (!text) {
    return fail(text.error());
  }
  Result<JsonValue> value = parse_json(*text, {.bytes_max = static_cast<std::size_t>(bytes_max)});
  if (!value) {
    return fail(std::move(value).error().with_context(path));
  }
  return value;
}

std::string_view kind_of(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBoolean:
      return "a boolean";
    case JsonValue::Kind::kInteger:
      return "an integer";
    case JsonValue::Kind::kOtherNumber:
      return "a number";
    case JsonValue::Kind::kString:
      return "a string";
    case JsonValue::Kind::kArray:
      return "an array";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "not a value";
}

std::string shown(const JsonValue& value) {
  constexpr std::size_t kShownBytesMax = 60;
  return printable(write_json(value), kShownBytesMax);
}

std::string shown_name(std::string_view name) {
  return '"' + printable(name) + '"';
}

}  // namespace afd::model
