#include <afd/control_payload.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <vector>

#include "core/json.h"

namespace afd {
namespace {

constexpr std::string_view kStageListKey = "dp_metadata_list";
constexpr std::string_view kCountsKey = "num_tokens_across_dp_cpu";
constexpr std::string_view kMaxKey = "max_tokens_across_dp_cpu";
constexpr std::int64_t kCountMax = std::numeric_limits<std::int32_t>::max();

struct Flag {
  std::string_view key;
  bool ControlPayload::*member;
};

/// In the order of the wire.
constexpr std::array<Flag, 4> kFlags = {{
    {"is_graph_capturing", &ControlPayload::is_graph_capturing},
    {"is_graph_replaying", &ControlPayload::is_graph_replaying},
    {"is_profile", &ControlPayload::is_profile},
    {"is_warmup", &ControlPayload::is_warmup},
}};

/// The index that a canonical key spells: plain decimal, no sign, no leading zero.
bool parse_stage_key(std::string_view key, std::int64_t& stage) {
  const char* end = key.data() + key.size();
  const std::from_chars_result read = std::from_chars(key.data(), end, stage);
  return read.ec == std::errc() && read.ptr == end && stage >= 0 && std::to_string(stage) == key;
}

/// Fills a payload from the document's events, refusing whatever stands where something else
/// belongs. Keys that it does not know are passed over with all that they hold.
class Decoder final : public JsonEvents {
 public:
  ControlPayload take() { return std::move(payload_); }

  bool on_null() override { return skips() || refuse_value("null"); }
  bool on_bool(bool value) override {
    if (skips()) {
      return true;
    }
    if (want_ != Want::kFlag) {
      return refuse_value(value ? "true" : "false");
    }
    payload_.*(flag_->member) = value;
    return true;
  }
  bool on_integer(std::int64_t value) override {
    if (skips()) {
      return true;
    }
    const bool is_count = want_ == Want::kCount || want_ == Want::kMax;
    if (!is_count || value < 0 || value > kCountMax) {
      return refuse_value(std::to_string(value));
    }
    if (want_ == Want::kMax) {
      stage_->max_tokens_across_dp = static_cast<std::int32_t>(value);
      return true;
    }
    if (stage_->num_tokens_across_dp.size() == kControlRanksMax) {
      return refuse(where() + ": more than " + std::to_string(kControlRanksMax) + " ranks");
    }
    stage_->num_tokens_across_dp.push_back(static_cast<std::int32_t>(value));
    return true;
  }
  bool on_other_number(std::string_view text) override {
    return skips() || refuse_value(printable(text, kShownBytesMax));
  }
  bool on_string(std::string& value) override {
    return skips() || refuse_value("\"" + printable(value, kShownBytesMax) + "\"");
  }

  bool on_key(std::string& key) override {
    if (skip_depth_ > 0) {
      return true;
    }
    switch (inside_) {
      case Inside::kPayload:
        return on_payload_key(key);
      case Inside::kStageList:
        return on_stage_key(key);
      default:
        return on_stage_field(key);
    }
  }

  bool on_object_begin() override {
    if (skips()) {
      ++skip_depth_;
      return true;
    }
    switch (want_) {
      case Want::kPayload:
        inside_ = Inside::kPayload;
        return true;
      case Want::kStageList:
        inside_ = Inside::kStageList;
        return true;
      case Want::kStage:
        inside_ = Inside::kStage;
        has_counts_ = false;
        has_max_ = false;
        return true;
      default:
        return refuse_value("an object");
    }
  }
  bool on_object_end() override {
    if (skip_depth_ > 0) {
      --skip_depth_;
      return true;
    }
    switch (inside_) {
      case Inside::kStage:
        inside_ = Inside::kStageList;
        if (!has_counts_ || !has_max_) {
          return refuse(stage_path() + " has no " +
                        std::string(has_counts_ ? kMaxKey : kCountsKey));
        }
        return true;
      case Inside::kStageList:
        inside_ = Inside::kPayload;
        return true;
      default:
        return has_stage_list_ || refuse("the payload has no " + std::string(kStageListKey));
    }
  }

  bool on_array_begin() override {
    if (skips()) {
      ++skip_depth_;
      return true;
    }
    if (want_ != Want::kCounts) {
      return refuse_value("an array");
    }
    want_ = Want::kCount;
    return true;
  }
  bool on_array_end() override {
    if (skip_depth_ > 0) {
      --skip_depth_;
    }
    return true;  // After the counts comes a key, which sets what is wanted next.
  }

 private:
  static constexpr std::size_t kShownBytesMax = 60;

  enum class Want { kPayload, kUnknown, kStageList, kFlag, kStage, kCounts, kCount, kMax };
  enum class Inside { kPayload, kStageList, kStage };

  bool skips() const { return skip_depth_ > 0 || want_ == Want::kUnknown; }

  bool on_payload_key(const std::string& key) {
    want_ = Want::kUnknown;
    if (key == kStageListKey) {
      want_ = Want::kStageList;
      return first_time(has_stage_list_, key);
    }
    for (std::size_t i = 0; i < kFlags.size(); ++i) {
      if (key == kFlags[i].key) {
        flag_ = &kFlags[i];
        want_ = Want::kFlag;
        return first_time(has_flag_[i], key);
      }
    }
    return true;
  }

