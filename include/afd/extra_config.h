// A connector's own settings: the `connector_extra_config` mapping, read key by key.
//
//   Result<ExtraConfig> extra = ExtraConfig::parse("CAMP2P", raw_json);
//   extra->check_keys({"core_num", "quant_mode"});
//   extra->positive_integer("core_num", 8);
//
// Values may be written as people do: "8" for 8, "yes" for true. Messages are the reference's.
//
// Threads: immutable.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <afd/export.h>
#include <afd/result.h>

namespace afd {

struct JsonValue;

class AFD_EXPORT ExtraConfig {
 public:
  /// @param owner     whose settings they are, for messages: "CAMP2P"
  /// @param raw_json  one JSON object; empty or "null" counts as "{}"
  /// @return kInvalidArgument  no JSON, or "<owner> connector_extra_config must be a mapping"
  static Result<ExtraConfig> parse(std::string owner, std::string_view raw_json);

  bool empty() const;
  bool has(std::string_view key) const;
  /// The settings as they were written, as JSON text on one line.
  std::string to_json() const;

  /// @return kInvalidArgument  naming every key that is not among `known`, sorted
  Result<void> check_keys(std::initializer_list<std::string_view> known) const;

  // Each returns the fallback where the key is absent, and kInvalidArgument with the key, the value
  // and what was wanted where the value does not fit.

  /// Any 64-bit integer.
  Result<std::int64_t> integer(std::string_view key, std::int64_t fallback) const;
  /// At least 1.
  Result<std::int64_t> positive_integer(std::string_view key, std::int64_t fallback) const;
  /// At least 1; none where absent, null or "".
  Result<std::optional<std::int64_t>> optional_positive_integer(std::string_view key) const;
  Result<bool> boolean(std::string_view key, bool fallback) const;
  /// Without the white space around it, in lower case.
  Result<std::string> word(std::string_view key, std::string_view fallback) const;

 private:
  ExtraConfig(std::string owner, std::shared_ptr<const JsonValue> settings);

  std::string owner_;
  std::shared_ptr<const JsonValue> settings_;  // Shared by copies of this object.
};

/// parse_extra_config() of a connector that has no settings.
///
/// @param connector  its name: "P2pNcclAFDConnector"
/// @return "{}", or kInvalidArgument: "<connector> does not support connector_extra_config"
AFD_EXPORT Result<std::string> parse_no_extra_config(std::string_view connector,
                                                     std::string_view raw_json);

}  // namespace afd
