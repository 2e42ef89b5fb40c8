// Opens a connector's shared object and checks that it is one that this library can use.
//
// Threads: from any thread.
#pragma once

#include <string>

#include <afd/factory.h>
#include <afd/result.h>

namespace afd {

struct PluginReference {
  std::string connector_name;  ///< The name under which it was registered.
  std::string library;         ///< A path, or a name that the dynamic loader resolves.
  std::string symbol;          ///< The constant of type AfdConnectorPluginV1.
  std::string absent;  ///< What to say where there is no such file; empty: the loader's words.
};

/// Opens the library, for good, and returns the class that it exports.
///
/// @return kUnavailable  the library cannot be opened; it lacks the symbol; it was built for
///                       another release, compiler or standard library; it has another connector
///                       in it
Result<const ConnectorClass*> load_plugin(const PluginReference& reference);

}  // namespace afd
