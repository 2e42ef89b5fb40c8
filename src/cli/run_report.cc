#include "cli/run_report.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "cli/text_output.h"

namespace afd::cli {
namespace {

using Json = nlohmann::ordered_json;
using runtime::Histogram;
using runtime::RunStats;

double rate(std::uint64_t count, double seconds) {
  return seconds > 0.0 ? static_cast<double>(count) / seconds : 0.0;
}

/// Rows per second of one kind of work, all ranks together.
double prefill_rate(const RunStats& stats) {
  return rate(stats.num_prompt_rows, stats.prefill_seconds / stats.num_ranks);
}
double decode_rate(const RunStats& stats) {
  return rate(stats.num_decode_rows, stats.decode_seconds / stats.num_ranks);
}
double total_rate(const RunStats& stats) {
  return rate(stats.num_generated_tokens, stats.run_seconds());
}

Json quantiles(const Histogram& histogram) {
  return {{"p50", histogram.quantile_us(0.5)}, {"p99", histogram.quantile_us(0.99)}};
}

Json attention_json(const RunStats& stats) {
  return {{"send_us", quantiles(stats.hops.send)},
          {"wait_us", quantiles(stats.hops.wait)},
          {"round_trip_us", quantiles(stats.hops.turnaround)},
          {"agreement_us", quantiles(stats.agreement)},
          {"waiting_fraction", stats.waiting_fraction()}};
}

Json ffn_json(const RunStats& stats) {
  return {{"send_us", quantiles(stats.hops.send)},
          {"wait_us", quantiles(stats.hops.wait)},
          {"compute_us", quantiles(stats.hops.turnaround)},
          {"idle_us", quantiles(stats.agreement)},
          {"waiting_fraction", stats.waiting_fraction()}};
}

Json stats_json(const RunReport& report) {
  const RunStats& attention = report.job.attention;
  const RunStats& ffn = report.job.ffn;
  const bool colocated = report.connector.empty();
  Json json = {{"layout", report.layout}};
  if (colocated) {
    json["num_threads"] = report.num_threads;
  } else {
    json["connector"] = report.connector;
    json["num_stages"] = report.num_stages;
  }
  if (report.rank) {
    json["role"] = to_string(report.rank->role);
    json["role_rank"] = report.rank->role_rank;
  }
  if (report.covers(Role::kAttention)) {
    json["num_prompt_tokens"] = attention.num_prompt_rows;
    json["num_generated_tokens"] = attention.num_generated_tokens;
    json["num_unserved_prompts"] = attention.num_unserved_prompts;
    json["run_seconds"] = attention.run_seconds();
    json["tokens_per_second"] = total_rate(attention);
    json["prefill_tokens_per_second"] = prefill_rate(attention);
    json["decode_tokens_per_second"] = decode_rate(attention);
    json["num_steps"] = attention.num_steps;
    json["step_us"] = quantiles(attention.step);
  }
  if (!colocated && report.covers(Role::kAttention)) {
    json["attention"] = attention_json(attention);
    json["paths"] = Json::array();
    for (const runtime::HopPath& path : attention.paths) {
      json["paths"].push_back({{"attention_rank", path.attention_rank},
                               {"ffn_rank", path.ffn_rank},
                               {"path", path.path}});
    }
  }
  if (!colocated && report.covers(Role::kFfn)) {
    json["ffn"] = ffn_json(ffn);
  }
  return json;
}

std::string line(const char* format, auto... values) {
  char buffer[256];
  const int length = std::snprintf(buffer, sizeof(buffer), format, values...);
  return std::string(buffer, std::min(sizeof(buffer) - 1, static_cast<std::size_t>(length)));
}

}  // namespace

std::string run_report_json(const RunReport& report) {
  Json outputs = Json::array();
  for (const runtime::Output& output : report.job.outputs) {
    Json json = {
        {"prompt_idx", output.request_idx},
        {"prompt_ids", (*report.requests)[output.request_idx].prompt_ids},
        {"token_ids", output.token_ids},
        {"text", report.tokenizer == nullptr ? std::string()
                                             : ids_to_text(report.tokenizer, output.token_ids)},
        {"finish_reason", runtime::to_string(output.finish_reason)}};
    if (!output.logits_sha256.empty()) {
      json["logits_sha256"] = output.logits_sha256;
    }
    outputs.push_back(std::move(json));
  }
  return Json{{"outputs", std::move(outputs)}, {"stats", stats_json(report)}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

std::string summary_text(const RunReport& report) {
  const RunStats& attention = report.job.attention;
  const RunStats& ffn = report.job.ffn;
  std::string text =
      line("%s: %llu tokens in %.2f s, %.0f tokens/s (prefill %.0f, decode %.0f)\n",
           report.layout.c_str(), static_cast<unsigned long long>(attention.num_generated_tokens),
           attention.run_seconds(), total_rate(attention), prefill_rate(attention),
           decode_rate(attention));
  if (attention.num_unserved_prompts > 0) {
    text += line("%llu prompts were not begun: the job was told to stop\n",
                 static_cast<unsigned long long>(attention.num_unserved_prompts));
  }
  if (report.connector.empty()) {
    return text + line("step p50 %.0f us, p99 %.0f us\n", attention.step.quantile_us(0.5),
                       attention.step.quantile_us(0.99));
  }
  const auto side = [](const char* name, const RunStats& stats) {
    return line(
        "%-9s  send p50 %.1f us, p99 %.1f us; wait p50 %.0f us, p99 %.0f us; waiting %.0f %% of "
        "the "
        "time\n",
        name, stats.hops.send.quantile_us(0.5), stats.hops.send.quantile_us(0.99),
        stats.hops.wait.quantile_us(0.5), stats.hops.wait.quantile_us(0.99),
        100.0 * stats.waiting_fraction());
  };
  return text + side("attention", attention) + side("ffn", ffn) +
         "(send: in the call that hands over a layer's rows; wait: until the other side's are "
         "there)\n";
}

}  // namespace afd::cli
