#include "runtime/rank.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "model/checkpoint.h"
#include "model/model.h"
#include "runtime/attention_runner.h"
#include "runtime/ffn_compute.h"
#include "runtime/ffn_server.h"

namespace afd::runtime {

std::string to_string(RankId id) {
  return std::string(to_string(id.role)) + " rank " + std::to_string(id.role_rank);
}

Error name_rank(Error error, RankId id) {
  const std::string name = to_string(id);
  const std::string& message = error.message;
  for (std::size_t at = 0; (at = message.find(name, at)) != std::string::npos; ++at) {
    const std::size_t end = at + name.size();
    if (end == message.size() || message[end] < '0' || message[end] > '9') {
      return error;  // it names this rank, not "rank 12" where this one is rank 1
    }
  }
  return std::move(error).with_context(name);
}

struct Rank::State {
  JobOptions options;
  RankId id;
  RankEvents events;
  std::unique_ptr<model::AttentionPart> attention;
  std::unique_ptr<model::FfnPart> ffn;
  std::unique_ptr<ConnectorBase> connector;
  std::vector<HopPath> paths;
  ViewGuard views;  ///< Of the connector's memory, which stop() releases.
  std::atomic<bool> stopping{false};
  std::atomic<bool> draining{false};
  std::atomic<bool> has_met{false};

  Result<void> load(const model::Checkpoint& checkpoint) {
    const bool gate_on_attention = options.afd.compute_gate_on_attention;
    if (id.role == Role::kAttention) {
      Result<std::unique_ptr<model::AttentionPart>> loaded =
          model::AttentionPart::load(checkpoint, {.gate = gate_on_attention});
      if (!loaded) {
        return fail(std::move(loaded).error());
      }
      attention = *std::move(loaded);
    } else {
      Result<std::unique_ptr<model::FfnPart>> loaded =
          model::FfnPart::load(checkpoint, {.gate_on_attention = gate_on_attention});
      if (!loaded) {
        return fail(std::move(loaded).error());
      }
      ffn = *std::move(loaded);
    }
    return {};
  }

  GenerationOptions generation_options() const {
    const std::uint64_t step_rows = std::uint64_t{options.max_num_tokens} * options.num_stages;
    return {.limits = {.num_seqs_max = options.max_num_seqs,
                       .num_tokens_max = static_cast<std::uint32_t>(std::min<std::uint64_t>(
                           step_rows, std::numeric_limits<std::uint32_t>::max()))},
            .logits_sha256 = options.logits_sha256};
  }

  Result<void> meet() {
    if (stopping) {
      return fail(ErrorCode::kFailedPrecondition, "stopped");
    }
    if (Result<void> met = connector->init_afd_connector(Deadline::after(options.init_timeout));
        !met) {
      return met;
    }
    has_met = true;
    // stop() may have closed the connector just before init opened it.
    if (stopping) {
      return fail(ErrorCode::kFailedPrecondition, "stopped");
    }
    for (PeerPath& path : connector->peer_paths()) {
      const bool is_attention = id.role == Role::kAttention;
      paths.push_back({.attention_rank = is_attention ? id.role_rank : path.peer_role_rank,
                       .ffn_rank = is_attention ? path.peer_role_rank : id.role_rank,
                       .path = std::move(path.path)});
    }
    if (events.on_ready) {
      events.on_ready(paths);
    }
    return {};
  }

  /// Requests that one attention rank takes for another's would be served by nobody.
  Result<void> compare_requests(const std::string& job_digest) {
    RoleGroup* const group = connector->role_group();
    if (options.afd.num_attention_ranks == 1 || group == nullptr) {
      return {};
    }
    const Result<std::vector<std::string>> digests =
        group->all_gather(job_digest, Deadline::after(options.hop_timeout));
    if (!digests) {
      return fail(digests.error());
    }
    for (std::uint32_t rank = 0; rank < digests->size(); ++rank) {
      if ((*digests)[rank] != job_digest) {
        return fail(
            ErrorCode::kProtocolMismatch,
            to_string(RankId{Role::kAttention, rank}) + " was given other prompts than " +
                to_string(id) +
                ": every attention rank needs all prompts of the job, in the same order and "
                "with the same options, and takes its share");
      }
    }
    return {};
  }

