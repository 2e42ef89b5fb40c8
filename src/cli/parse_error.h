// What the parser of the command line could not take, said as every other error is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace afd::cli {

/// Prints the help or the version that was asked for, or what is wrong with the command line: which
/// word of which command, and the nearest one that it knows.
/// @return the exit status
int end_of_parsing(const CLI::App& app, const CLI::ParseError& error);

/// The candidate with the fewest changed, missing, added or swapped letters; empty where none is
/// near enough to be meant.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace afd::cli
