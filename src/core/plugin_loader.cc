#include "core/plugin_loader.h"

#include <string>
#include <string_view>
#include <utility>

#include <afd/plugin.h>

#include "base/dynamic_library.h"

namespace afd {
namespace {

Result<const AfdConnectorPluginV1*> find_plugin(const PluginReference& reference) {
  Result<base::DynamicLibrary> library = base::DynamicLibrary::open(reference.library);
  if (!library) {
    if (!reference.absent.empty() && base::is_absent(library.error())) {
      return fail(ErrorCode::kUnavailable, reference.absent);
    }
    return fail(std::move(library).error());
  }
  Result<void*> symbol = library->symbol(reference.symbol);
  if (!symbol) {
    return fail(std::move(symbol).error().with_context(
        "it does not export '" + reference.symbol +
        "', so it is no connector plug-in, or one for another release"));
  }
  return static_cast<const AfdConnectorPluginV1*>(*symbol);
}

Result<void> check_plugin(const AfdConnectorPluginV1& plugin, const PluginReference& reference) {
  // The size comes first: it says whether the other fields are where we look for them.
  if (plugin.struct_bytes != sizeof(AfdConnectorPluginV1)) {
    return fail(ErrorCode::kUnavailable, "its '" + reference.symbol + "' says that it has " +
                                             std::to_string(plugin.struct_bytes) +
                                             " bytes, expected " +
                                             std::to_string(sizeof(AfdConnectorPluginV1)));
  }
  const std::string_view build_tag = plugin.build_tag == nullptr ? "" : plugin.build_tag;
  if (build_tag != AFD_BUILD_TAG) {
    return fail(ErrorCode::kUnavailable, "it was built as '" + std::string(build_tag) +
                                             "', expected '" AFD_BUILD_TAG
                                             "': rebuild it against this library");
  }
  const std::string_view name = plugin.connector_name == nullptr ? "" : plugin.connector_name;
  if (name != reference.connector_name) {
    return fail(ErrorCode::kUnavailable, "it has the connector '" + std::string(name) +
                                             "' in it, expected '" + reference.connector_name +
                                             "'");
  }
  if (plugin.connector_class == nullptr) {
    return fail(ErrorCode::kUnavailable, "its connector_class is null, expected a function");
  }
  return {};
}

Result<const ConnectorClass*> open_plugin(const PluginReference& reference) {
  const Result<const AfdConnectorPluginV1*> plugin = find_plugin(reference);
  if (!plugin) {
    return fail(plugin.error());
  }
  if (Result<void> checked = check_plugin(**plugin, reference); !checked) {
    return fail(std::move(checked).error());
  }
  const ConnectorClass* connector_class = (*plugin)->connector_class();
  if (connector_class == nullptr) {
    return fail(ErrorCode::kUnavailable, "its connector_class() returned null");
  }
  if (connector_class->name() != reference.connector_name) {
    return fail(ErrorCode::kUnavailable, "its class calls itself '" +
                                             std::string(connector_class->name()) +
                                             "', expected '" + reference.connector_name + "'");
  }
  return connector_class;
}

}  // namespace

Result<const ConnectorClass*> load_plugin(const PluginReference& reference) {
  Result<const ConnectorClass*> opened = open_plugin(reference);
  if (!opened && opened.error().message == reference.absent) {
    return opened;  // It names the library itself.
  }
  if (!opened) {
    return fail(std::move(opened).error().with_context("plug-in library '" + reference.library +
                                                       "' of connector '" +
                                                       reference.connector_name + "'"));
  }
  return opened;
}

}  // namespace afd
