#include "core/json.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include <nlohmann/json.hpp>

namespace afd {
namespace {

/// Where the parser stands. It is handed copies of the iterator, so the place is kept outside.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}

  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    ++at_;
    *furthest_ = at_;
    return *this;
  }
  friend bool operator==(const TrackingIterator& a, const TrackingIterator& b) {
    return a.at_ == b.at_;
  }

 private:
  const char* at_;
  const char** furthest_;
};

std::string place(std::string_view text, std::size_t num_read) {
  const std::string_view read = text.substr(0, num_read);
  const auto line = 1 + std::count(read.begin(), read.end(), '\n');
  const std::size_t newline = read.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? num_read : num_read - newline - 1;
  return "line " + std::to_string(line) + ", column " +
         std::to_string(std::max<std::size_t>(column, 1));
}

/// From nlohmann's events to ours, counting depth on the way.
class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(JsonEvents& events, std::size_t depth_max) : events_(events), depth_max_(depth_max) {}

  bool null() override { return events_.on_null(); }
  bool boolean(bool value) override { return events_.on_bool(value); }
  bool number_integer(std::int64_t value) override { return events_.on_integer(value); }
  bool number_unsigned(std::uint64_t value) override {
    return value <= static_cast<std::uint64_t>(INT64_MAX)
               ? events_.on_integer(static_cast<std::int64_t>(value))
               : events_.on_other_number(std::to_string(value));
  }
  bool number_float(double, const std::string& text) override {
    // The lexer writes the decimal point of the process's locale into the text.
    std::string as_written = text;
    std::replace(as_written.begin(), as_written.end(), ',', '.');
    return events_.on_other_number(as_written);
  }
  bool string(std::string& value) override { return events_.on_string(value); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // Not in JSON text.
  bool key(std::string& value) override { return events_.on_key(value); }
  bool start_object(std::size_t) override { return descend() && events_.on_object_begin(); }
  bool end_object() override {
    --depth_;
    return events_.on_object_end();
  }
  bool start_array(std::size_t) override { return descend() && events_.on_array_begin(); }
  bool end_array() override {
    --depth_;
    return events_.on_array_end();
  }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::json::exception& exception) override {
    return events_.refuse(json_problem(exception.what()));
  }

 private:
  bool descend() {
    if (++depth_ > depth_max_) {
      return events_.refuse("arrays and objects lie more than " + std::to_string(depth_max_) +
                            " deep in each other");
    }
    return true;
  }

  JsonEvents& events_;
  std::size_t depth_max_;
  std::size_t depth_ = 0;
};

/// Builds the tree. `open_` is the path from the root to the value that is being filled.
class TreeBuilder final : public JsonEvents {
 public:
  bool on_null() override { return add({}); }
  bool on_bool(bool value) override {
    return add({.kind = JsonValue::Kind::kBoolean, .boolean = value});
  }
  bool on_integer(std::int64_t value) override {
    return add({.kind = JsonValue::Kind::kInteger, .integer = value});
  }
  bool on_other_number(std::string_view text) override {
    return add({.kind = JsonValue::Kind::kOtherNumber, .text = std::string(text)});
  }
  bool on_string(std::string& value) override {
    return add({.kind = JsonValue::Kind::kString, .text = std::move(value)});
  }
  bool on_key(std::string& key) override {
    if (!keys_.back().insert(key).second) {
      return refuse("the key \"" + printable(key) + "\" stands twice in one object");
    }
    open_.back().members.push_back({std::move(key), {}});
    return true;
  }
  bool on_object_begin() override {
    keys_.emplace_back();
    open_.push_back({.kind = JsonValue::Kind::kObject});
    return true;
  }
  bool on_object_end() override {
    keys_.pop_back();
    return close();
  }
  bool on_array_begin() override {
    open_.push_back({.kind = JsonValue::Kind::kArray});
    return true;
  }
  bool on_array_end() override { return close(); }

  JsonValue take() { return std::move(root_); }

 private:
  bool add(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().kind == JsonValue::Kind::kArray) {
      open_.back().items.push_back(std::move(value));
    } else {
      open_.back().members.back().value = std::move(value);
    }
    return true;
  }
  bool close() {
    JsonValue closed = std::move(open_.back());
    open_.pop_back();
    return add(std::move(closed));
  }

  std::vector<JsonValue> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // One set for each open object.
  JsonValue root_;
};

