// Cuts text into the words inside which byte-pair merging takes place.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "core/json.h"

namespace afd::model {

/// The `pre_tokenizer` of a tokenizer.json: ByteLevel, or a Sequence that ends in it and has Split
/// (behavior "Isolated") and Digits before.
///
/// Threads: immutable; any number may split.
class PreTokenizer {
 public:
  PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  /// @return kInvalidArgument  a kind, a setting or a regular expression that is not supported
  static Result<PreTokenizer> parse(const JsonValue& value);

  /// Appends the words of `text`, valid UTF-8, in order. They view `text`, or `storage` where a
  /// space has to be put in front.
  /// @return kInvalidArgument  a regular expression ran out of its limits on this text
  Result<void> split(std::string_view text, std::string& storage,
                     std::vector<std::string_view>& words) const;

 private:
  struct Pattern;

  Result<void> add_step(const JsonValue& value);
  Result<void> add_pattern(const std::string& regex, bool is_literal);

  std::vector<Pattern> patterns_;
  bool add_prefix_space_ = false;
};

}  // namespace afd::model
