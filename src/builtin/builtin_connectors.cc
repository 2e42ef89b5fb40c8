// The composition root: the one place that knows connectors by name.
//
// Two are built in. The seed's three others are plug-ins: naming them in a configuration is legal
// everywhere, and creating one opens its library, whose absence is then an error that says so.
#include <afd/factory.h>

#include <string>

#include "base/check.h"
#include "connectors/p2p/p2p_connector.h"

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

}  // namespace

ConnectorFactory builtin_connectors() {
  ConnectorFactory factory;
  add(factory, &p2p::p2p_shm_connector_class);
  add(factory, &p2p::in_process_connector_class);
  require(factory.register_plugin("P2pNcclAFDConnector", "libafd_connector_p2p_nccl.so"));
  require(factory.register_plugin("CAMP2pAFDConnector", "libafd_connector_camp2p.so"));
  require(factory.register_plugin("CAMAsyncAFDConnector", "libafd_connector_cam_async.so"));
  return factory;
}

}  // namespace afd
