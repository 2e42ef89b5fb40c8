#include "cli/prompts.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/job.h"

namespace afd::cli {
namespace {

using Json = nlohmann::json;

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

/// The value as an integer of [low, high].
template <typename Number>
Result<Number> integer(const Json& value, const std::string& name, Number low,
                       Number high = std::numeric_limits<Number>::max()) {
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(high)
                        : value.is_number_integer() &&
                              value.get<std::int64_t>() >= static_cast<std::int64_t>(low);
  if (!fits || (value.is_number_unsigned() &&
                value.get<std::uint64_t>() < static_cast<std::uint64_t>(low < 0 ? 0 : low))) {
    return invalid(name + " is " + value.dump() + ", expected an integer in [" +
                   std::to_string(low) + ", " + std::to_string(high) + "]");
  }
  return value.get<Number>();
}

Result<void> read_ids(const Json& value, std::vector<std::int32_t>* ids) {
  if (!value.is_array()) {
    return invalid("prompt_ids is " + value.dump().substr(0, 40) +
                   ", expected an array of integers");
  }
  for (const Json& entry : value) {
    Result<std::int32_t> id =
        integer<std::int32_t>(entry, "prompt_ids[" + std::to_string(ids->size()) + "]", 0);
    if (!id) {
      return fail(std::move(id).error());
    }
    ids->push_back(*id);
  }
  return {};
}

Result<void> read_key(const std::string& key, const Json& value, PromptSource* source) {
  if (key == "prompt") {
    if (!value.is_string()) {
      return invalid("prompt is " + value.dump().substr(0, 40) + ", expected text");
    }
    source->text = value.get<std::string>();
    return {};
  }
  if (key == "prompt_ids") {
    return read_ids(value, &source->request.prompt_ids);
  }
  if (key == "max_new_tokens") {
    Result<std::uint32_t> number = integer<std::uint32_t>(value, key, 1);
    if (!number) {
      return fail(std::move(number).error());
    }
    source->request.max_new_tokens = *number;
    return {};
  }
  if (key == "seed") {
    Result<std::uint64_t> number = integer<std::uint64_t>(value, key, 0);
    if (!number) {
      return fail(std::move(number).error());
    }
    source->request.sampling.seed = *number;
    return {};
  }
  if (key == "temperature") {
    if (!value.is_number()) {
      return invalid("temperature is " + value.dump().substr(0, 40) + ", expected a number");
    }
    source->request.sampling.temperature = value.get<double>();
    return {};
  }
  return invalid("unknown key '" + key +
                 "'; known: prompt, prompt_ids, max_new_tokens, temperature, seed");
}

PromptSource with_defaults(const PromptOptions& options, std::string label) {
  PromptSource source{.label = std::move(label), .text = std::nullopt, .request = {}};
  source.request.max_new_tokens = options.max_new_tokens;
  source.request.sampling = options.sampling;
  return source;
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

Result<void> read_file(const PromptOptions& options, std::vector<PromptSource>* sources) {
  std::ifstream file(options.file, std::ios::binary);
  if (!file) {
    return invalid("--prompts " + options.file + ": " + std::strerror(errno));
  }
  std::string line;
  for (std::size_t number = 1; std::getline(file, line); ++number) {
    if (is_blank(line)) {
      continue;
    }
    const std::string label = options.file + ":" + std::to_string(number);
    Result<PromptSource> source = parse_prompt_line(line, options);
    if (!source) {
      return fail(std::move(source).error().with_context(label));
    }
    source->label = label;
    sources->push_back(*std::move(source));
  }
  if (sources->empty()) {
    return invalid("--prompts " + options.file + ": it holds no prompt");
  }
  return {};
}

}  // namespace

Result<std::vector<std::int32_t>> parse_id_list(std::string_view text) {
  std::vector<std::int32_t> ids;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string_view piece = text.substr(begin, end - begin);
    while (!piece.empty() && piece.front() == ' ') {
      piece.remove_prefix(1);
    }
    while (!piece.empty() && piece.back() == ' ') {
      piece.remove_suffix(1);
    }
    std::int32_t id = 0;
    const auto [stop, error] = std::from_chars(piece.data(), piece.data() + piece.size(), id);
    if (error != std::errc() || stop != piece.data() + piece.size() || id < 0) {
      return invalid("'" + std::string(piece) + "' is no token id, expected numbers like 1,2,3");
    }
    ids.push_back(id);
    if (end == text.size()) {
      return ids;
    }
    begin = end + 1;
  }
}

Result<PromptSource> parse_prompt_line(std::string_view line, const PromptOptions& options) {
  // Strict about duplicates too: the parser alone would let the last one win.
  std::vector<std::string> keys;
  std::string duplicate;
  const Json::parser_callback_t note_keys = [&](int depth, Json::parse_event_t event,
                                                Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      for (const std::string& key : keys) {
        if (key == parsed.get_ref<const std::string&>()) {
          duplicate = key;
        }
      }
      keys.push_back(parsed.get<std::string>());
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(line, note_keys);
  } catch (const Json::exception& error) {
    return invalid(std::string("not JSON: ") + error.what());
  }
  if (!json.is_object()) {
    return invalid("a line is an object like {\"prompt\": \"..\"}, found " +
                   std::string(json.type_name()));
  }
  if (!duplicate.empty()) {
    return invalid("key '" + duplicate + "' appears twice");
  }
  PromptSource source = with_defaults(options, {});
  for (const auto& [key, value] : json.items()) {
    if (Result<void> read = read_key(key, value, &source); !read) {
      return fail(std::move(read).error());
    }
  }
  if (json.contains("prompt") == json.contains("prompt_ids")) {
    return invalid("expected one of prompt and prompt_ids");
  }
  return source;
}

Result<std::vector<PromptSource>> collect_prompts(const PromptOptions& options) {
  const int num_kinds = !options.texts.empty() + !options.id_lists.empty() + !options.file.empty();
  if (num_kinds != 1) {
    return invalid(num_kinds == 0 ? "no prompt: give --prompt, --prompt-ids or --prompts"
                                  : "give only one of --prompt, --prompt-ids and --prompts");
  }
  std::vector<PromptSource> sources;
  for (const std::string& text : options.texts) {
    sources.push_back(with_defaults(options, "--prompt"));
    sources.back().text = text;
  }
  for (const std::string& list : options.id_lists) {
    Result<std::vector<std::int32_t>> ids = parse_id_list(list);
    if (!ids) {
      return fail(std::move(ids).error().with_context("--prompt-ids"));
    }
    sources.push_back(with_defaults(options, "--prompt-ids"));
    sources.back().request.prompt_ids = *std::move(ids);
  }
  if (!options.file.empty()) {
    if (Result<void> read = read_file(options, &sources); !read) {
      return fail(std::move(read).error());
    }
  }
  return sources;
}

Result<std::vector<runtime::Request>> make_requests(const std::vector<PromptSource>& sources,
                                                    const model::Tokenizer* tokenizer,
                                                    const model::ModelConfig& config) {
  std::vector<runtime::Request> requests;
  for (const PromptSource& source : sources) {
    runtime::Request request = source.request;
    request.request_idx = static_cast<std::uint32_t>(requests.size());
    if (source.text) {
      if (source.text->empty()) {
        return fail(
            Error{ErrorCode::kInvalidArgument, "the prompt is empty"}.with_context(source.label));
      }
      if (tokenizer == nullptr) {
        return fail(Error{ErrorCode::kInvalidArgument,
                          "the model has no tokenizer.json: give token ids instead of text"}
                        .with_context(source.label));
      }
      Result<std::vector<std::int32_t>> ids = tokenizer->encode_prompt(*source.text);
      if (!ids) {
        return fail(std::move(ids).error().with_context(source.label));
      }
      request.prompt_ids = *std::move(ids);
    }
    if (Result<void> valid = runtime::validate_request(request, config); !valid) {
      return fail(std::move(valid).error().with_context(source.label));
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace afd::cli
