// `afd rank`: one rank of a job, for other hosts and orchestrators; also what `afd run` starts.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/job_flags.h"
#include "cli/plugins.h"
#include "cli/run_report.h"
#include "cli/text_output.h"
#include "runtime/rank.h"
#include "runtime/rank_process.h"
#include "runtime/stop_watcher.h"
#include "session/session.h"

namespace afd::cli {
namespace {

constexpr std::string_view kCommand = "rank";
constexpr std::string_view kSecretHint =
    "every rank of a job is given a copy of one file with --secret-file: head -c 32 /dev/urandom | "
    "base64 > FILE; chmod 600 FILE";

struct RankFlags {
  JobFlags common;
  std::uint32_t heartbeat_interval_s = 1;
  std::uint32_t heartbeat_limit_s = 5;
  runtime::RankId id;
  int job_fd = -1;
  int event_fd = -1;
};

struct OwnRequests {
  std::vector<runtime::Request> requests;
  std::string job_digest;  ///< Of all that the attention ranks share out.
};

/// This rank's prompts: every rank of the job is given all of them and takes its share.
Result<OwnRequests> own_requests(const RankFlags& flags, const LoadedModel& loaded) {
  if (flags.id.role == Role::kFfn) {
    return OwnRequests{};
  }
  Result<std::vector<PromptSource>> sources = collect_prompts(flags.common.prompts);
  if (!sources) {
    return fail(std::move(sources).error());
  }
  Result<std::vector<runtime::Request>> all =
      make_requests(*sources, loaded.tokenizer_or_null(), loaded.checkpoint.config());
  if (!all) {
    return fail(std::move(all).error());
  }
  return OwnRequests{.requests = std::move(runtime::deal_requests(
                         *all, flags.common.job.afd.num_attention_ranks)[flags.id.role_rank]),
                     .job_digest = runtime::digest_requests(*all)};
}

void print_outputs(const RankFlags& flags, const LoadedModel& loaded,
                   const std::vector<runtime::Request>& requests, runtime::JobReport job) {
  // Outputs name their request by its number in the job; the report looks it up there.
  std::vector<runtime::Request> by_idx;
  for (const runtime::Request& request : requests) {
    if (by_idx.size() <= request.request_idx) {
      by_idx.resize(request.request_idx + 1);
    }
    by_idx[request.request_idx] = request;
  }
  const runtime::JobOptions& options = flags.common.job;
  RunReport report{.layout = std::to_string(options.afd.num_attention_ranks) + "A" +
                             std::to_string(options.afd.num_ffn_ranks) + "F",
                   .connector = options.afd.connector,
                   .num_stages = options.num_stages,
                   .requests = &by_idx,
                   .tokenizer = loaded.tokenizer_or_null(),
                   .rank = flags.id,
                   .job = std::move(job)};
  if (flags.common.json) {
    print_out(run_report_json(report) + "\n");
    return;
  }
  for (const runtime::Output& output : report.job.outputs) {
    print_out(output_text(report.tokenizer, by_idx[output.request_idx], output, /*numbered=*/true));
  }
}

/// The rank that listens: FFN rank 0.
bool listens(const RankFlags& flags) {
  return flags.id.role == Role::kFfn && flags.id.role_rank == 0;
}

int run_alone(RankFlags& flags) {
  if (Result<void> finished = finish_job_flags(flags.common); !finished) {
    return report_usage(kCommand, finished.error());
  }
  AfdConfig& afd = flags.common.job.afd;
  afd.session.heartbeat_interval = std::chrono::seconds(flags.heartbeat_interval_s);
  afd.session.heartbeat_limit = std::chrono::seconds(flags.heartbeat_limit_s);
  if (Result<void> valid =
          session::validate_meeting(afd.host, afd.port, listens(flags), afd.session);
      !valid) {
    const bool about_secret = valid.error().message.find("secret") != std::string::npos;
    return report_usage(kCommand, valid.error(), about_secret ? kSecretHint : std::string_view());
  }
  const ConnectorFactory factory = known_connectors();
  const runtime::JobOptions& options = flags.common.job;
  if (Result<void> valid = runtime::validate_job(options); !valid) {
    return report_usage(kCommand, valid.error());
  }
  if (Result<void> valid = runtime::validate_connector(options, factory); !valid) {
    return report(kCommand, valid.error());
  }
  // It would wait here for ranks that cannot come.
  if (!(*factory.get_connector_class(options.afd.connector))->capabilities().cross_process) {
    return report_usage(kCommand,
                        {ErrorCode::kInvalidArgument,
                         options.afd.connector + " connects threads of one process only"},
                        "`afd run` runs all ranks as threads with it; P2pAFDConnector connects "
                        "processes");
  }
  const std::uint32_t num_ranks = flags.id.role == Role::kAttention
                                      ? options.afd.num_attention_ranks
                                      : options.afd.num_ffn_ranks;
  if (flags.id.role_rank >= num_ranks) {
    return report_usage(kCommand, {ErrorCode::kInvalidArgument,
                                   "--role-rank is " + std::to_string(flags.id.role_rank) +
                                       ", the job has " + std::to_string(num_ranks) + " " +
                                       std::string(to_string(flags.id.role)) + " ranks"});
  }
  Result<LoadedModel> loaded = load_model(options.model_dir);
  if (!loaded) {
    return report_bad_model(kCommand, options.model_dir, loaded.error());
  }
  Result<OwnRequests> own = own_requests(flags, *loaded);
  if (!own) {
    return report_usage(kCommand, own.error());
  }

  std::unique_ptr<runtime::Rank> rank;
  std::mutex rank_mutex;
  const auto watcher = runtime::StopWatcher::start({SIGINT, SIGTERM}, -1, [&] {
    const std::lock_guard lock(rank_mutex);
    if (rank == nullptr) {
      ::_exit(kExitFailed);
    }
    rank->stop();
  });
  if (!watcher) {
    return report_failure(kCommand, watcher.error());
  }
  runtime::JobReport job;
  runtime::RankEvents events;
  events.on_waiting = [](std::string_view missing) {
    std::fprintf(stderr, "waiting for %.*s\n", static_cast<int>(missing.size()), missing.data());
  };
  events.on_listening = [&](std::uint16_t port) {
    std::fprintf(stderr, "%s: listening at port %u\n", runtime::to_string(flags.id).c_str(), port);
  };
  events.on_ready = [&] {
    std::fprintf(stderr, "%s: all ranks are there\n", runtime::to_string(flags.id).c_str());
  };
  events.generation.on_finished = [&](runtime::Output output) {
    job.outputs.push_back(std::move(output));
  };
  Result<std::unique_ptr<runtime::Rank>> created =
      runtime::Rank::create(options, flags.id, factory, std::move(events));
  if (!created) {
    return report_failure(kCommand, created.error());
  }
  {
    const std::lock_guard lock(rank_mutex);
    rank = *std::move(created);
  }
  Result<runtime::RunStats> stats = rank->run(own->requests, own->job_digest);
  if (!stats) {
    return report_failure(
        kCommand,
        with_cause(runtime::name_rank(std::move(stats).error(), flags.id), loaded->checkpoint));
  }
  (flags.id.role == Role::kAttention ? job.attention : job.ffn) = *std::move(stats);
  std::ranges::sort(job.outputs, {}, &runtime::Output::request_idx);
  print_outputs(flags, *loaded, own->requests, std::move(job));
  return kExitOk;
}

}  // namespace

void add_rank_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand(
      "rank",
      "Be one rank of a job. Start one process a rank, in any order, with the same flags but for "
      "--role and --role-rank; each attention rank takes its share of the prompts, and names each "
      "output's prompt by its number among all");
  auto flags = std::make_shared<RankFlags>();
  add_job_flags(*command, flags->common);
  command
      ->add_option_function<std::string>(
          "--role", [flags](const std::string& text) { flags->id.role = *parse_role(text); },
          "attention or ffn")
      ->required()
      ->check(CLI::IsMember({"attention", "ffn"}));
  command->add_option("--role-rank", flags->id.role_rank, "Which one of its role, from 0")
      ->required();
  command
      ->add_option("--host", flags->common.job.afd.host,
                   "Where ffn rank 0 listens: its address or name, as the other ranks reach it")
      ->capture_default_str();
  command
      ->add_option("--port", flags->common.job.afd.port,
                   "Its port; ffn rank 0 itself may have 0: it takes a free one and prints it")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  SessionConfig& session = flags->common.job.afd.session;
  command->add_option("--bind", session.bind_host,
                      "The address at which ffn rank 0 listens, where that is not --host: 0.0.0.0 "
                      "and :: are all of the host's");
  command
      ->add_option("--address", session.addresses,
                   "Where this rank says that it can be reached; may be repeated (by default the "
                   "local address of its connection to ffn rank 0)")
      ->allow_extra_args(false);
  command->add_option("--secret-file", session.secret_file,
                      "A file with what all ranks of the job know and nobody else: mode 0600, at "
                      "least 16 bytes. Needed beyond loopback");
  command->add_option("--tls-certificate", session.tls_certificate_file,
                      "TLS for the session, with --tls-key and --tls-ca: this rank's certificate "
                      "(PEM)");
  command->add_option("--tls-key", session.tls_key_file, "Its key (PEM)");
  command->add_option("--tls-ca", session.tls_ca_file,
                      "The authority that signed every rank's certificate (PEM)");
  command->add_flag("--insecure", session.insecure,
                    "Meet beyond loopback without a secret: whoever reaches the port can join and "
                    "lie");
  command
      ->add_option("--heartbeat-interval", flags->heartbeat_interval_s,
                   "Seconds between two signs of life of a host")
      ->capture_default_str();
  command
      ->add_option("--heartbeat-limit", flags->heartbeat_limit_s,
                   "Seconds without one after which a host's ranks are lost; three intervals at "
                   "least")
      ->capture_default_str();
  // From `afd run`: the job's descriptor, and the socket for events.
  command->add_option("--job-fd", flags->job_fd)->group("");
  command->add_option("--event-fd", flags->event_fd)->group("");
  command->callback([flags, &exit_status] {
    if (flags->job_fd >= 0 && flags->event_fd >= 0) {
      exit_status =
          runtime::run_launched_rank(known_connectors(), flags->id, flags->job_fd, flags->event_fd);
    } else {
      exit_status = run_alone(*flags);
    }
  });
}

}  // namespace afd::cli
