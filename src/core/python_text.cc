#include "core/python_text.h"

#include <charconv>
#include <cstdlib>

namespace afd {
namespace {

constexpr std::size_t kReprBytesMax = 200;

void append_escaped(std::string& out, unsigned char byte) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += "\\x";
  out += kDigits[byte >> 4];
  out += kDigits[byte & 15];
}

std::string quote(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char mark = has_single && !has_double ? '"' : '\'';
  std::string out(1, mark);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<unsigned char>(c);
    if (c == mark || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      append_escaped(out, byte);
    } else if (byte == 0xc2 && i + 1 < text.size() &&
               static_cast<unsigned char>(text[i + 1]) <= 0xa0) {
      // U+0080 to U+00A0: controls and the no-break space, invisible in a message.
      append_escaped(out, static_cast<unsigned char>(text[++i]));
    } else {
      out += c;
    }
  }
  return out + mark;
}

/// Shortest digits that read back the same, laid out as Python does: an exponent below 1e-4 and
/// from 1e16 on.
std::string float_repr(const std::string& text) {
  double value = 0;  // What a number too small for a double is.
  std::from_chars(text.data(), text.data() + text.size(), value);
  char buffer[64];
  const std::to_chars_result written =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view scientific(buffer, static_cast<std::size_t>(written.ptr - buffer));
  const std::size_t e = scientific.find('e');
  if (e == std::string_view::npos) {
    return std::string(scientific);
  }
  const int exponent = std::atoi(std::string(scientific.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    return std::string(scientific);
  }
  const std::to_chars_result fixed =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

void append_repr(std::string& out, const JsonValue& value) {
  if (out.size() > kReprBytesMax) {
    return;  // It will be cut anyway.
  }
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      out += "None";
      return;
    case JsonValue::Kind::kBoolean:
      out += value.boolean ? "True" : "False";
      return;
    case JsonValue::Kind::kInteger:
      out += std::to_string(value.integer);
      return;
    case JsonValue::Kind::kOtherNumber:
      out += is_python_int(value) ? value.text : float_repr(value.text);
      return;
    case JsonValue::Kind::kString:
      out += quote(value.text);
      return;
    case JsonValue::Kind::kArray:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        out += i == 0 ? "" : ", ";
        append_repr(out, value.items[i]);
      }
      out += ']';
      return;
    case JsonValue::Kind::kObject:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        out += i == 0 ? "" : ", ";
        out += quote(value.members[i].key) + ": ";
        append_repr(out, value.members[i].value);
      }
      out += '}';
      return;
  }
}

}  // namespace

std::string python_repr(const JsonValue& value) {
  std::string out;
  append_repr(out, value);
  return printable(out, kReprBytesMax);
}

std::string python_repr(std::string_view text) {
  return printable(quote(text), kReprBytesMax);
}

std::string_view python_type_name(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return "NoneType";
    case JsonValue::Kind::kBoolean:
      return "bool";
    case JsonValue::Kind::kInteger:
      return "int";
    case JsonValue::Kind::kOtherNumber:
      return is_python_int(value) ? "int" : "float";
    case JsonValue::Kind::kString:
      return "str";
    case JsonValue::Kind::kArray:
      return "list";
    case JsonValue::Kind::kObject:
      return "dict";
  }
  return "object";
}

bool is_python_int(const JsonValue& value) {
  return value.kind == JsonValue::Kind::kInteger ||
         (value.kind == JsonValue::Kind::kOtherNumber &&
          value.text.find_first_of(".eE") == std::string::npos);
}

}  // namespace afd
