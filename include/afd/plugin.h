// What a connector plug-in exports: one constant named afd_connector_plugin_v1.
//
//   extern "C" AFD_EXPORT const AfdConnectorPluginV1 afd_connector_plugin_v1 = {
//       sizeof(AfdConnectorPluginV1), AFD_BUILD_TAG, "MyConnector", &my_connector_class};
//
// The loader opens the library with RTLD_LOCAL and looks for the symbol. C++ objects cross this
// boundary, so both sides must come from the same compiler, standard library and release of this
// library. `build_tag` says which they were; a difference is kUnavailable with both tags in the
// message, at load time, never a crash later.
//
// A plug-in is never unloaded: its code may still stand on some thread's stack.
#pragma once

#include <cstdint>

#include <afd/factory.h>
#include <afd/version.h>

namespace afd {

inline constexpr const char* kPluginSymbol = "afd_connector_plugin_v1";

}  // namespace afd

extern "C" {

struct AfdConnectorPluginV1 {
  std::uint32_t struct_bytes;  ///< sizeof(AfdConnectorPluginV1), as the plug-in was compiled.
  const char* build_tag;       ///< AFD_BUILD_TAG, as the plug-in was compiled.
  const char* connector_name;  ///< As in the configuration: "MyConnector".

  /// Returns the class, which lives as long as the process. Does not throw.
  const afd::ConnectorClass* (*connector_class)();
};

}  // extern "C"
