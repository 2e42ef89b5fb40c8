// A command's options from a JSON file, for `--config`.
#pragma once

#include <string>

#include <afd/result.h>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace afd::cli {

/// Options with values of this type name are paths: in a file, relative to the file's folder.
inline constexpr char kPathType[] = "PATH";

/// Adds --config to a command whose other options may then stand in a file as well.
CLI::Option* add_flags_file_option(CLI::App& command, std::string& path);

/// Sets the options that a JSON object names and neither the command line nor the environment has
/// set. A key is an option's long name with _ for -, {"ffn_ranks": 2}; a value a text, a number,
/// for a flag true or false, for an option that may be repeated a list, for one that takes JSON an
/// object. "-" reads stdin.
/// @return kInvalidArgument  file, key, what was found and what was wanted; options may have been
///         set by then
Result<void> apply_flags_file(CLI::App& command, const std::string& path);

}  // namespace afd::cli
