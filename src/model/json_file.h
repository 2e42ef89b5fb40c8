// What this folder's readers of JSON files share. Parsing itself, strict, is core/json.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <afd/result.h>

#include "core/json.h"

namespace afd::model {

/// The file's bytes.
/// @return kInvalidArgument  it cannot be read or is larger than `bytes_max`; names the path
Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max);

/// The file's document.
/// @return kInvalidArgument  as read_text_file(), or what is wrong with the text; names the path
Result<JsonValue> read_json_file(const std::string& path, std::uint64_t bytes_max);

/// "a string", "an object", ... for messages.
std::string_view kind_of(const JsonValue& value);

/// The value as text for messages, cut when it is long.
std::string shown(const JsonValue& value);

/// A name from a file in quotes, cut when it is long.
std::string shown_name(std::string_view name);

}  // namespace afd::model
