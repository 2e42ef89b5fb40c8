// One job: a model, a layout, limits, and the prompts. Everything that can be refused is refused
// here, before any process is started.
//
// Threads: plain values and pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <afd/config.h>
#include <afd/factory.h>
#include <afd/result.h>

#include "model/checkpoint.h"
#include "model/model_config.h"
#include "runtime/request.h"
#include "runtime/run_stats.h"

namespace afd::runtime {

struct JobOptions {
  std::string model_dir;
  /// Connector, rendezvous address, rank counts and gate placement; `role` is each rank's own.
  AfdConfig afd;
  std::uint32_t num_stages = 1;        ///< At least 1, at most what the connector can.
  std::uint32_t max_num_seqs = 64;     ///< Sequences under way on one attention rank, at least 1.
  std::uint32_t max_num_tokens = 256;  ///< Rows of one attention rank in one stage, at least 1.
  bool logits_sha256 = false;
  /// Tell of each token as it is chosen; else only of finished outputs.
  bool stream_tokens = false;
  std::chrono::milliseconds hop_timeout{60'000};   ///< For a peer within a step.
  std::chrono::milliseconds init_timeout{60'000};  ///< For all ranks to meet.

  friend bool operator==(const JobOptions&, const JobOptions&) = default;
};

/// Checks counts, limits and timeouts.
/// @return kInvalidArgument  the first problem: value found, value wanted
Result<void> validate_job(const JobOptions& options);

/// Checks that the connector exists, can run here and can do what the job asks of it.
/// @return kInvalidArgument, kUnavailable
Result<void> validate_connector(const JobOptions& options, const ConnectorFactory& factory);

/// Checks the limits that follow from the model, by making (and dropping) a connector of each role.
/// @return kInvalidArgument, kUnavailable  as from ConnectorFactory::create_connector()
Result<void> validate_connector_limits(const JobOptions& options,
                                       const model::Checkpoint& checkpoint,
                                       const ConnectorFactory& factory);

/// Checks a prompt against the model.
/// @return kInvalidArgument  "token id 2048 at position 0 is not in [0, 2048)", ...
Result<void> validate_request(const Request& request, const model::ModelConfig& config);

/// What the connector of one rank is made from.
ConnectorParams connector_params(const JobOptions& options, const model::Checkpoint& checkpoint,
                                 Role role, std::uint32_t role_rank);

/// Deals requests to attention ranks, each to the one that has the fewest tokens to process so far
/// (the lowest on ties). By rank; order within a rank is the job's.
std::vector<std::vector<Request>> deal_requests(std::span<const Request> requests,
                                                std::uint32_t num_attention_ranks);

/// Of a whole job's requests, in hex: other requests, another digest (not against an enemy).
std::string digest_requests(std::span<const Request> requests);

/// What a job brought.
struct JobReport {
  std::vector<Output> outputs;  ///< In the order of the requests.
  RunStats attention;           ///< Or the colocated run's.
  RunStats ffn;
};

}  // namespace afd::runtime
