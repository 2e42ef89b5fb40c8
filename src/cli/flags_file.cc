#include "cli/flags_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/parse_error.h"
#include "cli/text_file.h"
#include "core/json.h"

namespace afd::cli {
namespace {

/// Options that are no part of a job.
constexpr const char* kNotInFiles[] = {"config", "help", "help_all", "job_fd", "event_fd"};

Error invalid(const std::string& what) {
  return {ErrorCode::kInvalidArgument, what};
}

std::string key_of(const CLI::Option& option) {
  const std::vector<std::string>& names = option.get_lnames();
  std::string key = names.empty() ? std::string() : names.front();
  std::ranges::replace(key, '-', '_');
  return key;
}

std::vector<std::string> keys_of(const CLI::App& command) {
  std::vector<std::string> keys;
  for (const CLI::Option* option : command.get_options()) {
    std::string key = key_of(*option);
    if (!key.empty() && std::ranges::find(kNotInFiles, key) == std::end(kNotInFiles)) {
      keys.push_back(std::move(key));
    }
  }
  return keys;
}

std::string kind_text(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "null";
    case JsonValue::Kind::kBoolean:
      return value.boolean ? "true" : "false";
    case JsonValue::Kind::kInteger:
    case JsonValue::Kind::kOtherNumber:
      return "a number";
    case JsonValue::Kind::kString:
      return "a text";
    case JsonValue::Kind::kArray:
      return "a list";
    case JsonValue::Kind::kObject:
      return "an object";
  }
  return "something else";
}

/// As the word that would stand on the command line.
Result<std::string> word_of(const CLI::Option& option, const JsonValue& value,
                            const std::filesystem::path& folder) {
  const bool is_json = option.get_type_name() == "JSON";
  switch (value.kind) {
    case JsonValue::Kind::kInteger:
      return std::to_string(value.integer);
    case JsonValue::Kind::kOtherNumber:
      return value.text;
    case JsonValue::Kind::kString:
      if (option.get_type_name() == kPathType && !value.text.empty() && value.text != "-") {
        return (folder / value.text).string();
      }
      return value.text;
    case JsonValue::Kind::kObject:
      if (is_json) {
        return write_json(value);
      }
      break;
    default:
      break;
  }
  return fail(
      invalid(kind_text(value) + ", expected " + (is_json ? "an object" : "a text or a number")));
}

Result<void> apply(CLI::Option& option, const JsonValue& value,
                   const std::filesystem::path& folder) {
  std::vector<std::string> words;
  if (option.get_items_expected_max() == 0) {
    if (value.kind != JsonValue::Kind::kBoolean) {
      return fail(invalid(kind_text(value) + ", expected true or false"));
    }
    words.push_back(value.boolean ? "true" : "false");
  } else if (value.kind == JsonValue::Kind::kArray) {
    if (option.get_items_expected_max() <= 1) {
      return fail(invalid("a list, expected one value"));
    }
    for (const JsonValue& item : value.items) {
      Result<std::string> word = word_of(option, item, folder);
      if (!word) {
        return fail(std::move(word).error().with_context("in its list"));
      }
      words.push_back(*std::move(word));
    }
  } else {
    Result<std::string> word = word_of(option, value, folder);
    if (!word) {
      return fail(std::move(word).error());
    }
    words.push_back(*std::move(word));
  }
  if (words.empty() || option.count() > 0) {
    return {};  // What stands on the command line or in the environment goes first.
  }
  for (std::string& word : words) {
    option.add_result(std::move(word));
  }
  try {
    option.run_callback();
  } catch (const CLI::Error& error) {
    return fail(invalid(error.what()));
  }
  return {};
}

}  // namespace

CLI::Option* add_flags_file_option(CLI::App& command, std::string& path) {
  return command
      .add_option(
          "--config", path,
          "JSON file with these options, {\"ffn_ranks\": 2}: keys are their names with _ for "
          "-, paths are relative to the file. What stands on the command line goes first")
      ->type_name(kPathType);
}

Result<void> apply_flags_file(CLI::App& command, const std::string& path) {
  const JsonLimits limits;
  Result<std::string> text = read_text_file(path, limits.bytes_max);
  if (!text) {
    return fail(std::move(text).error());
  }
  const std::string name = path == "-" ? "stdin" : path;
  const Result<JsonValue> json = parse_json(*text, limits);
  if (!json) {
    return fail(invalid(name + ": " + json.error().message));
  }
  if (json->kind != JsonValue::Kind::kObject) {
    return fail(invalid(name + ": " + kind_text(*json) + ", expected an object of options"));
  }
  const std::filesystem::path folder =
      path == "-" ? std::filesystem::path() : std::filesystem::path(path).parent_path();
  const std::vector<std::string> keys = keys_of(command);
  for (const JsonMember& member : json->members) {
    if (std::ranges::find(keys, member.key) == keys.end()) {
      const std::string near = nearest(member.key, keys);
      return fail(invalid(name + ": no option '" + printable(member.key) + "'" +
                          (near.empty() ? "" : "; did you mean '" + near + "'?")));
    }
    std::string option_name = "--" + member.key;
    std::ranges::replace(option_name, '_', '-');
    if (Result<void> applied = apply(*command.get_option(option_name), member.value, folder);
        !applied) {
      return fail(invalid(name + ": '" + member.key + "': " + applied.error().message));
    }
  }
  return {};
}

}  // namespace afd::cli