/// Length of the UTF-8 character at the front of `text`, or 0 if there is none that is valid.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  // Overlong forms, surrogates, and what lies beyond Unicode.
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f)) {
    return 0;
  }
  return length;
}

void append_hex(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

void write_string(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += "\\u00";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

class Writer {
 public:
  explicit Writer(std::size_t indent) : indent_(indent) {}

  void write(const JsonValue& value, std::size_t depth) {
    switch (value.kind) {
      case JsonValue::Kind::kNull:
        out_ += "null";
        return;
      case JsonValue::Kind::kBoolean:
        out_ += value.boolean ? "true" : "false";
        return;
      case JsonValue::Kind::kInteger:
        out_ += std::to_string(value.integer);
        return;
      case JsonValue::Kind::kOtherNumber:
        out_ += value.text;
        return;
      case JsonValue::Kind::kString:
        write_string(out_, value.text);
        return;
      case JsonValue::Kind::kArray:
        write_sequence('[', ']', value.items, depth,
                       [&](const JsonValue& item) { write(item, depth + 1); });
        return;
      case JsonValue::Kind::kObject:
        write_sequence('{', '}', value.members, depth, [&](const JsonMember& member) {
          write_string(out_, member.key);
          out_ += indent_ == 0 ? ":" : ": ";
          write(member.value, depth + 1);
        });
        return;
    }
  }

  std::string take() { return std::move(out_); }

 private:
  template <typename Sequence, typename WriteOne>
  void write_sequence(char open, char close, const Sequence& sequence, std::size_t depth,
                      WriteOne write_one) {
    out_ += open;
    bool first = true;
    for (const auto& one : sequence) {
      out_ += first ? "" : ",";
      first = false;
      new_line(depth + 1);
      write_one(one);
    }
    if (!sequence.empty()) {
      new_line(depth);
    }
    out_ += close;
  }
  void new_line(std::size_t depth) {
    if (indent_ != 0) {
      out_ += '\n';
      out_.append(indent_ * depth, ' ');
    }
  }

  std::size_t indent_;
  std::string out_;
};

}  // namespace

Result<void> read_json(std::string_view text, const JsonLimits& limits, ErrorCode code,
                       JsonEvents& events) {
  if (text.size() > limits.bytes_max) {
    return fail(code, "the text has " + std::to_string(text.size()) + " bytes, expected at most " +
                          std::to_string(limits.bytes_max));
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    return fail(code, "the text starts with a byte order mark, expected plain UTF-8");
  }
  // The parser takes a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return fail(code, place(text, zero + 1) + ": a zero byte");
  }

  const char* begin = text.data();
  const char* furthest = begin;
  Adapter adapter(events, limits.depth_max);
  const bool whole =
      nlohmann::json::sax_parse(TrackingIterator(begin, &furthest),
                                TrackingIterator(begin + text.size(), &furthest), &adapter);
  if (!whole) {
    return fail(code,
                place(text, static_cast<std::size_t>(furthest - begin)) + ": " + events.problem());
  }
  return {};
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) {
      return &member.value;
    }
  }
  return nullptr;
}

Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits) {
  TreeBuilder builder;
  if (Result<void> read = read_json(text, limits, ErrorCode::kInvalidArgument, builder); !read) {
    return fail(std::move(read).error());
  }
  return builder.take();
}

std::string write_json(const JsonValue& value, std::size_t indent) {
  Writer writer(indent);
  writer.write(value, 0);
  return writer.take();
}

std::string json_problem(std::string_view exception_text) {
  if (exception_text.starts_with("[json.exception.")) {
    const std::size_t end = exception_text.find("] ");
    exception_text.remove_prefix(end == std::string_view::npos ? 0 : end + 2);
  }
  if (exception_text.starts_with("parse error at ")) {
    if (const std::size_t end = exception_text.find(": "); end != std::string_view::npos) {
      exception_text.remove_prefix(end + 2);
    }
  }
  return printable(exception_text);
}

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    if (out.size() >= bytes_max) {
      return out + "...";
    }
    const std::size_t length = utf8_length(text);
    const auto byte = static_cast<unsigned char>(text.front());
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      append_hex(out, byte);
      text.remove_prefix(1);
    } else {
      out += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return out;
}

}  // namespace afd
