#include "model/json.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <unordered_set>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/errno_text.h"

namespace afd::model {
namespace {

constexpr int kDepthMax = 64;

// nlohmann's messages begin with an identifier in brackets, which tells a reader nothing.
std::string without_prefix(std::string_view what) {
  const std::size_t end = what.find("] ");
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace

template <typename Json>
Result<Json> parse_json(std::string_view text) {
  // The parser skips a byte order mark; other readers of the same file do not.
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    return fail(ErrorCode::kInvalidArgument, "the text starts with a byte order mark");
  }
  std::vector<std::unordered_set<std::string>> keys_of_open_objects;
  std::string problem;
  const typename Json::parser_callback_t check = [&](int depth, typename Json::parse_event_t event,
                                                     Json& parsed) {
    if (!problem.empty()) {
      return false;
    }
    using Event = typename Json::parse_event_t;
    switch (event) {
      case Event::object_start:
        keys_of_open_objects.emplace_back();
        [[fallthrough]];
      case Event::array_start:
        if (depth > kDepthMax) {
          problem = "nested deeper than " + std::to_string(kDepthMax) + " levels";
        }
        break;
      case Event::object_end:
        keys_of_open_objects.pop_back();
        break;
      case Event::key:
        if (!keys_of_open_objects.back().insert(parsed.template get<std::string>()).second) {
          problem = "key " + shown(parsed) + " occurs twice";
        }
        break;
      default:
        break;
    }
    return true;
  };
  try {
    Json parsed = Json::parse(text.begin(), text.end(), check);
    if (!problem.empty()) {
      return fail(ErrorCode::kInvalidArgument, std::move(problem));
    }
    return parsed;
  } catch (const typename Json::exception& error) {
    // The first problem counts: after one, the parser was told to drop values.
    return fail(ErrorCode::kInvalidArgument,
                problem.empty() ? without_prefix(error.what()) : std::move(problem));
  }
}

template <typename Json>
std::string_view kind_of(const Json& value) {
  using Type = typename Json::value_t;
  switch (value.type()) {
    case Type::null:
      return "null";
    case Type::object:
      return "an object";
    case Type::array:
      return "an array";
    case Type::string:
      return "a string";
    case Type::boolean:
      return "a boolean";
    case Type::number_integer:
    case Type::number_unsigned:
      return "an integer";
    case Type::number_float:
      return "a number";
    default:
      return "not a value";
  }
}

template <typename Json>
std::string shown(const Json& value) {
  constexpr std::size_t kShownMax = 60;
  // ASCII, so that the cut cannot fall into a character.
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kShownMax) {
    text.resize(kShownMax);
    text += "...";
  }
  return text;
}

template Result<nlohmann::json> parse_json(std::string_view text);
template std::string_view kind_of(const nlohmann::json& value);
template std::string shown(const nlohmann::json& value);

Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max) {
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rbe"), close);
  if (file == nullptr) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
  }
  std::string text;
  std::vector<char> block(64 * 1024);
  while (true) {
    const std::size_t got = std::fread(block.data(), 1, block.size(), file.get());
    text.append(block.data(), got);
    if (text.size() > bytes_max) {
      return fail(ErrorCode::kInvalidArgument,
                  path + ": larger than " + std::to_string(bytes_max) + " bytes");
    }
    if (got < block.size()) {
      break;
    }
  }
  if (std::ferror(file.get()) != 0) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + base::errno_text(errno));
  }
  return text;
}

}  // namespace afd::model
