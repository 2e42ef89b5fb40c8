// From what the user typed to requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "model/model_config.h"
#include "model/tokenizer.h"
#include "runtime/request.h"

namespace afd::cli {

/// Where prompts come from, and what holds for those that do not say otherwise.
struct PromptOptions {
  std::vector<std::string> texts;     ///< --prompt
  std::vector<std::string> id_lists;  ///< --prompt-ids
  std::string file;                   ///< --prompts; - is stdin
  std::uint32_t max_new_tokens = 64;
  runtime::SamplingParams sampling;
};

/// One prompt as given: text or ids.
struct PromptSource {
  std::string label;  ///< "--prompt", "prompts.jsonl:3": for messages.
  std::optional<std::string> text;
  runtime::Request request;  ///< Its ids are still to come where there is text.
};

/// "1,2,3". @return kInvalidArgument  naming the piece that is no id
Result<std::vector<std::int32_t>> parse_id_list(std::string_view text);

/// One line of a prompts file: {"prompt": ".."} or {"prompt_ids": [..]}, and, where they differ
/// from `options`, "max_new_tokens", "temperature", "seed".
/// @return kInvalidArgument  what is wrong with it
Result<PromptSource> parse_prompt_line(std::string_view line, const PromptOptions& options);

/// All prompts, in order. Blank lines of the file are skipped.
/// @return kInvalidArgument  no prompt or several kinds; with file and line where there is one
Result<std::vector<PromptSource>> collect_prompts(const PromptOptions& options);

/// Encodes the texts and checks every request against the model.
/// @param tokenizer  null: the model has none, and a text is an error
/// @return kInvalidArgument  with the prompt's label
Result<std::vector<runtime::Request>> make_requests(const std::vector<PromptSource>& sources,
                                                    const model::Tokenizer* tokenizer,
                                                    const model::ModelConfig& config);

}  // namespace afd::cli
