#include "model/json_file.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <vector>

#include "base/errno_text.h"

namespace afd::model {

Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  if (file == nullptr) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
  }
  std::string text;
  std::vector<char> block(64 * 1024);
  std::size_t got = block.size();
  while (got == block.size()) {
    got = std::fread(block.data(), 1, block.size(), file.get());
    text.append(block.data(), got);
    if (text.size() > bytes_max) {
      return fail(ErrorCode::kInvalidArgument,
                  path + ": larger than " + std::to_string(bytes_max) + " bytes");
    }
  }
  if (std::ferror(file.get()) != 0) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
  }
  return text;
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
