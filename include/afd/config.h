// The configuration of one rank: who it is, whom it meets, and which connector carries the data.
//
// Keys, aliases, defaults and messages are those of the `afd` section of an engine's
// `additional_config` (docs/architecture.md has the table). Unknown keys are errors.
//
// Threads: plain values.
#pragma once

#include <chrono>
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

/// How the ranks of a job meet and watch each other. The defaults are for one host.
///
/// Plain data: copy it, compare it, print it.
struct AFD_EXPORT SessionConfig {
  /// Where rank 0 listens: an address of this host, or "0.0.0.0" or "::" for all of them. Empty: at
  /// `host`. Other ranks connect to `host` whatever this says.
  std::string bind_host{};
  /// What this rank tells the others of where it is, at most 8; empty: the local address of its
  /// connection to rank 0.
  std::vector<std::string> addresses{};
  /// A file with what all ranks of the job know and nobody else: mode 0600, this user's, 16 to 4096
  /// bytes. Set on all ranks or on none. Beyond loopback ranks meet with a secret, or with
  /// `insecure`.
  std::string secret_file{};
  /// TLS 1.3 for the session, all three files or none, in PEM: this rank's certificate (and what
  /// leads from it to the authority), its key, and the authority that signed every rank's. Ranks
  /// verify each other, and rank 0's certificate has to name `host`. Also on all ranks or on none;
  /// with it a secret may be left out.
  std::string tls_certificate_file{};
  std::string tls_key_file{};
  std::string tls_ca_file{};
  /// Meet beyond loopback without a secret: whoever reaches the port can join, listen and lie.
  bool insecure = false;
  /// Of connections beyond loopback. Whole seconds, 1 s to 1 h.
  std::chrono::seconds heartbeat_interval{1};
  /// A host that gives no sign of life for so long is lost. At least three times the interval, so
  /// that one lost packet is no lost host; at most 1 h.
  std::chrono::seconds heartbeat_limit{5};

  bool has_tls() const { return !tls_certificate_file.empty(); }

  friend bool operator==(const SessionConfig&, const SessionConfig&) = default;
};

/// Checks every field and reports the first problem. @return kInvalidArgument
AFD_EXPORT Result<void> validate_session_config(const SessionConfig& config);

/// Plain data: copy it, compare it, print it.
struct AFD_EXPORT AfdConfig {
  std::string connector = "P2pNcclAFDConnector";
  bool async_dp = false;
  Role role = Role::kAttention;
  std::string host = "127.0.0.1";         ///< Rendezvous address: where world rank 0 listens.
  std::uint16_t port = 1239;              ///< Its TCP port, 1 to 65535.
  std::uint32_t num_attention_ranks = 1;  ///< 1 to kRanksMax (afd/topology.h: what runs has less).
  std::uint32_t num_ffn_ranks = 1;
  bool compute_gate_on_attention = false;
  SessionConfig session;
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

/// Parses the `afd` section itself. Booleans may be written as 1, 0, "yes", "off" and the like,
/// integers as strings.
///
/// @param json_text  one JSON object of at most 1 MiB, in which no key stands twice
/// @return kInvalidArgument with the first problem, in this order: JSON
///         ("AFD config: line 2, column 7: ..."), keys as they were written, types (async, port,
///         ranks, gate), then role, connector, async mode, strict topology, host, port, ranks
AFD_EXPORT Result<AfdConfig> parse_afd_config(std::string_view json_text,
                                              const ParseConfigOptions& options);

/// The extra settings of an `afd` section as JSON text, "{}" when absent. Checks the section's keys
/// and types, not its values.
/// @return kInvalidArgument
AFD_EXPORT Result<std::string> connector_extra_config(std::string_view json_text);

// The functions below take an engine's `additional_config` object, whose key `afd` switches AFD on.
// The empty text and `null` are an engine without one. Each returns kInvalidArgument where the text
// is no JSON, no mapping, or its `afd` value is invalid.

/// None where there is no `afd` key.
AFD_EXPORT Result<std::optional<AfdConfig>> parse_optional_afd_config(
    std::string_view additional_config_json, const ParseConfigOptions& options);
/// An error where there is no `afd` key: 'AFD config requires additional_config["afd"]; ...'.
AFD_EXPORT Result<AfdConfig> parse_required_afd_config(std::string_view additional_config_json,
                                                       const ParseConfigOptions& options);
/// Whether there is an `afd` key, whatever its value.
AFD_EXPORT Result<bool> has_afd_config(std::string_view additional_config_json);
/// Whether there is a valid `afd` section. An invalid one is an error, never "inactive".
AFD_EXPORT Result<bool> is_afd_active(std::string_view additional_config_json,
                                      const ParseConfigOptions& options);
/// Whether the section asks for asynchronous data parallelism. Does not check other values.
AFD_EXPORT Result<bool> is_afd_async_dp(std::string_view additional_config_json);
/// As connector_extra_config(); "{}" where there is no section.
AFD_EXPORT Result<std::string> connector_extra_config_from_source(
    std::string_view additional_config_json);

/// The effective configuration as indented JSON, every key in table order.
AFD_EXPORT std::string to_json(const AfdConfig& config);

}  // namespace afd
