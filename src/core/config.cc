#include <afd/config.h>

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include <afd/topology.h>

#include "core/afd_section.h"
#include "core/python_text.h"
#include "core/session_config.h"

namespace afd {
namespace {

// Two connectors have rules of their own in the configuration, as on the reference.
constexpr std::string_view kAsyncConnector = "CAMAsyncAFDConnector";
constexpr std::string_view kStrictConnector = "P2pNcclAFDConnector";

constexpr std::string_view kExtraConfigKey = "connector_extra_config";
// Not the reference's: how ranks meet beyond one host.
constexpr std::string_view kSessionKey = "session";

/// A key as people write it, and the field that it means.
struct Key {
  std::string_view written;
  std::string_view field;
};

constexpr std::array<Key, 13> kKeys = {{
    {"connector", "connector"},
    {"afd_connector", "connector"},
    {"async_dp", "async_dp"},
    {"async", "async_dp"},
    {"role", "role"},
    {"afd_role", "role"},
    {"port", "port"},
    {"afd_port", "port"},
    {"host", "host"},
    {"afd_host", "host"},
    {"num_attention_ranks", "num_attention_ranks"},
    {"num_ffn_ranks", "num_ffn_ranks"},
    {"compute_gate_on_attention", "compute_gate_on_attention"},
}};

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

JsonValue json_string(std::string text) {
  return {.kind = JsonValue::Kind::kString, .text = std::move(text)};
}

Result<JsonValue> parse_text(std::string_view text, std::string_view what) {
  Result<JsonValue> parsed = parse_json(text);
  if (!parsed) {
    return fail(std::move(parsed).error().with_context(what));
  }
  return parsed;
}

using Fields = std::map<std::string_view, const JsonValue*>;

/// Sorts the section's keys by field, in the order in which they were written: the first problem
/// wins.
Result<Fields> sort_fields(const JsonValue& raw) {
  if (raw.kind != JsonValue::Kind::kObject) {
    return invalid("AFD config must be a mapping, got " + std::string(python_type_name(raw)));
  }
  Fields fields;
  for (const JsonMember& member : raw.members) {
    if (member.key == kExtraConfigKey) {
      if (member.value.kind != JsonValue::Kind::kObject) {
        return invalid("connector_extra_config must be a mapping");
      }
      fields[kExtraConfigKey] = &member.value;
      continue;
    }
    if (member.key == kSessionKey) {
      fields[kSessionKey] = &member.value;
      continue;
    }
    const auto* key = std::find_if(kKeys.begin(), kKeys.end(),
                                   [&](const Key& known) { return known.written == member.key; });
    if (key == kKeys.end()) {
      return invalid("unknown AFD config field " + python_repr(member.key) +
                     "; put connector-specific values under 'connector_extra_config'");
    }
    if (!fields.emplace(key->field, &member.value).second) {
      return invalid("duplicate AFD config field for '" + std::string(key->field) +
                     "': both alias and canonical key were provided");
    }
  }
  return fields;
}

const JsonValue* find(const Fields& fields, std::string_view field) {
  const auto found = fields.find(field);
  return found == fields.end() ? nullptr : found->second;
}

Result<void> read_bool(const Fields& fields, std::string_view field, std::string_view shown,
                       bool& out) {
  if (const JsonValue* value = find(fields, field)) {
    const Result<bool> coerced = coerce_bool(*value, shown);
    if (!coerced) {
      return fail(coerced.error());
    }
    out = *coerced;
  }
  return {};
}

Result<void> read_integer(const Fields& fields, std::string_view field, WideInteger& out) {
  if (const JsonValue* value = find(fields, field)) {
    Result<WideInteger> coerced = coerce_integer(*value, field);
    if (!coerced) {
      return fail(std::move(coerced).error());
    }
    out = *std::move(coerced);
  }
  return {};
}

/// "('A', 'B')", as Python prints a tuple.
std::string python_tuple(const std::vector<std::string>& words) {
  std::string text = "(";
  for (std::size_t i = 0; i < words.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += python_repr(words[i]);
  }
  return text + (words.size() == 1 ? ",)" : ")");
}

Result<Role> check_role(const AfdSection& section, const ParseConfigOptions& options) {
  const Result<Role> role = section.role.kind == JsonValue::Kind::kString
                                ? parse_role(section.role.text)
                                : invalid("AFD role must be one of ('attention', 'ffn'), got " +
                                          python_repr(section.role));
  if (role && options.expected_role && *options.expected_role != *role) {
    return invalid("AFD role mismatch: expected '" +
                   std::string(to_string(*options.expected_role)) + "', got '" +
                   std::string(to_string(*role)) + "'");
  }
  return role;
}

Result<std::string> check_connector(const AfdSection& section, const ParseConfigOptions& options) {
  const std::vector<std::string>& names = options.connector_names;
  if (section.connector.kind != JsonValue::Kind::kString ||
      std::find(names.begin(), names.end(), section.connector.text) == names.end()) {
    return invalid("AFD connector must be one of " + python_tuple(names) + ", got " +
                   python_repr(section.connector));
  }
  if (section.async_dp && section.connector.text != kAsyncConnector) {
    return invalid("AFD async mode requires connector='" + std::string(kAsyncConnector) + "'");
  }
  if (options.strict_topology && section.connector.text == kStrictConnector &&
      section.num_attention_ranks.fits && section.num_ffn_ranks.fits) {
    Result<void> strict =
        validate_strict_topology(section.num_attention_ranks.value, section.num_ffn_ranks.value);
    if (!strict) {
      return fail(std::move(strict).error());
    }
  }
  return section.connector.text;
}

/// The reference takes whatever is true in Python's sense and fails where it is used; here a number
/// becomes its text, and what cannot be an address is refused.
Result<std::string> check_host(const JsonValue& host) {
  std::string text;
  switch (host.kind) {
    case JsonValue::Kind::kString:
      text = host.text;
      break;
    case JsonValue::Kind::kInteger:
      text = host.integer == 0 ? "" : std::to_string(host.integer);
      break;
    case JsonValue::Kind::kOtherNumber:
      text = python_repr(host);
      text = text == "0.0" || text == "-0.0" ? "" : text;
      break;
    case JsonValue::Kind::kBoolean:
    case JsonValue::Kind::kArray:
    case JsonValue::Kind::kObject:
      if (host.boolean || !host.items.empty() || !host.members.empty()) {
        return invalid("AFD host must be a string, got " + python_repr(host));
      }
      break;
    case JsonValue::Kind::kNull:
      break;
  }
  if (text.empty()) {
    return invalid("AFD host must be non-empty");
  }
  return text;
}

Result<std::uint16_t> check_port(const WideInteger& port) {
  constexpr std::int64_t kPortMax = std::numeric_limits<std::uint16_t>::max();
  if (!port.fits || port.value < 1 || port.value > kPortMax) {
    return invalid("AFD port must be in 1..65535, got " + printable(port.text));
  }
  return static_cast<std::uint16_t>(port.value);
}

Result<std::uint32_t> check_count(const WideInteger& count, std::string_view field) {
  if (!count.positive()) {
    return invalid(std::string(field) + " must be positive, got " + printable(count.text));
  }
  if (!count.fits || count.value > kRanksMax) {
    return invalid(std::string(field) + " must be at most " + std::to_string(kRanksMax) + ", got " +
                   printable(count.text));
  }
  return static_cast<std::uint32_t>(count.value);
}

/// The `afd` value of an engine's additional_config, or null where there is none.
Result<const JsonValue*> find_section(const JsonValue& source) {
  if (source.kind == JsonValue::Kind::kNull) {
    return nullptr;
  }
  if (source.kind != JsonValue::Kind::kObject) {
    return invalid("additional_config must be a mapping when parsing AFD config, got " +
                   std::string(python_type_name(source)));
  }
  return source.find("afd");
}

Result<JsonValue> parse_source(std::string_view additional_config_json) {
  if (additional_config_json.empty()) {
    return JsonValue{};
  }
  return parse_text(additional_config_json, "additional_config");
}

Result<AfdConfig> parse_section(const JsonValue& raw, const ParseConfigOptions& options) {
  const Result<AfdSection> section = read_section(raw);
  if (!section) {
    return fail(section.error());
  }
  return validate_section(*section, options);
}

/// Calls use(section) with the section of the source, or returns `absent` if there is none.
template <typename T, typename Use>
Result<T> with_section(std::string_view additional_config_json, T absent, Use use) {
  const Result<JsonValue> source = parse_source(additional_config_json);
  if (!source) {
    return fail(source.error());
  }
  const Result<const JsonValue*> section = find_section(*source);
  if (!section) {
    return fail(section.error());
  }
  if (*section == nullptr) {
    return absent;
  }
  return use(**section);
}

Result<std::string> extra_config_of(const JsonValue& raw) {
  const Result<AfdSection> section = read_section(raw);
  if (!section) {
    return fail(section.error());
  }
  return write_json(section->connector_extra_config);
}

std::string sha256_hex(std::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_bytes = 0;
  if (EVP_Digest(text.data(), text.size(), digest, &digest_bytes, EVP_sha256(), nullptr) != 1) {
    return {};  // Only where OpenSSL itself is broken.
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < digest_bytes; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace

Result<AfdSection> read_section(const JsonValue& raw) {
  const Result<Fields> fields = sort_fields(raw);
  if (!fields) {
    return fail(fields.error());
  }

  const AfdConfig defaults;
  AfdSection section;
  section.async_dp = defaults.async_dp;
  section.port = defaults.port;
  section.num_attention_ranks = defaults.num_attention_ranks;
  section.num_ffn_ranks = defaults.num_ffn_ranks;
  section.compute_gate_on_attention = defaults.compute_gate_on_attention;

  // The order is the reference's: it decides which of several problems is reported.
  Result<void> read = read_bool(*fields, "async_dp", "async", section.async_dp);
  read = read ? read_integer(*fields, "port", section.port) : read;
  read = read ? read_integer(*fields, "num_attention_ranks", section.num_attention_ranks) : read;
  read = read ? read_integer(*fields, "num_ffn_ranks", section.num_ffn_ranks) : read;
  read = read ? read_bool(*fields, "compute_gate_on_attention", "compute_gate_on_attention",
                          section.compute_gate_on_attention)
              : read;
  if (!read) {
    return fail(std::move(read).error());
  }

  const auto value_or = [&](std::string_view field, std::string_view default_text) {
    const JsonValue* value = find(*fields, field);
    return value == nullptr ? json_string(std::string(default_text)) : *value;
  };
  section.connector = value_or("connector", defaults.connector);
  section.role = value_or("role", to_string(defaults.role));
  section.host = value_or("host", defaults.host);
  if (const JsonValue* session = find(*fields, kSessionKey)) {
    section.session = *session;
  }
  const JsonValue* extra = find(*fields, kExtraConfigKey);
  section.connector_extra_config =
      extra == nullptr ? JsonValue{.kind = JsonValue::Kind::kObject} : *extra;
  return section;
}

Result<AfdConfig> validate_section(const AfdSection& section, const ParseConfigOptions& options) {
  const Result<Role> role = check_role(section, options);
  if (!role) {
    return fail(role.error());
  }
  Result<std::string> connector = check_connector(section, options);
  if (!connector) {
    return fail(std::move(connector).error());
  }
  Result<std::string> host = check_host(section.host);
  if (!host) {
    return fail(std::move(host).error());
  }
  const Result<std::uint16_t> port = check_port(section.port);
  if (!port) {
    return fail(port.error());
  }
  const Result<std::uint32_t> num_attention_ranks =
      check_count(section.num_attention_ranks, "num_attention_ranks");
  if (!num_attention_ranks) {
    return fail(num_attention_ranks.error());
  }
  const Result<std::uint32_t> num_ffn_ranks = check_count(section.num_ffn_ranks, "num_ffn_ranks");
  if (!num_ffn_ranks) {
    return fail(num_ffn_ranks.error());
  }
  Result<SessionConfig> session = SessionConfig();
  if (section.session) {
    session = parse_session_config(*section.session);
  }
  if (!session) {
    return fail(std::move(session).error());
  }
  AfdConfig config;
  config.session = *std::move(session);
  config.connector = *std::move(connector);
  config.async_dp = section.async_dp;
  config.role = *role;
  config.host = *std::move(host);
  config.port = *port;
  config.num_attention_ranks = *num_attention_ranks;
  config.num_ffn_ranks = *num_ffn_ranks;
  config.compute_gate_on_attention = section.compute_gate_on_attention;
  config.connector_extra_config = write_json(section.connector_extra_config);
  return config;
}

std::string_view to_string(Role role) {
  return role == Role::kAttention ? "attention" : "ffn";
}

Result<Role> parse_role(std::string_view text) {
  if (text == "attention") {
    return Role::kAttention;
  }
  if (text == "ffn") {
    return Role::kFfn;
  }
  return invalid("AFD role must be one of ('attention', 'ffn'), got " + python_repr(text));
}

std::string AfdConfig::compute_hash() const {
  // The text of a Python list, so that an engine in Python computes the same.
  std::string text = "[" + python_repr(connector);
  text += async_dp ? ", True" : ", False";
  text += ", " + python_repr(to_string(role));
  text += ", " + std::to_string(num_attention_ranks);
  text += ", " + std::to_string(num_ffn_ranks) + "]";
  return sha256_hex(text);
}

Result<AfdConfig> parse_afd_config(std::string_view json_text, const ParseConfigOptions& options) {
  const Result<JsonValue> raw = parse_text(json_text, "AFD config");
  if (!raw) {
    return fail(raw.error());
  }
  return parse_section(*raw, options);
}

Result<std::optional<AfdConfig>> parse_optional_afd_config(std::string_view additional_config_json,
                                                           const ParseConfigOptions& options) {
  return with_section<std::optional<AfdConfig>>(
      additional_config_json, std::nullopt,
      [&](const JsonValue& raw) -> Result<std::optional<AfdConfig>> {
        Result<AfdConfig> config = parse_section(raw, options);
        if (!config) {
          return fail(std::move(config).error());
        }
        return *std::move(config);
      });
}

Result<AfdConfig> parse_required_afd_config(std::string_view additional_config_json,
                                            const ParseConfigOptions& options) {
  Result<std::optional<AfdConfig>> config =
      parse_optional_afd_config(additional_config_json, options);
  if (!config) {
    return fail(std::move(config).error());
  }
  if (!*config) {
    return invalid("AFD config requires additional_config[\"afd\"]; omit it to disable AFD");
  }
  return **std::move(config);
}

Result<bool> has_afd_config(std::string_view additional_config_json) {
  return with_section<bool>(additional_config_json, false,
                            [](const JsonValue&) -> Result<bool> { return true; });
}

Result<bool> is_afd_active(std::string_view additional_config_json,
                           const ParseConfigOptions& options) {
  const Result<std::optional<AfdConfig>> config =
      parse_optional_afd_config(additional_config_json, options);
  if (!config) {
    return fail(config.error());
  }
  return config->has_value();
}

Result<bool> is_afd_async_dp(std::string_view additional_config_json) {
  return with_section<bool>(
      additional_config_json, false, [](const JsonValue& raw) -> Result<bool> {
        const Result<AfdSection> section = read_section(raw);
        if (!section) {
          return fail(section.error());
        }
        return section->async_dp && section->connector.kind == JsonValue::Kind::kString &&
               section->connector.text == kAsyncConnector;
      });
}

Result<std::string> connector_extra_config(std::string_view json_text) {
  const Result<JsonValue> raw = parse_text(json_text, "AFD config");
  if (!raw) {
    return fail(raw.error());
  }
  return extra_config_of(*raw);
}

Result<std::string> connector_extra_config_from_source(std::string_view additional_config_json) {
  return with_section<std::string>(additional_config_json, "{}", extra_config_of);
}

std::string to_json(const AfdConfig& config) {
  JsonValue object{.kind = JsonValue::Kind::kObject};
  const auto add = [&](std::string key, JsonValue value) {
    object.members.push_back({std::move(key), std::move(value)});
  };
  const auto boolean = [](bool value) {
    return JsonValue{.kind = JsonValue::Kind::kBoolean, .boolean = value};
  };
  const auto integer = [](std::int64_t value) {
    return JsonValue{.kind = JsonValue::Kind::kInteger, .integer = value};
  };
  add("connector", json_string(config.connector));
  add("async_dp", boolean(config.async_dp));
  add("role", json_string(std::string(to_string(config.role))));
  add("port", integer(config.port));
  add("host", json_string(config.host));
  add("num_attention_ranks", integer(config.num_attention_ranks));
  add("num_ffn_ranks", integer(config.num_ffn_ranks));
  add("compute_gate_on_attention", boolean(config.compute_gate_on_attention));
  add("session", session_config_json(config.session));
  // A text that is no JSON cannot come from the parser, but from a caller who filled the field.
  Result<JsonValue> extra = parse_json(config.connector_extra_config);
  add("connector_extra_config",
      extra ? *std::move(extra) : json_string(config.connector_extra_config));
  return write_json(object, 2);
}

}  // namespace afd
