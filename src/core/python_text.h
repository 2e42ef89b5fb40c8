// Values as Python would print them: the messages of the configuration are those that the users of
// the Python engines know and match on.
//
// Threads: plain functions.
#pragma once

#include <string>
#include <string_view>

#include "core/json.h"

namespace afd {

/// Python's repr() of the value as json.loads() gives it: 'ffn', None, True, 2.5, [1, 'a']. Cut to
/// about 200 bytes.
std::string python_repr(const JsonValue& value);
std::string python_repr(std::string_view text);

/// "str", "int", "NoneType", "list", "dict", "float", "bool".
std::string_view python_type_name(const JsonValue& value);

/// Whether the number was written as an integer (of any length).
bool is_python_int(const JsonValue& value);

}  // namespace afd
