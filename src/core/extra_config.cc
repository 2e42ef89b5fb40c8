#include <afd/extra_config.h>

#include <algorithm>
#include <vector>

#include "core/coerce.h"
#include "core/json.h"
#include "core/python_text.h"

namespace afd {
namespace {

Result<std::int64_t> to_integer(const JsonValue& value, std::string_view key) {
  const Result<WideInteger> integer = coerce_integer(value, key);
  if (!integer) {
    return fail(integer.error());
  }
  if (!integer->fits) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(key) + " must be a 64-bit integer, got " + printable(integer->text));
  }
  return integer->value;
}

Result<std::int64_t> to_positive_integer(const JsonValue& value, std::string_view key) {
  Result<std::int64_t> integer = to_integer(value, key);
  if (integer && *integer <= 0) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(key) + " must be positive, got " + std::to_string(*integer));
  }
  return integer;
}

}  // namespace

ExtraConfig::ExtraConfig(std::string owner, std::shared_ptr<const JsonValue> settings)
    : owner_(std::move(owner)), settings_(std::move(settings)) {}

Result<ExtraConfig> ExtraConfig::parse(std::string owner, std::string_view raw_json) {
  Result<JsonValue> parsed = raw_json.empty() ? JsonValue{} : parse_json(raw_json);
  if (!parsed) {
    return fail(std::move(parsed).error().with_context(owner + " connector_extra_config"));
  }
  if (parsed->kind == JsonValue::Kind::kNull) {
    parsed->kind = JsonValue::Kind::kObject;
  }
  if (parsed->kind != JsonValue::Kind::kObject) {
    return fail(ErrorCode::kInvalidArgument, owner + " connector_extra_config must be a mapping");
  }
  return ExtraConfig(std::move(owner), std::make_shared<const JsonValue>(*std::move(parsed)));
}

bool ExtraConfig::empty() const {
  return settings_->members.empty();
}

bool ExtraConfig::has(std::string_view key) const {
  return settings_->find(key) != nullptr;
}

std::string ExtraConfig::to_json() const {
  return write_json(*settings_);
}

Result<void> ExtraConfig::check_keys(std::initializer_list<std::string_view> known) const {
  std::vector<std::string> unknown;
  for (const JsonMember& member : settings_->members) {
    if (std::find(known.begin(), known.end(), member.key) == known.end()) {
      unknown.push_back(python_repr(member.key));
    }
  }
  if (unknown.empty()) {
    return {};
  }
  std::sort(unknown.begin(), unknown.end());
  std::string message = "unknown " + owner_ + " connector_extra_config fields:";
  for (const std::string& key : unknown) {
    message += (&key == unknown.data() ? " " : ", ") + key;
  }
  message += "; known:";
  for (const std::string_view& key : known) {
    message += (&key == known.begin() ? " " : ", ") + python_repr(key);
  }
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

Result<std::int64_t> ExtraConfig::integer(std::string_view key, std::int64_t fallback) const {
  const JsonValue* value = settings_->find(key);
  return value == nullptr ? fallback : to_integer(*value, key);
}

Result<std::int64_t> ExtraConfig::positive_integer(std::string_view key,
                                                   std::int64_t fallback) const {
  const JsonValue* value = settings_->find(key);
  return value == nullptr ? fallback : to_positive_integer(*value, key);
}

Result<std::optional<std::int64_t>> ExtraConfig::optional_positive_integer(
    std::string_view key) const {
  const JsonValue* value = settings_->find(key);
  if (value == nullptr || value->kind == JsonValue::Kind::kNull ||
      (value->kind == JsonValue::Kind::kString && value->text.empty())) {
    return std::optional<std::int64_t>();
  }
  const Result<std::int64_t> integer = to_positive_integer(*value, key);
  if (!integer) {
    return fail(integer.error());
  }
  return std::optional<std::int64_t>(*integer);
}

Result<bool> ExtraConfig::boolean(std::string_view key, bool fallback) const {
  const JsonValue* value = settings_->find(key);
  return value == nullptr ? fallback : coerce_bool(*value, key);
}

Result<std::string> ExtraConfig::word(std::string_view key, std::string_view fallback) const {
  const JsonValue* value = settings_->find(key);
  if (value == nullptr) {
    return std::string(fallback);
  }
  if (value->kind != JsonValue::Kind::kString) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(key) + " must be a string, got " + python_repr(*value));
  }
  return stripped_lower(value->text);
}

Result<std::string> parse_no_extra_config(std::string_view connector, std::string_view raw_json) {
  const Result<ExtraConfig> extra = ExtraConfig::parse(std::string(connector), raw_json);
  if (!extra) {
    return fail(extra.error());
  }
  if (!extra->empty()) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(connector) + " does not support connector_extra_config");
  }
  return "{}";
}

}  // namespace afd
