#include "cli/parse_error.h"

#include <algorithm>
#include <cstddef>

#include <CLI/CLI.hpp>

#include "cli/exit_status.h"

namespace afd::cli {
namespace {

/// Letters to change, add, take away or swap with their neighbour until `from` is `to`.
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::vector<std::size_t>> cost(from.size() + 1,
                                             std::vector<std::size_t>(to.size() + 1));
  for (std::size_t i = 0; i <= from.size(); ++i) {
    for (std::size_t k = 0; k <= to.size(); ++k) {
      if (i == 0 || k == 0) {
        cost[i][k] = i + k;
        continue;
      }
      const std::size_t change = from[i - 1] == to[k - 1] ? 0 : 1;
      cost[i][k] = std::min({cost[i - 1][k] + 1, cost[i][k - 1] + 1, cost[i - 1][k - 1] + change});
      if (i > 1 && k > 1 && from[i - 1] == to[k - 2] && from[i - 2] == to[k - 1]) {
        cost[i][k] = std::min(cost[i][k], cost[i - 2][k - 2] + 1);
      }
    }
  }
  return cost[from.size()][to.size()];
}

/// The command that was under way: `run`, `bench hop`, or `afd` itself.
struct Command {
  const CLI::App* app;
  std::string name;
};

Command current_command(const CLI::App& app) {
  Command command{&app, ""};
  for (auto parsed = app.get_subcommands(); !parsed.empty();
       parsed = command.app->get_subcommands()) {
    command.app = parsed.back();
    command.name += (command.name.empty() ? "" : " ") + command.app->get_name();
  }
  return command;
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* level = &app; level != nullptr; level = level->get_parent()) {
    for (const CLI::Option* option : level->get_options()) {
      if (!option->get_group().empty()) {  // not one of the hidden ones
        for (const std::string& name : option->get_lnames()) {
          names.push_back("--" + name);
        }
      }
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

/// "Could not convert: --stages = abc" -> "--stages is 'abc', expected a number": only numbers have
/// to be converted.
std::string conversion_text(const std::string& what) {
  constexpr std::string_view kPrefix = "Could not convert: ";
  constexpr std::string_view kEquals = " = ";
  const std::size_t equals = what.find(kEquals);
  if (!what.starts_with(kPrefix) || equals == std::string::npos) {
    return what;
  }
  return what.substr(kPrefix.size(), equals - kPrefix.size()) + " is '" +
         what.substr(equals + kEquals.size()) + "', expected a number in its range";
}

/// What the parser has to say, or, where a word was left over, that it is unknown.
std::string message_of(const CLI::App& app, const CLI::ParseError& error, const Command& command) {
  const std::vector<std::string> commands = subcommands_of(*command.app);
  const std::vector<std::string> left_over = app.remaining(true);
  const bool is_missing = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  const bool is_extra = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  if (left_over.empty() || !(is_missing || is_extra)) {
    return is_missing && !commands.empty() ? "no command given, expected one of " + joined(commands)
                                           : conversion_text(error.what());
  }
  const std::string word = left_over[0].substr(0, left_over[0].find('='));
  const bool is_option = word.starts_with('-');
  if (!is_option && commands.empty()) {
    return "unexpected argument '" + left_over[0] + "'";
  }
  const std::string meant = nearest(word, is_option ? options_of(*command.app) : commands);
  std::string text = (is_option ? "unknown option '" : "unknown command '") + word + "'";
  if (!meant.empty()) {
    text += "; did you mean '" + meant + "'?";
  } else if (!is_option) {
    text += ", expected one of " + joined(commands);
  }
  return text;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(word.size() / 3, 1) + 1;
  for (const std::string& candidate : candidates) {
    if (const std::size_t found = distance(word, candidate); found < best_distance) {
      best = candidate;
      best_distance = found;
    }
  }
  return best;
}

int end_of_parsing(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {  // help or version
    return app.exit(error);
  }
  const Command command = current_command(app);
  return report_usage(command.name, {ErrorCode::kInvalidArgument, message_of(app, error, command)});
}

}  // namespace afd::cli
