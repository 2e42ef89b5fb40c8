#include <string>

#include <CLI/CLI.hpp>

#include "cli/commands.h"

namespace afd::cli {
namespace {

/// "-007" -> "-7"; what is no number, or a hexadecimal one, stays.
std::string without_leading_zeros(std::string text) {
  const std::size_t first = text.find_first_not_of("+-");
  const auto is_digit = [&](std::size_t at) {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
  };
  while (first < text.size() && text[first] == '0' && is_digit(first + 1)) {
    text.erase(first, 1);
  }
  return text;
}

}  // namespace

void read_numbers_as_decimal(CLI::App& app) {
  for (CLI::Option* const option : app.get_options()) {
    const std::string type = option->get_type_name();
    if (type.starts_with("INT") || type.starts_with("UINT")) {
      option->transform(without_leading_zeros);
    }
  }
  for (CLI::App* const command : app.get_subcommands({})) {
    read_numbers_as_decimal(*command);
  }
}

}  // namespace afd::cli
