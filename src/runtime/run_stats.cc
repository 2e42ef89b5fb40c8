#include "runtime/run_stats.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/json.h"

namespace afd::runtime {
namespace {

using Json = nlohmann::json;

Json to_json(const Histogram& histogram) {
  return {{"buckets", histogram.sparse()}, {"total_ns", histogram.total_ns()}};
}

bool from_json(const Json& json, Histogram* histogram) {
  std::vector<std::pair<std::uint32_t, std::uint64_t>> buckets;
  json.at("buckets").get_to(buckets);
  return histogram->add_sparse(buckets, json.at("total_ns").get<std::uint64_t>());
}

}  // namespace

double RunStats::waiting_fraction() const {
  const double run_us = run_seconds() * 1e6 * num_ranks;
  return run_us <= 0.0 ? 0.0 : (hops.wait.total_us() + agreement.total_us()) / run_us;
}

void record_step(RunStats& stats, const StepRecord& step) {
  ++stats.num_steps;
  stats.num_prompt_rows += step.num_prompt_rows;
  stats.num_decode_rows += step.num_rows - step.num_prompt_rows;
  stats.num_generated_tokens += step.num_tokens;
  stats.step.record(std::chrono::nanoseconds(step.end_ns - step.begin_ns));
  const double seconds = static_cast<double>(step.end_ns - step.begin_ns) / 1e9;
  const double prompt_share =
      step.num_rows == 0 ? 0.0 : static_cast<double>(step.num_prompt_rows) / step.num_rows;
  stats.prefill_seconds += seconds * prompt_share;
  stats.decode_seconds += seconds * (1.0 - prompt_share);
  stats.end_ns = step.end_ns;
}

void RunStats::merge(const RunStats& other) {
  if (other.begin_ns == other.end_ns) {
    return;  // it never ran
  }
  const bool ran = begin_ns != end_ns;
  num_ranks = ran ? num_ranks + other.num_ranks : other.num_ranks;
  begin_ns = ran ? std::min(begin_ns, other.begin_ns) : other.begin_ns;
  end_ns = std::max(end_ns, other.end_ns);
  num_steps = std::max(num_steps, other.num_steps);
  num_prompt_rows += other.num_prompt_rows;
  num_decode_rows += other.num_decode_rows;
  num_generated_tokens += other.num_generated_tokens;
  num_unserved_prompts += other.num_unserved_prompts;
  step.merge(other.step);
  prefill_seconds += other.prefill_seconds;
  decode_seconds += other.decode_seconds;
  agreement.merge(other.agreement);
  hops.send.merge(other.hops.send);
  hops.wait.merge(other.hops.wait);
  hops.turnaround.merge(other.hops.turnaround);
  paths.insert(paths.end(), other.paths.begin(), other.paths.end());
  std::ranges::sort(paths);
}

std::string encode_run_stats(const RunStats& stats) {
  Json paths = Json::array();
  for (const HopPath& path : stats.paths) {
    paths.push_back({path.attention_rank, path.ffn_rank, path.path});
  }
  return Json{{"num_steps", stats.num_steps},
              {"num_prompt_rows", stats.num_prompt_rows},
              {"num_decode_rows", stats.num_decode_rows},
              {"num_generated_tokens", stats.num_generated_tokens},
              {"num_unserved_prompts", stats.num_unserved_prompts},
              {"step", to_json(stats.step)},
              {"prefill_seconds", stats.prefill_seconds},
              {"decode_seconds", stats.decode_seconds},
              {"agreement", to_json(stats.agreement)},
              {"send", to_json(stats.hops.send)},
              {"wait", to_json(stats.hops.wait)},
              {"turnaround", to_json(stats.hops.turnaround)},
              {"paths", std::move(paths)},
              {"begin_ns", stats.begin_ns},
              {"end_ns", stats.end_ns}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<RunStats> decode_run_stats(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    RunStats stats;
    json.at("num_steps").get_to(stats.num_steps);
    json.at("num_prompt_rows").get_to(stats.num_prompt_rows);
    json.at("num_decode_rows").get_to(stats.num_decode_rows);
    json.at("num_generated_tokens").get_to(stats.num_generated_tokens);
    json.at("num_unserved_prompts").get_to(stats.num_unserved_prompts);
    json.at("prefill_seconds").get_to(stats.prefill_seconds);
    json.at("decode_seconds").get_to(stats.decode_seconds);
    for (const Json& path : json.at("paths")) {
      stats.paths.push_back({path.at(0).get<std::uint32_t>(), path.at(1).get<std::uint32_t>(),
                             path.at(2).get<std::string>()});
    }
    json.at("begin_ns").get_to(stats.begin_ns);
    json.at("end_ns").get_to(stats.end_ns);
    for (const auto& [key, histogram] : {std::pair<const char*, Histogram*>{"step", &stats.step},
                                         {"agreement", &stats.agreement},
                                         {"send", &stats.hops.send},
                                         {"wait", &stats.hops.wait},
                                         {"turnaround", &stats.hops.turnaround}}) {
      if (!from_json(json.at(key), histogram)) {
        return fail(ErrorCode::kProtocolMismatch,
                    std::string("run stats: '") + key + "' has a bucket that does not exist");
      }
    }
    return stats;
  } catch (const Json::exception& error) {
    return fail(ErrorCode::kProtocolMismatch, "run stats: " + json_problem(error.what()));
  }
}

}  // namespace afd::runtime
