// The composition root: the one place that knows connectors by name.
//
// Three are built in, one is a library of this release. Three others come with later releases, as
// plug-ins: naming them in a configuration is legal everywhere, and creating one opens its library,
// whose absence is then an error that says so.
#include <afd/factory.h>

#include <string>
#include <utility>

#include <afd/plugin.h>

#include "base/check.h"
#include "connectors/p2p/p2p_connector.h"
#include "core/plugin_loader.h"
#include "transport/ucx/ucx_library.h"

namespace afd {
namespace {

void require(const Result<void>& registered) {
  AFD_CHECK(registered, registered ? std::string() : registered.error().message);
}

void add(ConnectorFactory& factory, const ConnectorClass* (*connector_class)()) {
  require(factory.register_connector(
      std::string(connector_class()->name()),
      [connector_class]() -> Result<const ConnectorClass*> { return connector_class(); }));
}

/// A connector in a library of its own. @param absent  what to say where there is no such library
void add_library(ConnectorFactory& factory, const char* name, const char* library,
                 std::string absent) {
  PluginReference reference{.connector_name = name,
                            .library = library,
                            .symbol = kPluginSymbol,
                            .absent = std::move(absent)};
  require(factory.register_connector(
      name, [reference = std::move(reference)] { return load_plugin(reference); },
      /*replace=*/false, library));
}

/// A connector of a later release: its name is legal already, and its library is used where there
/// is one.
void add_later(ConnectorFactory& factory, const char* name, const char* library) {
  add_library(
      factory, name, library,
      std::string(name) + " is not part of this release; it would be loaded from " + library);
}

}  // namespace

ConnectorFactory builtin_connectors() {
  ConnectorFactory factory;
  add(factory, &p2p::p2p_connector_class);
  add(factory, &p2p::p2p_shm_connector_class);
  add(factory, &p2p::in_process_connector_class);
  add_library(factory, "P2pUcxAFDConnector", transport::kUcxLibrary,
              std::string("P2pUcxAFDConnector was ") + transport::kUcxLibraryAbsent);
  add_later(factory, "P2pNcclAFDConnector", "libafd_connector_p2p_nccl.so");
  add_later(factory, "CAMP2pAFDConnector", "libafd_connector_camp2p.so");
  add_later(factory, "CAMAsyncAFDConnector", "libafd_connector_cam_async.so");
  return factory;
}

}  // namespace afd
