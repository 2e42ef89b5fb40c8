#include <afd/factory.h>

#include <algorithm>
#include <exception>

#include <afd/plugin.h>
#include <afd/topology.h>

#include "core/plugin_loader.h"

namespace afd {
namespace {

/// One registered name.
///
/// `mutex` guards `connector_class` and is held while the loader runs, so that threads that ask at
/// once load once. A loader must therefore not ask for its own name.
struct Entry {
  std::string name;
  std::string origin;
  ConnectorLoader loader;
  std::mutex mutex;
  const ConnectorClass* connector_class = nullptr;  // Null until a load succeeded.
};

Error thrown(std::string_view name, std::string_view what_was_done, std::string_view what) {
  return Error{ErrorCode::kInternal, "connector '" + std::string(name) + "' threw while " +
                                         std::string(what_was_done) + ": " + std::string(what)};
}

/// Calls code of a connector, which may be somebody else's and break the rule not to throw.
template <typename T, typename Call>
Result<T> call_guarded(std::string_view name, std::string_view what_is_done, Call call) {
  try {
    return call();
  } catch (const std::exception& exception) {
    return fail(thrown(name, what_is_done, exception.what()));
  } catch (...) {
    return fail(thrown(name, what_is_done, "something that is no std::exception"));
  }
}

Result<const ConnectorClass*> load(Entry& entry) {
  const std::lock_guard lock(entry.mutex);
  if (entry.connector_class != nullptr) {
    return entry.connector_class;
  }
  Result<const ConnectorClass*> loaded =
      call_guarded<const ConnectorClass*>(entry.name, "loading", entry.loader);
  if (!loaded) {
    return loaded;  // Not remembered: the library may be installed meanwhile.
  }
  if (*loaded == nullptr) {
    return fail(ErrorCode::kUnavailable,
                "the loader of connector '" + entry.name + "' returned no class");
  }
  entry.connector_class = *loaded;
  return entry.connector_class;
}

Result<void> check_at_least_one(std::uint32_t value, const char* name) {
  if (value == 0) {
    return fail(ErrorCode::kInvalidArgument, std::string(name) + " is 0, expected at least 1");
  }
  return {};
}

Result<void> check_limits(const TransferLimits& limits, const Capabilities& capabilities,
                          std::string_view connector) {
  const std::pair<std::uint32_t, const char*> positives[] = {
      {limits.hidden_size, "hidden_size"},
      {limits.num_layers, "num_layers"},
      {limits.max_num_tokens, "max_num_tokens"},
      {limits.num_stages, "num_stages"},
  };
  for (const auto& [value, name] : positives) {
    if (Result<void> checked = check_at_least_one(value, name); !checked) {
      return checked;
    }
  }
  if (limits.num_stages > capabilities.num_stages_max) {
    return fail(ErrorCode::kInvalidArgument,
                "num_stages is " + std::to_string(limits.num_stages) + ", expected at most " +
                    std::to_string(capabilities.num_stages_max) + " for " + std::string(connector));
  }
  return {};
}

/// What holds for every connector, so that none has to check it again.
Result<void> check_params(const ConnectorParams& params, const ConnectorClass& connector_class) {
  const AfdConfig& config = params.config;
  const Result<RankMapping> mapping = build_rank_mapping(
      config.num_attention_ranks, config.num_ffn_ranks, config.role, params.role_rank);
  if (!mapping) {
    return fail(mapping.error());
  }
  if (Result<std::string> settings =
          connector_class.parse_extra_config(config.connector_extra_config);
      !settings) {
    return fail(std::move(settings).error());
  }
  return check_limits(params.limits, connector_class.capabilities(), connector_class.name());
}

}  // namespace

struct ConnectorFactory::State {
  // A list of pointers, since an entry's mutex cannot move; in order of registration.
  std::vector<std::unique_ptr<Entry>> entries;

  Entry* find(std::string_view name) const {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const auto& entry) { return entry->name == name; });
    return found == entries.end() ? nullptr : found->get();
  }

  std::string joined_names() const {
    std::string names;
    for (const auto& entry : entries) {
      names += names.empty() ? "" : ", ";
      names += entry->name;
    }
    return names.empty() ? "none" : names;
  }
};

