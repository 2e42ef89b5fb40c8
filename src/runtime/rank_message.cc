#include "runtime/rank_message.h"

#include <array>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/json.h"

namespace afd::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::array kErrorCodes = {ErrorCode::kInvalidArgument,  ErrorCode::kFailedPrecondition,
                                    ErrorCode::kUnavailable,      ErrorCode::kWouldBlock,
                                    ErrorCode::kDeadlineExceeded, ErrorCode::kPeerLost,
                                    ErrorCode::kProtocolMismatch, ErrorCode::kInternal};

Error mismatch(std::string_view what, std::string_view problem) {
  return {ErrorCode::kProtocolMismatch, std::string(what) + ": " + std::string(problem)};
}

Json to_json(const WaitingMessage& message) {
  return {{"type", "waiting"}, {"missing", message.missing}};
}
Json to_json(const ReadyMessage&) {
  return {{"type", "ready"}};
}
Json to_json(const TokensMessage& message) {
  Json tokens = Json::array();
  for (const TokenEvent& token : message.tokens) {
    tokens.push_back({token.request_idx, token.token_id});
  }
  return {{"type", "tokens"}, {"tokens", std::move(tokens)}};
}
Json to_json(const FinishedMessage& message) {
  return {{"type", "finished"},
          {"request_idx", message.output.request_idx},
          {"token_ids", message.output.token_ids},
          {"finish_reason", to_string(message.output.finish_reason)},
          {"logits_sha256", message.output.logits_sha256}};
}
Json to_json(const DoneMessage& message) {
  return {{"type", "done"}, {"stats", encode_run_stats(message.stats)}};
}
Json to_json(const FailedMessage& message) {
  return {{"type", "failed"},
          {"code", to_string(message.error.code)},
          {"message", message.error.message}};
}

Result<FinishReason> parse_finish_reason(const std::string& text) {
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kStop}) {
    if (text == to_string(reason)) {
      return reason;
    }
  }
  return fail(mismatch("rank message", "finish_reason is '" + text + "'"));
}

Result<RankMessage> parse_finished(const Json& json) {
  FinishedMessage message;
  json.at("request_idx").get_to(message.output.request_idx);
  json.at("token_ids").get_to(message.output.token_ids);
  json.at("logits_sha256").get_to(message.output.logits_sha256);
  Result<FinishReason> reason = parse_finish_reason(json.at("finish_reason").get<std::string>());
  if (!reason) {
    return fail(std::move(reason).error());
  }
  message.output.finish_reason = *reason;
  return message;
}

Result<RankMessage> parse_failed(const Json& json) {
  const auto code = json.at("code").get<std::string>();
  for (const ErrorCode known : kErrorCodes) {
    if (code == to_string(known)) {
      return FailedMessage{{known, json.at("message").get<std::string>()}};
    }
  }
  return fail(mismatch("rank message", "code is '" + code + "'"));
}

Result<RankMessage> parse_message(const Json& json) {
  const auto type = json.at("type").get<std::string>();
  if (type == "waiting") {
    return WaitingMessage{json.at("missing").get<std::string>()};
  }
  if (type == "ready") {
    return ReadyMessage{};
  }
  if (type == "tokens") {
    TokensMessage message;
    for (const Json& pair : json.at("tokens")) {
      message.tokens.push_back({pair.at(0).get<std::uint32_t>(), pair.at(1).get<std::int32_t>()});
    }
    return message;
  }
  if (type == "finished") {
    return parse_finished(json);
  }
  if (type == "done") {
    Result<RunStats> stats = decode_run_stats(json.at("stats").get<std::string>());
    if (!stats) {
      return fail(std::move(stats).error());
    }
    return DoneMessage{*std::move(stats)};
  }
  if (type == "failed") {
    return parse_failed(json);
  }
  return fail(mismatch("rank message", "its type is '" + type + "'"));
}

Json to_json(const Request& request) {
  return {{"request_idx", request.request_idx},
          {"prompt_ids", request.prompt_ids},
          {"max_new_tokens", request.max_new_tokens},
          {"temperature", request.sampling.temperature},
          {"seed", request.sampling.seed}};
}

Request parse_request(const Json& json) {
  Request request;
  json.at("request_idx").get_to(request.request_idx);
  json.at("prompt_ids").get_to(request.prompt_ids);
  json.at("max_new_tokens").get_to(request.max_new_tokens);
  json.at("temperature").get_to(request.sampling.temperature);
  json.at("seed").get_to(request.sampling.seed);
  return request;
}

JobOptions parse_options(const Json& json) {
  JobOptions options;
  json.at("model_dir").get_to(options.model_dir);
  json.at("connector").get_to(options.afd.connector);
  json.at("connector_extra_config").get_to(options.afd.connector_extra_config);
  json.at("host").get_to(options.afd.host);
  json.at("port").get_to(options.afd.port);
  json.at("num_attention_ranks").get_to(options.afd.num_attention_ranks);
  json.at("num_ffn_ranks").get_to(options.afd.num_ffn_ranks);
  json.at("compute_gate_on_attention").get_to(options.afd.compute_gate_on_attention);
  json.at("num_stages").get_to(options.num_stages);
  json.at("max_num_seqs").get_to(options.max_num_seqs);
  json.at("max_num_tokens").get_to(options.max_num_tokens);
  json.at("logits_sha256").get_to(options.logits_sha256);
  json.at("stream_tokens").get_to(options.stream_tokens);
  options.hop_timeout = std::chrono::milliseconds(json.at("hop_timeout_ms").get<std::int64_t>());
  options.init_timeout = std::chrono::milliseconds(json.at("init_timeout_ms").get<std::int64_t>());
  return options;
}

}  // namespace

std::string encode_rank_message(const RankMessage& message) {
  const Json json =
      std::visit([](const auto& alternative) { return to_json(alternative); }, message);
  // A message may quote a file's bytes, which need not be UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RankMessage> decode_rank_message(std::string_view line) {
  try {
    return parse_message(Json::parse(line));
  } catch (const Json::exception& error) {
    return fail(mismatch("rank message", json_problem(error.what())));
  }
}

std::string encode_rank_job(const RankJob& job) {
  const JobOptions& options = job.options;
  Json requests = Json::array();
  for (const Request& request : job.requests) {
    requests.push_back(to_json(request));
  }
  return Json{{"model_dir", options.model_dir},
              {"connector", options.afd.connector},
              {"connector_extra_config", options.afd.connector_extra_config},
              {"host", options.afd.host},
              {"port", options.afd.port},
              {"num_attention_ranks", options.afd.num_attention_ranks},
              {"num_ffn_ranks", options.afd.num_ffn_ranks},
              {"compute_gate_on_attention", options.afd.compute_gate_on_attention},
              {"num_stages", options.num_stages},
              {"max_num_seqs", options.max_num_seqs},
              {"max_num_tokens", options.max_num_tokens},
              {"logits_sha256", options.logits_sha256},
              {"stream_tokens", options.stream_tokens},
              {"hop_timeout_ms", options.hop_timeout.count()},
              {"init_timeout_ms", options.init_timeout.count()},
              {"requests", std::move(requests)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RankJob> decode_rank_job(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    RankJob job{.options = parse_options(json), .requests = {}};
    for (const Json& request : json.at("requests")) {
      job.requests.push_back(parse_request(request));
    }
    return job;
  } catch (const Json::exception& error) {
    return fail(mismatch("rank job", json_problem(error.what())));
  }
}

}  // namespace afd::runtime
