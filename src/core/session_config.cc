#include "core/session_config.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "core/coerce.h"
#include "core/python_text.h"

namespace afd {
namespace {

constexpr std::size_t kAddressesMax = 8;
constexpr std::size_t kAddressBytesMax = 255;
constexpr std::int64_t kHeartbeatSecondsMax = 3600;

constexpr std::array<std::string_view, 9> kKeys = {
    "bind_host",   "addresses", "secret_file",          "tls_certificate_file", "tls_key_file",
    "tls_ca_file", "insecure",  "heartbeat_interval_s", "heartbeat_limit_s"};

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

bool is_address(std::string_view text) {
  return !text.empty() && text.size() <= kAddressBytesMax &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
}

Result<std::string> read_string(const JsonValue& value, std::string_view key) {
  if (value.kind != JsonValue::Kind::kString) {
    return invalid("AFD session " + std::string(key) + " must be a string, got " +
                   python_repr(value));
  }
  return value.text;
}

Result<std::chrono::seconds> read_seconds(const JsonValue& value, std::string_view key) {
  const Result<WideInteger> number = coerce_integer(value, "AFD session " + std::string(key));
  if (!number) {
    return fail(number.error());
  }
  if (!number->fits) {
    return invalid("AFD session " + std::string(key) + " must be in 1.." +
                   std::to_string(kHeartbeatSecondsMax) + ", got " + printable(number->text));
  }
  return std::chrono::seconds(number->value);
}

Result<std::vector<std::string>> read_addresses(const JsonValue& value) {
  if (value.kind != JsonValue::Kind::kArray) {
    return invalid("AFD session addresses must be a list of strings, got " + python_repr(value));
  }
  std::vector<std::string> addresses;
  for (const JsonValue& item : value.items) {
    Result<std::string> address = read_string(item, "addresses");
    if (!address) {
      return fail(std::move(address).error());
    }
    addresses.push_back(*std::move(address));
  }
  return addresses;
}

// Takes the value over, or returns why not.
template <typename T>
Result<void> take(Result<T> value, T& out) {
  if (!value) {
    return fail(std::move(value).error());
  }
  out = *std::move(value);
  return {};
}

Result<void> read_member(const JsonMember& member, SessionConfig& config) {
  if (member.key == "bind_host") {
    return take(read_string(member.value, member.key), config.bind_host);
  }
  if (member.key == "addresses") {
    return take(read_addresses(member.value), config.addresses);
  }
  if (member.key == "secret_file") {
    return take(read_string(member.value, member.key), config.secret_file);
  }
  if (member.key == "tls_certificate_file") {
    return take(read_string(member.value, member.key), config.tls_certificate_file);
  }
  if (member.key == "tls_key_file") {
    return take(read_string(member.value, member.key), config.tls_key_file);
  }
  if (member.key == "tls_ca_file") {
    return take(read_string(member.value, member.key), config.tls_ca_file);
  }
  if (member.key == "insecure") {
    return take(coerce_bool(member.value, "AFD session insecure"), config.insecure);
  }
  if (member.key == "heartbeat_interval_s") {
    return take(read_seconds(member.value, member.key), config.heartbeat_interval);
  }
  if (member.key == "heartbeat_limit_s") {
    return take(read_seconds(member.value, member.key), config.heartbeat_limit);
  }
  std::string known;
  for (const std::string_view key : kKeys) {
    known += (known.empty() ? "" : ", ") + python_repr(key);
  }
  return invalid("unknown AFD session field " + python_repr(member.key) + "; known: " + known);
}

}  // namespace

Result<void> validate_session_config(const SessionConfig& config) {
  if (!config.bind_host.empty() && !is_address(config.bind_host)) {
    return invalid("session bind_host must be an address, got " + python_repr(config.bind_host));
  }
  if (config.addresses.size() > kAddressesMax) {
    return invalid("session addresses must be at most " + std::to_string(kAddressesMax) + ", got " +
                   std::to_string(config.addresses.size()));
  }
  for (const std::string& address : config.addresses) {
    if (!is_address(address)) {
      return invalid("session addresses must be addresses, got " + python_repr(address));
    }
  }
  const std::int64_t interval = config.heartbeat_interval.count();
  const std::int64_t limit = config.heartbeat_limit.count();
  if (interval < 1 || interval > kHeartbeatSecondsMax) {
    return invalid("session heartbeat_interval must be in 1.." +
                   std::to_string(kHeartbeatSecondsMax) + " s, got " + std::to_string(interval));
  }
  if (limit > kHeartbeatSecondsMax || limit < 3 * interval) {
    return invalid(
        "session heartbeat_limit must be at least three times the interval and at most " +
        std::to_string(kHeartbeatSecondsMax) + " s, got " + std::to_string(limit) +
        " s with an interval of " + std::to_string(interval) + " s");
  }
  if (config.tls_certificate_file.empty() != config.tls_key_file.empty() ||
      config.tls_certificate_file.empty() != config.tls_ca_file.empty()) {
    return invalid(
        "session tls_certificate_file, tls_key_file and tls_ca_file are given together or not at "
        "all");
  }
  if (config.insecure && (!config.secret_file.empty() || config.has_tls())) {
    return invalid("session insecure excludes secret_file and TLS");
  }
  return {};
}

Result<SessionConfig> parse_session_config(const JsonValue& raw) {
  if (raw.kind != JsonValue::Kind::kObject) {
    return invalid("AFD session must be a mapping, got " + std::string(python_type_name(raw)));
  }
  SessionConfig config;
  for (const JsonMember& member : raw.members) {
    if (Result<void> read = read_member(member, config); !read) {
      return fail(std::move(read).error());
    }
  }
  if (Result<void> valid = validate_session_config(config); !valid) {
    return fail(std::move(valid).error());
  }
  return config;
}

JsonValue session_config_json(const SessionConfig& config) {
  const auto text = [](std::string value) {
    return JsonValue{.kind = JsonValue::Kind::kString, .text = std::move(value)};
  };
  const auto integer = [](std::int64_t value) {
    return JsonValue{.kind = JsonValue::Kind::kInteger, .integer = value};
  };
  JsonValue addresses{.kind = JsonValue::Kind::kArray};
  for (const std::string& address : config.addresses) {
    addresses.items.push_back(text(address));
  }
  JsonValue object{.kind = JsonValue::Kind::kObject};
  object.members = {
      {"bind_host", text(config.bind_host)},
      {"addresses", std::move(addresses)},
      {"secret_file", text(config.secret_file)},
      {"tls_certificate_file", text(config.tls_certificate_file)},
      {"tls_key_file", text(config.tls_key_file)},
      {"tls_ca_file", text(config.tls_ca_file)},
      {"insecure", JsonValue{.kind = JsonValue::Kind::kBoolean, .boolean = config.insecure}},
      {"heartbeat_interval_s", integer(config.heartbeat_interval.count())},
      {"heartbeat_limit_s", integer(config.heartbeat_limit.count())}};
  return object;
}

}  // namespace afd
