#include "cli/prompts.h"

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <utility>

#include "core/json.h"
#include "runtime/job.h"

namespace afd::cli {
namespace {

/// A prompt as long as the longest contexts, in ids, has a few megabytes.
constexpr std::size_t kLineBytesMax = std::size_t{64} << 20;

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message));
}

std::string shown(const JsonValue& value) {
  return printable(write_json(value), 40);
}

/// The value as a whole number of [low, the greatest of its type].
template <typename Number>
Result<Number> integer(const JsonValue& value, const std::string& name, Number low) {
  // What does not fit 64 signed bits comes as text.
  const std::string text =
      value.kind == JsonValue::Kind::kInteger ? std::to_string(value.integer) : value.text;
  const bool is_number =
      value.kind == JsonValue::Kind::kInteger || value.kind == JsonValue::Kind::kOtherNumber;
  Number number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (!is_number || error != std::errc() || stop != text.data() + text.size() || number < low) {
    return invalid(name + " is " + shown(value) + ", expected an integer in [" +
                   std::to_string(low) + ", " + std::to_string(std::numeric_limits<Number>::max()) +
                   "]");
  }
  return number;
}

Result<double> number(const JsonValue& value, const std::string& name) {
  if (value.kind == JsonValue::Kind::kInteger) {
    return static_cast<double>(value.integer);
  }
  double number = 0.0;
  const auto [stop, error] =
      std::from_chars(value.text.data(), value.text.data() + value.text.size(), number);
  if (value.kind != JsonValue::Kind::kOtherNumber || error != std::errc() ||
      stop != value.text.data() + value.text.size()) {
    return invalid(name + " is " + shown(value) + ", expected a number");
  }
  return number;
}

Result<void> read_ids(const JsonValue& value, std::vector<std::int32_t>* ids) {
  if (value.kind != JsonValue::Kind::kArray) {
    return invalid("prompt_ids is " + shown(value) + ", expected an array of integers");
  }
  for (const JsonValue& entry : value.items) {
    Result<std::int32_t> id =
        integer<std::int32_t>(entry, "prompt_ids[" + std::to_string(ids->size()) + "]", 0);
    if (!id) {
      return fail(std::move(id).error());
    }
    ids->push_back(*id);
  }
  return {};
}

template <typename Value>
Result<void> store(Result<Value> value, Value* target) {
  if (!value) {
    return fail(std::move(value).error());
  }
  *target = *value;
  return {};
}

Result<void> read_key(const std::string& key, const JsonValue& value, PromptSource* source) {
  if (key == "prompt") {
    if (value.kind != JsonValue::Kind::kString) {
      return invalid("prompt is " + shown(value) + ", expected text");
    }
    source->text = value.text;
    return {};
  }
  if (key == "prompt_ids") {
    return read_ids(value, &source->request.prompt_ids);
  }
  if (key == "max_new_tokens") {
    return store(integer<std::uint32_t>(value, key, 1), &source->request.max_new_tokens);
  }
  if (key == "seed") {
    return store(integer<std::uint64_t>(value, key, 0), &source->request.sampling.seed);
  }
  if (key == "temperature") {
    return store(number(value, key), &source->request.sampling.temperature);
  }
  return invalid("unknown key '" + printable(key) +
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

/// The next line without its end, one byte more than it may have at most.
/// @return false  at the end, or where the file cannot be read any further
bool next_line(std::istream& file, std::string* line) {
  line->clear();
  char byte = 0;
  while (file.get(byte) && byte != '\n') {
    line->push_back(byte);
    if (line->size() > kLineBytesMax) {
      return true;
    }
  }
  return !file.bad() && (file || !line->empty());
}

Result<void> read_lines(std::istream& file, const std::string& name, const PromptOptions& options,
                        std::vector<PromptSource>* sources) {
  std::string line;
  for (std::size_t number = 1; next_line(file, &line); ++number) {
    const std::string label = name + ":" + std::to_string(number);
    if (line.size() > kLineBytesMax) {
      return invalid(label + ": a line of more than " + std::to_string(kLineBytesMax) + " bytes");
    }
    if (is_blank(line)) {
      continue;
    }
    Result<PromptSource> source = parse_prompt_line(line, options);
    if (!source) {
      return fail(std::move(source).error().with_context(label));
    }
    source->label = label;
    sources->push_back(*std::move(source));
  }
  if (file.bad() || (&file == &std::cin && std::ferror(stdin) != 0)) {
    return invalid("--prompts " + options.file + ": " + std::strerror(errno));
  }
  if (sources->empty()) {
    return invalid("--prompts " + options.file + ": it holds no prompt");
  }
  return {};
}

Result<void> read_file(const PromptOptions& options, std::vector<PromptSource>* sources) {
  if (options.file == "-") {
    return read_lines(std::cin, "stdin", options, sources);
  }
  std::error_code unknown;
  if (std::filesystem::is_directory(options.file, unknown)) {
    return invalid("--prompts " + options.file + ": a directory, expected a file");
  }
  std::ifstream file(options.file, std::ios::binary);
  if (!file) {
    return invalid("--prompts " + options.file + ": " + std::strerror(errno));
  }
  return read_lines(file, options.file, options, sources);
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
  const Result<JsonValue> json = parse_json(line, {.bytes_max = kLineBytesMax});
  if (!json) {
    return invalid("bad JSON: " + json.error().message);
  }
  if (json->kind != JsonValue::Kind::kObject) {
    return invalid("a line is an object like {\"prompt\": \"..\"}, found " + shown(*json));
  }
  PromptSource source = with_defaults(options, {});
  for (const auto& [key, value] : json->members) {
    if (Result<void> read = read_key(key, value, &source); !read) {
      return fail(std::move(read).error());
    }
  }
  if ((json->find("prompt") == nullptr) == (json->find("prompt_ids") == nullptr)) {
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
