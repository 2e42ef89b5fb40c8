// The result of a run as JSON and as text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "runtime/job.h"
#include "runtime/rank.h"

namespace afd::cli {

struct RunReport {
  std::string layout;     ///< "colocated" or "4A2F".
  std::string connector;  ///< Empty where colocated.
  std::uint32_t num_stages = 1;
  std::uint32_t num_threads = 1;  ///< Where colocated.
  const std::vector<runtime::Request>* requests = nullptr;
  const model::Tokenizer* tokenizer = nullptr;  ///< Null: the model has none.
  std::optional<runtime::RankId> rank;          ///< The report is of this rank alone.
  runtime::JobReport job;

  /// Whether the report knows of the role's time.
  bool covers(Role role) const { return !rank || rank->role == role; }
};

/// {"outputs": [..], "stats": {..}}, without a newline at its end (docs/json.md).
std::string run_report_json(const RunReport& report);

/// Tokens per second, hops and waiting, for people: four lines at most.
std::string summary_text(const RunReport& report);

}  // namespace afd::cli