  Result<RunStats> run(std::vector<Request> requests, const std::string& job_digest) {
    if (id.role == Role::kFfn) {
      if (Result<void> met = meet(); !met) {
        return fail(std::move(met).error());
      }
      ModelFfnCompute compute(*ffn, options.afd.compute_gate_on_attention);
      return run_ffn_server(compute, *connector,
                            {.hop_timeout = options.hop_timeout, .views = &views});
    }
    Generation generation(*attention, generation_options(), std::move(requests));
    if (Result<void> met = meet(); !met) {
      return fail(std::move(met).error());
    }
    if (Result<void> same = compare_requests(job_digest); !same) {
      return fail(std::move(same).error());
    }
    Result<RunStats> stats =
        run_attention(*attention, *connector, generation,
                      {.role_rank = id.role_rank,
                       .num_attention_ranks = options.afd.num_attention_ranks,
                       .num_stages_max = options.num_stages,
                       .max_num_tokens = options.max_num_tokens,
                       .gate_on_attention = options.afd.compute_gate_on_attention,
                       .hop_timeout = options.hop_timeout,
                       .drains = &draining,
                       .views = &views},
                      events.generation);
    if (stats) {
      stats->paths = std::move(paths);
    }
    return stats;
  }
};

Rank::Rank(std::unique_ptr<State> state) : state_(std::move(state)) {}

Rank::~Rank() {
  state_->connector->close();
}

Result<std::unique_ptr<Rank>> Rank::create(const JobOptions& options, RankId id,
                                           const ConnectorFactory& factory, RankEvents events) {
  Result<model::Checkpoint> checkpoint = model::Checkpoint::open(options.model_dir);
  if (!checkpoint) {
    return fail(std::move(checkpoint).error());
  }
  auto state = std::make_unique<State>();
  state->options = options;
  state->id = id;
  state->events = std::move(events);
  // First what is cheap: a connector that cannot be made should not wait for the weights.
  ConnectorParams params = connector_params(options, *checkpoint, id.role, id.role_rank);
  // stop() may close the connector just before init opens it: here init hears of it all the same.
  params.on_waiting = [own = state.get()](std::string_view missing) {
    if (own->stopping) {
      own->connector->close();
    } else if (own->events.on_waiting) {
      own->events.on_waiting(missing);
    }
  };
  params.on_listening = [own = state.get()](std::uint16_t port) {
    if (own->events.on_listening) {
      own->events.on_listening(port);
    }
  };
  Result<std::unique_ptr<ConnectorBase>> connector = factory.create_connector(params);
  if (!connector) {
    return fail(std::move(connector).error());
  }
  state->connector = *std::move(connector);
  if (Result<void> loaded = state->load(*checkpoint); !loaded) {
    return fail(std::move(loaded).error());
  }
  return std::unique_ptr<Rank>(new Rank(std::move(state)));
}

Result<RunStats> Rank::run(std::vector<Request> requests, std::string job_digest) {
  Result<RunStats> stats = RunStats{};
  try {
    stats = state_->run(std::move(requests), job_digest);
  } catch (const std::bad_alloc&) {
    stats = fail(ErrorCode::kUnavailable, "out of memory");
  }
  if (!stats && state_->stopping) {
    stats = fail(ErrorCode::kFailedPrecondition, "stopped");
  }
  if (stats) {
    state_->connector->close();
  } else {
    state_->connector->give_up(stats.error().message);
  }
  return stats;
}

void Rank::stop() noexcept {
  state_->stopping = true;
  state_->views.end([this] { state_->connector->give_up("it was stopped"); });
}

bool Rank::drain() noexcept {
  state_->draining = true;
  return state_->has_met;
}

}  // namespace afd::runtime