ConnectorFactory::ConnectorFactory() : state_(std::make_unique<State>()) {}
ConnectorFactory::~ConnectorFactory() = default;
ConnectorFactory::ConnectorFactory(ConnectorFactory&&) noexcept = default;
ConnectorFactory& ConnectorFactory::operator=(ConnectorFactory&&) noexcept = default;

Result<void> ConnectorFactory::register_connector(std::string name, ConnectorLoader loader,
                                                  bool replace, std::string origin) {
  if (name.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a connector's name is empty");
  }
  if (!loader) {
    return fail(ErrorCode::kInvalidArgument, "connector '" + name + "' has no loader");
  }
  Entry* existing = state_->find(name);
  if (existing != nullptr && !replace) {
    return fail(ErrorCode::kInvalidArgument, "connector '" + name + "' is already registered");
  }
  auto entry = std::make_unique<Entry>();
  entry->name = std::move(name);
  entry->origin = std::move(origin);
  entry->loader = std::move(loader);
  if (existing == nullptr) {
    state_->entries.push_back(std::move(entry));
  } else {
    // In its old place: the order of names is the order of their first registration.
    const auto place = std::find_if(state_->entries.begin(), state_->entries.end(),
                                    [&](const auto& other) { return other.get() == existing; });
    *place = std::move(entry);
  }
  return {};
}

Result<void> ConnectorFactory::register_plugin(std::string name, std::string library,
                                               std::string symbol, bool replace) {
  if (library.empty()) {
    // dlopen("") would return the program itself.
    return fail(ErrorCode::kInvalidArgument, "connector '" + name + "' has no plug-in library");
  }
  PluginReference reference{name, library, symbol.empty() ? kPluginSymbol : std::move(symbol)};
  return register_connector(
      std::move(name), [reference = std::move(reference)] { return load_plugin(reference); },
      replace, std::move(library));
}

Result<const ConnectorClass*> ConnectorFactory::get_connector_class(std::string_view name) const {
  Entry* entry = state_->find(name);
  if (entry == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "unsupported AFD connector type: " + std::string(name) +
                    "; available: " + state_->joined_names());
  }
  return load(*entry);
}

Result<std::unique_ptr<ConnectorBase>> ConnectorFactory::create_connector(
    const ConnectorParams& params) const {
  const std::string& name = params.config.connector;
  const Result<const ConnectorClass*> loaded = get_connector_class(name);
  if (!loaded) {
    return fail(loaded.error());
  }
  const ConnectorClass& connector_class = **loaded;
  Result<void> checked = call_guarded<void>(name, "checking its settings",
                                            [&] { return check_params(params, connector_class); });
  if (!checked) {
    return fail(std::move(checked).error());
  }
  Result<std::unique_ptr<ConnectorBase>> connector = call_guarded<std::unique_ptr<ConnectorBase>>(
      name, "being created", [&] { return connector_class.create(params); });
  if (connector && *connector == nullptr) {
    return fail(ErrorCode::kInternal, "connector '" + name + "' created no object");
  }
  return connector;
}

Result<std::string> ConnectorFactory::parse_connector_extra_info(std::string_view name,
                                                                 std::string_view raw_json) const {
  const Result<const ConnectorClass*> connector_class = get_connector_class(name);
  if (!connector_class) {
    return fail(connector_class.error());
  }
  return call_guarded<std::string>(name, "checking its settings", [&] {
    return (*connector_class)->parse_extra_config(raw_json);
  });
}

std::vector<std::string> ConnectorFactory::connector_names() const {
  std::vector<std::string> names;
  names.reserve(state_->entries.size());
  for (const auto& entry : state_->entries) {
    names.push_back(entry->name);
  }
  return names;
}

std::vector<ConnectorInfo> ConnectorFactory::describe() const {
  std::vector<ConnectorInfo> lines;
  lines.reserve(state_->entries.size());
  for (const auto& entry : state_->entries) {
    ConnectorInfo& info = lines.emplace_back();
    info.name = entry->name;
    info.origin = entry->origin;
    const Result<void> available =
        call_guarded<void>(entry->name, "being described", [&]() -> Result<void> {
          const Result<const ConnectorClass*> connector_class = load(*entry);
          if (!connector_class) {
            return fail(connector_class.error());
          }
          info.capabilities = (*connector_class)->capabilities();
          return (*connector_class)->check_available();
        });
    info.available = available.has_value();
    info.why_not = available ? "" : available.error().message;
  }
  return lines;
}

}  // namespace afd
