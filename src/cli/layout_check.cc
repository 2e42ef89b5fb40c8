#include "cli/layout_check.h"

#include <memory>

namespace afd::cli {
namespace {

/// Makes a connector of rank 0 of the role, which has the most peers of its role, and drops it.
Result<void> try_layout(const ConnectorFactory& factory, const AfdConfig& config, Role role,
                        const Capabilities& capabilities) {
  ConnectorParams params;
  params.config = config;
  params.config.role = role;
  params.limits = {.hidden_size = 64, .num_layers = 1, .max_num_tokens = 1, .num_stages = 1};
  if (!capabilities.dtypes.empty()) {
    params.limits.dtype = capabilities.dtypes.front();
  }
  Result<std::unique_ptr<ConnectorBase>> connector = factory.create_connector(params);
  if (!connector) {
    return fail(std::move(connector).error());
  }
  return {};
}

}  // namespace

std::string layout_note(const ConnectorFactory& factory, const AfdConfig& config) {
  const Result<const ConnectorClass*> connector_class =
      factory.get_connector_class(config.connector);
  if (!connector_class) {
    return {};
  }
  const Capabilities capabilities = (*connector_class)->capabilities();
  AfdConfig smallest = config;
  smallest.num_attention_ranks = 1;
  smallest.num_ffn_ranks = 1;
  for (const Role role : {Role::kFfn, Role::kAttention}) {
    const Result<void> tried = try_layout(factory, config, role, capabilities);
    // What it refuses of one rank each as well is not about the layout.
    if (!tried && tried.error().code == ErrorCode::kInvalidArgument &&
        try_layout(factory, smallest, role, capabilities)) {
      return config.connector + " refuses this layout: " + tried.error().message;
    }
  }
  return {};
}

}  // namespace afd::cli
