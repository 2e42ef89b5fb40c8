// The result of a run as JSON and as text.
#pragma once

#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "runtime/job.h"

namespace afd::cli {

struct RunReport {
  std::string layout;     ///< "colocated" or "4A2F".
  std::string connector;  ///< Empty where colocated.
  std::uint32_t num_stages = 1;
  std::uint32_t num_threads = 1;  ///< Where colocated.
  const std::vector<runtime::Request>* requests = nullptr;
  const model::Tokenizer* tokenizer = nullptr;  ///< Null: the model has none.
  runtime::JobReport job;
};

/// {"outputs": [..], "stats": {..}}, without a newline at its end.
std::string run_report_json(const RunReport& report);

/// Every output with its prompt, for people.
std::string outputs_text(const RunReport& report);

/// Tokens per second, hops and waiting, three lines at most.
std::string summary_text(const RunReport& report);

}  // namespace afd::cli
