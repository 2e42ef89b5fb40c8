#include "cli/plugins.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

namespace afd::cli {
namespace {

constexpr const char* kVariable = "AFD_PLUGINS";

std::string_view from_environment() {
  const char* value = std::getenv(kVariable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

struct Entry {
  std::string name;
  std::string library;
};

std::optional<Entry> parse_entry(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return std::nullopt;
  }
  return Entry{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

std::string not_an_entry(std::string_view text) {
  return "'" + std::string(text) + "' is not NAME=LIBRARY";
}

template <typename Visit>
void for_each_entry(Visit visit) {
  std::string_view rest = from_environment();
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
    if (!entry.empty()) {
      visit(entry);
    }
  }
}

void append_to_environment(const std::vector<std::string>& entries) {
  std::string all(from_environment());
  for (const std::string& entry : entries) {
    all += (all.empty() ? "" : ",") + entry;
  }
  ::setenv(kVariable, all.c_str(), /*replace=*/1);
}

}  // namespace

void add_plugin_flag(CLI::App& app) {
  app.add_option_function<std::vector<std::string>>("--plugin", append_to_environment,
                                                    "A connector of a shared object; may be "
                                                    "repeated (also AFD_PLUGINS, with commas)")
      ->type_name("NAME=LIBRARY")
      ->allow_extra_args(false)
      ->check([](const std::string& entry) {
        return parse_entry(entry) ? std::string() : not_an_entry(entry);
      });
}

Result<void> check_plugins() {
  std::string wrong;
  for_each_entry([&](std::string_view entry) {
    if (!parse_entry(entry)) {
      wrong += (wrong.empty() ? "" : "; ") + not_an_entry(entry);
    }
  });
  if (!wrong.empty()) {
    return fail(ErrorCode::kInvalidArgument, std::string(kVariable) + ": " + wrong);
  }
  return {};
}

ConnectorFactory known_connectors() {
  ConnectorFactory factory = builtin_connectors();
  for_each_entry([&](std::string_view text) {
    if (const std::optional<Entry> entry = parse_entry(text)) {
      // Cannot fail: the name is not empty, and replacing is allowed.
      (void)factory.register_plugin(entry->name, entry->library, {}, /*replace=*/true);
    }
  });
  return factory;
}

}  // namespace afd::cli
