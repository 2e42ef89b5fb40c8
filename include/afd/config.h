// The configuration of one rank: who it is, whom it meets, and which connector carries the data.
//
// Keys, aliases, defaults and messages are those of the `afd` section of an engine's
// `additional_config` (docs/architecture.md has the table). Unknown keys are errors.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <afd/export.h>
#include <afd/result.h>

namespace afd {

enum class Role : std::uint8_t { kAttention = 0, kFfn = 1 };

/// "attention" or "ffn".
AFD_EXPORT std::string_view to_string(Role role);
/// @return kInvalidArgument  "AFD role must be one of ('attention', 'ffn'), got 'x'"
AFD_EXPORT Result<Role> parse_role(std::string_view text);

/// Plain data: copy it, compare it, print it.
struct AFD_EXPORT AfdConfig {
  std::string connector = "P2pNcclAFDConnector";
  bool async_dp = false;
  Role role = Role::kAttention;
  std::string host = "127.0.0.1";  ///< Rendezvous address: where world rank 0 listens.
  std::uint16_t port = 1239;       ///< Its TCP port, 1 to 65535.
  std::uint32_t num_attention_ranks = 1;
  std::uint32_t num_ffn_ranks = 1;
  bool compute_gate_on_attention = false;
  /// The connector's own section as JSON text. "{}" when absent.
  std::string connector_extra_config = "{}";

  bool is_attention_server() const { return role == Role::kAttention; }
  bool is_ffn_server() const { return role == Role::kFfn; }

  /// Lower-case hex SHA-256 over the fields that shape the computation, as on the reference:
  /// connector, async_dp, role, A, F.
  std::string compute_hash() const;

  friend bool operator==(const AfdConfig&, const AfdConfig&) = default;
};

struct ParseConfigOptions {
  /// Names that `connector` may have: ConnectorFactory::connector_names().
  std::vector<std::string> connector_names;
  /// Set: another role is an error ("AFD role mismatch: ...").
  std::optional<Role> expected_role;
  /// Apply the reference's rule A >= F, A % F == 0 to P2pNcclAFDConnector.
  bool strict_topology = false;
};

/// Parses the `afd` section itself.
/// @return kInvalidArgument with the first problem, in the documented order
AFD_EXPORT Result<AfdConfig> parse_afd_config(std::string_view json_text,
                                              const ParseConfigOptions& options);

/// Parses an engine's `additional_config` object: none where it has no `afd` key.
AFD_EXPORT Result<std::optional<AfdConfig>> parse_optional_afd_config(
    std::string_view additional_config_json, const ParseConfigOptions& options);

/// The effective configuration as indented JSON, every key in table order.
AFD_EXPORT std::string to_json(const AfdConfig& config);

}  // namespace afd