  bool on_stage_key(const std::string& key) {
    std::int64_t stage = 0;
    if (!parse_stage_key(key, stage)) {
      return refuse(std::string(kStageListKey) + " has the key \"" +
                    printable(key, kShownBytesMax) + "\", expected a stage index in plain decimal");
    }
    if (payload_.dp_metadata_list.size() == kControlStagesMax) {
      return refuse(std::string(kStageListKey) + " has more than " +
                    std::to_string(kControlStagesMax) + " stages");
    }
    const auto [place, inserted] = payload_.dp_metadata_list.try_emplace(stage);
    stage_idx_ = stage;
    stage_ = &place->second;
    want_ = Want::kStage;
    return inserted || refuse(stage_path() + " stands twice");
  }

  bool on_stage_field(const std::string& key) {
    if (key == kCountsKey) {
      want_ = Want::kCounts;
      return first_time(has_counts_, key);
    }
    if (key == kMaxKey) {
      want_ = Want::kMax;
      return first_time(has_max_, key);
    }
    want_ = Want::kUnknown;
    return true;
  }

  bool first_time(bool& seen, const std::string& key) {
    const bool first = !seen;
    seen = true;
    return first || refuse("the key " + key + " stands twice in one object");
  }

  bool refuse_value(const std::string& found) {
    return refuse(where() + " is " + found + ", expected " + std::string(wanted()));
  }

  std::string stage_path() const {
    return std::string(kStageListKey) + "[\"" + std::to_string(stage_idx_) + "\"]";
  }

  std::string where() const {
    switch (want_) {
      case Want::kPayload:
      case Want::kUnknown:
        return "the payload";
      case Want::kStageList:
        return std::string(kStageListKey);
      case Want::kFlag:
        return std::string(flag_->key);
      case Want::kStage:
        return stage_path();
      case Want::kCounts:
        return stage_path() + "." + std::string(kCountsKey);
      case Want::kCount:
        return stage_path() + "." + std::string(kCountsKey) + "[" +
               std::to_string(stage_->num_tokens_across_dp.size()) + "]";
      case Want::kMax:
        return stage_path() + "." + std::string(kMaxKey);
    }
    return {};
  }

  std::string_view wanted() const {
    switch (want_) {
      case Want::kFlag:
        return "true or false";
      case Want::kCounts:
        return "an array of integers";
      case Want::kCount:
      case Want::kMax:
        return "an integer in [0, 2147483647]";
      default:
        return "an object";
    }
  }

  ControlPayload payload_;
  Want want_ = Want::kPayload;        // What the next value has to be.
  Inside inside_ = Inside::kPayload;  // Which object's keys come.
  std::size_t skip_depth_ = 0;        // Arrays and objects open below an unknown key.
  const Flag* flag_ = nullptr;        // While want_ is kFlag.
  std::int64_t stage_idx_ = 0;        // The last stage key, and its place in the payload.
  DpMetadata* stage_ = nullptr;
  bool has_stage_list_ = false;
  std::array<bool, kFlags.size()> has_flag_{};
  bool has_counts_ = false;
  bool has_max_ = false;
};

void append_stage(std::string& out, const std::string& key, const DpMetadata& stage) {
  out += '"';
  out += key;
  out += "\":{\"";
  out += kMaxKey;
  out += "\":";
  out += std::to_string(stage.max_tokens_across_dp);
  out += ",\"";
  out += kCountsKey;
  out += "\":[";
  for (std::size_t i = 0; i < stage.num_tokens_across_dp.size(); ++i) {
    out += i == 0 ? "" : ",";
    out += std::to_string(stage.num_tokens_across_dp[i]);
  }
  out += "]}";
}

}  // namespace

std::string encode_control_payload(const ControlPayload& payload) {
  // Keys sort as strings: "10" before "2".
  std::vector<std::pair<std::string, const DpMetadata*>> stages;
  stages.reserve(payload.dp_metadata_list.size());
  for (const auto& [stage_idx, stage] : payload.dp_metadata_list) {
    stages.emplace_back(std::to_string(stage_idx), &stage);
  }
  std::sort(stages.begin(), stages.end());

  std::string out = "{\"" + std::string(kStageListKey) + "\":{";
  for (const auto& [key, stage] : stages) {
    out += &key == &stages.front().first ? "" : ",";
    append_stage(out, key, *stage);
  }
  out += '}';
  for (const Flag& flag : kFlags) {
    out += ",\"";
    out += flag.key;
    out += payload.*(flag.member) ? "\":true" : "\":false";
  }
  out += '}';
  return out;
}

Result<ControlPayload> decode_control_payload(std::string_view text) {
  Decoder decoder;
  Result<void> read =
      read_json(text, {.bytes_max = kControlPayloadBytesMax, .depth_max = kControlDepthMax},
                ErrorCode::kProtocolMismatch, decoder);
  if (!read) {
    return fail(std::move(read).error().with_context("control payload"));
  }
  return decoder.take();
}

Result<ControlPayload> decode_control_payload(std::span<const std::byte> bytes) {
  return decode_control_payload(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace afd
