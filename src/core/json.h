// JSON text from outside, read strictly: bounded in length and depth, valid UTF-8, no duplicate
// keys, numbers as they were written. Never throws; every problem names line and column.
//
// Two ways in: parse_json() gives a tree that keeps the order of keys (configuration), read_json()
// gives events (a peer's messages, of which no tree is wanted). The lexer and parser under both are
// nlohmann's; no type of theirs shows here, since their header costs seconds per file.
//
// Threads: plain values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <afd/result.h>

namespace afd {

struct JsonLimits {
  std::size_t bytes_max = std::size_t{1} << 20;
  std::size_t depth_max = 64;  ///< Arrays and objects inside each other.
};

/// Receives one document in reading order. Each function returns true to go on, or refuse(message).
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;

  virtual bool on_null() = 0;
  virtual bool on_bool(bool value) = 0;
  virtual bool on_integer(std::int64_t value) = 0;
  /// A number that is no 64-bit integer: a fraction, an exponent or too many digits.
  virtual bool on_other_number(std::string_view text) = 0;
  virtual bool on_string(std::string& value) = 0;
  virtual bool on_key(std::string& key) = 0;
  virtual bool on_object_begin() = 0;
  virtual bool on_object_end() = 0;
  virtual bool on_array_begin() = 0;
  virtual bool on_array_end() = 0;

  /// Says why reading stops. @return false
  bool refuse(std::string message) {
    problem_ = std::move(message);
    return false;
  }
  const std::string& problem() const { return problem_; }

 private:
  std::string problem_;
};

/// Reads one whole document.
///
/// @return `code` with "line 3, column 14: <what>", where the column is the last one read, or with
///         what is wrong with the text as a whole
Result<void> read_json(std::string_view text, const JsonLimits& limits, ErrorCode code,
                       JsonEvents& events);

struct JsonMember;

/// One JSON value. Objects keep the order in which their keys were written.
struct JsonValue {
  enum class Kind { kNull, kBoolean, kInteger, kOtherNumber, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  std::int64_t integer = 0;
  std::string text;  ///< kString: its content. kOtherNumber: as written.
  std::vector<JsonValue> items;
  std::vector<JsonMember> members;

  /// The member of this object with that key, or null. Linear: for objects of a person's size.
  const JsonValue* find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

/// Parses a document in which no object has a key twice.
/// @return kInvalidArgument  as read_json
Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits = {});

/// @param indent  spaces a level; 0 gives one line without spaces
std::string write_json(const JsonValue& value, std::size_t indent = 0);

/// What nlohmann's exception says, without its class, number and place: "key 'x' not found".
std::string json_problem(std::string_view exception_text);

/// Text for a message: invalid UTF-8 and control characters become \xNN, and what is longer than
/// bytes_max is cut and ends in "...".
std::string printable(std::string_view text, std::size_t bytes_max = 200);

}  // namespace afd
