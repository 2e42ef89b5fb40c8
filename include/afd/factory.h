// From a connector's name to a connector.
//
//   1. the composition root registers names with loaders, or names with plug-in libraries;
//   2. get_connector_class(name) runs the loader, once, which may open a library (nothing is opened
//      before);
//   3. create_connector(params) makes the object; init_afd_connector() on it meets the others.
//
// Threads: register first, from one thread; then const methods from any thread. Threads that ask at
// once for a connector load it once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <afd/config.h>
#include <afd/connector.h>
#include <afd/export.h>
#include <afd/result.h>

namespace afd {

/// Everything that sizes the landing memory. Equal on all ranks: the handshake compares every
/// field.
struct TransferLimits {
  std::uint32_t hidden_size = 0;
  std::uint32_t num_layers = 1;
  std::uint32_t num_experts = 0;     ///< Width of router logits; 0: none are ever sent.
  std::uint32_t top_k = 0;           ///< Width of topk_ids; 0: none are ever sent.
  std::uint32_t max_num_tokens = 1;  ///< Rows of one attention rank in one stage, at most.
  std::uint32_t num_stages = 1;      ///< At least 1, at most the connector's num_stages_max.
  DType dtype = kFloat32;            ///< Of hidden states and FFN output.

  friend bool operator==(const TransferLimits&, const TransferLimits&) = default;
};

/// What a connector is made from.
struct ConnectorParams {
  std::int32_t rank = 0;        ///< The engine's global rank, for messages only.
  std::int32_t local_rank = 0;  ///< Device index on this host.
  std::uint32_t role_rank = 0;  ///< [0, A) or [0, F)
  AfdConfig config;
  TransferLimits limits;
  /// Further values on which all ranks must agree, such as a model hash. A difference ends init
  /// with kProtocolMismatch naming the key, both values and both ranks.
  std::vector<std::pair<std::string, std::string>> must_match;
  /// Told, while waiting in init, who is missing ("attention rank 1, ffn rank 0"). Called about
  /// once a second from the thread in init; may call close(), with which init ends. May be empty.
  std::function<void(std::string_view missing)> on_waiting;
  /// Told once in init, on the rank that listens (rank 0 of the FFN ranks), at which port: the one
  /// that it took where `config.port` is 0. From the thread in init. May be empty.
  std::function<void(std::uint16_t port)> on_listening;
};

/// What a connector's module gives: the counterpart of a Python class object. Immutable.
class AFD_EXPORT ConnectorClass {
 public:
  virtual ~ConnectorClass() = default;

  virtual std::string_view name() const = 0;
  /// Whether it can run on this machine now. @return kUnavailable with what is missing
  virtual Result<void> check_available() const = 0;
  virtual Capabilities capabilities() const = 0;
  /// Checks the connector's own settings without creating anything.
  ///
  /// @param raw_json  the text of the `connector_extra_config` value; empty counts as absent
  /// @return the effective settings as JSON text ("{}" where there are none), or kInvalidArgument
  virtual Result<std::string> parse_extra_config(std::string_view raw_json) const = 0;
  /// Makes a connector that holds no communication resource yet.
  /// @return kInvalidArgument  params break a rule of this connector
  virtual Result<std::unique_ptr<ConnectorBase>> create(const ConnectorParams& params) const = 0;
};

/// Returns the class, which lives as long as the process. May open a library; may fail, and is then
/// asked again the next time. Must not ask the factory for its own name.
using ConnectorLoader = std::function<Result<const ConnectorClass*>()>;

/// One line of `afd connectors`.
struct ConnectorInfo {
  std::string name;
  std::string origin;  ///< "built in", or the library that it is loaded from.
  bool available = false;
  std::string why_not;        ///< Empty if available.
  Capabilities capabilities;  ///< Empty unless the class could be loaded.
};

class AFD_EXPORT ConnectorFactory {
 public:
  ConnectorFactory();
  ~ConnectorFactory();
  ConnectorFactory(ConnectorFactory&&) noexcept;
  ConnectorFactory& operator=(ConnectorFactory&&) noexcept;

  /// Runs nothing: the loader runs when the class is first asked for.
  ///
  /// @param origin  for `afd connectors`: "built in"
  /// @return kInvalidArgument  "connector '<name>' is already registered", unless replace; the name
  ///         or the loader is empty
  Result<void> register_connector(std::string name, ConnectorLoader loader, bool replace = false,
                                  std::string origin = "built in");

  /// Registers a name whose class a shared object exports (afd/plugin.h). Opens nothing.
  ///
  /// @param library  a path, or a name that the dynamic loader resolves
  /// @param symbol   empty: kPluginSymbol
  Result<void> register_plugin(std::string name, std::string library, std::string symbol = {},
                               bool replace = false);

  /// @return kInvalidArgument  "unsupported AFD connector type: <name>; available: ..."
  ///         kUnavailable      the library is missing, exports the wrong thing, or was built for
  ///                           another release, compiler or standard library: which, and both tags
  Result<const ConnectorClass*> get_connector_class(std::string_view name) const;

  /// Makes the connector that params.config.connector names. Checks what holds for every connector
  /// first: ranks (build_rank_mapping), the extra settings with the connector's own parser, and
  /// that the limits are positive and num_stages within the connector's num_stages_max.
  ///
  /// @return kInvalidArgument  one of these, or a rule of the connector, is broken
  ///         kUnavailable      as get_connector_class
  ///         kInternal         the connector threw
  Result<std::unique_ptr<ConnectorBase>> create_connector(const ConnectorParams& params) const;

  /// Checks `connector_extra_config` of a connector's config without creating anything.
  Result<std::string> parse_connector_extra_info(std::string_view name,
                                                 std::string_view raw_json) const;

  /// Registered names in order of registration. Opens nothing.
  std::vector<std::string> connector_names() const;
  /// Tries to load each class. Slow; for people.
  std::vector<ConnectorInfo> describe() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A factory with the connectors of this library: src/builtin names them.
AFD_EXPORT ConnectorFactory builtin_connectors();

}  // namespace afd
