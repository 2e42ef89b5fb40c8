// Reading JSON files that somebody else wrote: nothing is accepted that two readers could read
// differently.
//
// Templates of the JSON type, with nlohmann::json as their one instance, keep its header out of
// this one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <afd/result.h>

namespace afd::model {

/// Parses the whole text: `parse_json<nlohmann::json>(text)`. A key that occurs twice in one
/// object, nesting beyond 64 levels, invalid UTF-8 and trailing text are refused.
/// @return kInvalidArgument  what is wrong, and where
template <typename Json>
Result<Json> parse_json(std::string_view text);

/// "a string", "a number", ... for messages.
template <typename Json>
std::string_view kind_of(const Json& value);

/// The value as text for messages, cut after 60 characters.
template <typename Json>
std::string shown(const Json& value);

/// The file's bytes.
/// @return kInvalidArgument  it cannot be read or is larger than `bytes_max`; names the path
Result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max);

}  // namespace afd::model
