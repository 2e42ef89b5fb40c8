// The connectors that `afd` knows: the built-in ones and plug-ins.
//
//   afd connectors --plugin NAME=LIBRARY        once for each; before or after the command's name
//   AFD_PLUGINS=NAME=LIBRARY,NAME=LIBRARY       the same; what the ranks of `afd run` inherit
//
// Threads: the process's only thread (it changes the environment).
#pragma once

#include <afd/factory.h>
#include <afd/result.h>

namespace CLI {
class App;
}

namespace afd::cli {

/// Adds --plugin. What it names is appended to AFD_PLUGINS before any command runs.
void add_plugin_flag(CLI::App& app);

/// @return kInvalidArgument  AFD_PLUGINS has an entry that is not NAME=LIBRARY
Result<void> check_plugins();

/// Opens nothing. Entries that check_plugins() refuses are left out; a later entry takes the place
/// of an earlier or built-in one of its name, since that was asked for.
ConnectorFactory known_connectors();

}  // namespace afd::cli
