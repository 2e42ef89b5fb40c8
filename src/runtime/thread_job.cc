#include "runtime/thread_job.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "runtime/rank.h"

namespace afd::runtime {
namespace {

/// What the ranks' threads share.
struct Shared {
  std::mutex mutex;
  const GenerationEvents* events = nullptr;
  std::vector<Output> outputs;
  JobReport report;
  std::optional<Error> first_error;
};

GenerationEvents locked_events(Shared& shared) {
  GenerationEvents events;
  if (shared.events->on_tokens) {
    events.on_tokens = [&shared](std::span<const TokenEvent> tokens) {
      const std::lock_guard lock(shared.mutex);
      shared.events->on_tokens(tokens);
    };
  }
  events.on_finished = [&shared](Output output) {
    const std::lock_guard lock(shared.mutex);
    if (shared.events->on_finished) {
      shared.events->on_finished(output);
    }
    shared.report.outputs.push_back(std::move(output));
  };
  return events;
}

}  // namespace

Result<JobReport> run_thread_job(const JobOptions& options, const ConnectorFactory& factory,
                                 std::span<const Request> requests,
                                 const GenerationEvents& events) {
  Shared shared;
  shared.events = &events;
  std::vector<RankId> ids;
  for (std::uint32_t rank = 0; rank < options.afd.num_ffn_ranks; ++rank) {
    ids.push_back({Role::kFfn, rank});
  }
  for (std::uint32_t rank = 0; rank < options.afd.num_attention_ranks; ++rank) {
    ids.push_back({Role::kAttention, rank});
  }
  std::vector<std::unique_ptr<Rank>> ranks;
  for (const RankId id : ids) {
    Result<std::unique_ptr<Rank>> rank =
        Rank::create(options, id, factory, {.generation = locked_events(shared)});
    if (!rank) {
      return fail(name_rank(std::move(rank).error(), id));
    }
    ranks.push_back(*std::move(rank));
  }
  std::vector<std::vector<Request>> dealt =
      deal_requests(requests, options.afd.num_attention_ranks);
  std::vector<std::thread> threads;
  for (std::size_t idx = 0; idx < ranks.size(); ++idx) {
    std::vector<Request> own;
    if (ids[idx].role == Role::kAttention) {
      own = std::move(dealt[ids[idx].role_rank]);
    }
    const auto run_rank = [&, idx](std::vector<Request> work) {
      Result<RunStats> stats = ranks[idx]->run(std::move(work));
      const std::lock_guard lock(shared.mutex);
      if (stats) {
        (ids[idx].role == Role::kAttention ? shared.report.attention : shared.report.ffn)
            .merge(*stats);
      } else if (!shared.first_error) {
        shared.first_error = name_rank(std::move(stats).error(), ids[idx]);
        for (const std::unique_ptr<Rank>& rank : ranks) {
          rank->stop();
        }
      }
    };
    Result<std::thread> started = base::start_thread(
        [run_rank, own = std::move(own)]() mutable { run_rank(std::move(own)); });
    if (started) {
      threads.push_back(*std::move(started));
    } else {
      const std::lock_guard lock(shared.mutex);
      if (!shared.first_error) {
        shared.first_error =
            std::move(started).error().with_context("start a thread for every rank");
      }
      for (const std::unique_ptr<Rank>& rank : ranks) {
        rank->stop();
      }
      break;
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (shared.first_error) {
    return fail(*std::move(shared.first_error));
  }
  std::ranges::sort(shared.report.outputs, {}, &Output::request_idx);
  return std::move(shared.report);
}

}  // namespace afd::runtime
