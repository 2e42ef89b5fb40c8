// `afd rank`: one rank of a job, for other hosts and orchestrators; also what `afd run` starts.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/flags_file.h"
#include "cli/job_flags.h"
#include "cli/plugins.h"
#include "cli/ready_file.h"
#include "cli/run_report.h"
#include "cli/text_output.h"
#include "runtime/rank.h"
#include "runtime/rank_process.h"
#include "runtime/stop_watcher.h"
#include "session/session.h"

namespace afd::cli {
namespace {

constexpr std::string_view kCommand = "rank";
constexpr double kDrainSecondsMax = 1e6;
constexpr std::string_view kSecretHint =
    "every rank of a job is given a copy of one file with --secret-file: head -c 32 /dev/urandom | "
    "base64 > FILE; chmod 600 FILE";

struct RankFlags {
  JobFlags common;
  std::string ready_file;
  double drain_timeout_s = 25.0;
  std::uint32_t heartbeat_interval_s = 1;
  std::uint32_t heartbeat_limit_s = 5;
  std::optional<Role> role;
  std::optional<std::uint32_t> role_rank;
  runtime::RankId id;  ///< Of both.
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

std::string layout_of(const RankFlags& flags) {
  return std::to_string(flags.common.job.afd.num_attention_ranks) + "A" +
         std::to_string(flags.common.job.afd.num_ffn_ranks) + "F";
}

/// What the ready file has in it.
std::string ready_json(const RankFlags& flags, const std::vector<runtime::HopPath>& paths) {
  nlohmann::ordered_json json = {{"role", to_string(flags.id.role)},
                                 {"role_rank", flags.id.role_rank},
                                 {"layout", layout_of(flags)},
                                 {"pid", ::getpid()},
                                 {"paths", nlohmann::ordered_json::array()}};
  for (const runtime::HopPath& path : paths) {
    json["paths"].push_back({{"attention_rank", path.attention_rank},
                             {"ffn_rank", path.ffn_rank},
                             {"path", path.path}});
  }
  return json.dump() + "\n";
}

/// The flags together: what each of them may be, CLI11 has checked.
Result<void> finish_flags(CLI::App& command, RankFlags& flags) {
  if (Result<void> finished = finish_job_flags(command, flags.common); !finished) {
    return finished;
  }
  if (!flags.role || !flags.role_rank) {
    return fail(ErrorCode::kInvalidArgument,
                std::string(flags.role ? "--role-rank" : "--role") +
                    " is required: on the command line, in the environment (AFD_ROLE, "
                    "AFD_ROLE_RANK) or in the file of --config");
  }
  flags.id = {*flags.role, *flags.role_rank};
  if (!(flags.drain_timeout_s >= 0.0) || flags.drain_timeout_s > kDrainSecondsMax) {
    return fail(
        ErrorCode::kInvalidArgument,
        "--drain-timeout is " + std::to_string(flags.drain_timeout_s) + " s, expected 0 to 1e6");
  }
  AfdConfig& afd = flags.common.job.afd;
  afd.session.heartbeat_interval = std::chrono::seconds(flags.heartbeat_interval_s);
  afd.session.heartbeat_limit = std::chrono::seconds(flags.heartbeat_limit_s);
  const std::uint32_t num_ranks =
      flags.id.role == Role::kAttention ? afd.num_attention_ranks : afd.num_ffn_ranks;
  if (flags.id.role_rank >= num_ranks) {
    return fail(ErrorCode::kInvalidArgument,
                "--role-rank is " + std::to_string(flags.id.role_rank) + ", the job has " +
                    std::to_string(num_ranks) + " " + std::string(to_string(flags.id.role)) +
                    " ranks");
  }
  return {};
}

/// One rank's life: it waits for the others, serves and ends, in order where it is asked to.
class RankLife {
 public:
  RankLife(const RankFlags& flags, const LoadedModel& loaded, OwnRequests own)
      : flags_(flags), loaded_(loaded), own_(std::move(own)), ready_file_(flags.ready_file) {}

  int operator()(const ConnectorFactory& factory) {
    if (Result<void> prepared = ready_file_.prepare(); !prepared) {
      return report_usage(kCommand, prepared.error());
    }
    const auto watcher = runtime::StopWatcher::start(
        {SIGINT, SIGTERM}, -1, [this] { stop(); },
        runtime::StopWatcher::Drain{
            .signal = SIGTERM,
            .limit = std::chrono::milliseconds(std::llround(flags_.drain_timeout_s * 1000.0)),
            .on_drain = [this] { return drain(); }});
    if (!watcher) {
      return report_failure(kCommand, watcher.error());
    }
    Result<std::unique_ptr<runtime::Rank>> created =
        runtime::Rank::create(flags_.common.job, flags_.id, factory, events());
    if (!created) {
      return report_failure(kCommand, created.error());
    }
    {
      const std::lock_guard lock(mutex_);
      rank_ = *std::move(created);
    }
    Result<runtime::RunStats> stats = rank_->run(own_.requests, own_.job_digest);
    ready_file_.remove();
    return stats ? end(*std::move(stats)) : end_failed(std::move(stats).error(), **watcher);
  }

 private:
  runtime::RankEvents events() {
    runtime::RankEvents events;
    events.on_waiting = [](std::string_view missing) {
      std::fprintf(stderr, "waiting for %.*s\n", static_cast<int>(missing.size()), missing.data());
    };
    events.on_listening = [this](std::uint16_t port) {
      std::fprintf(stderr, "%s: listening at port %u\n", name().c_str(), port);
    };
    events.on_ready = [this](const std::vector<runtime::HopPath>& paths) {
      std::fprintf(stderr, "%s: all ranks are there\n", name().c_str());
      tell_paths(flags_.common, paths);
      if (Result<void> written = ready_file_.write(ready_json(flags_, paths)); !written) {
        std::fprintf(stderr, "%s: %s\n", name().c_str(), written.error().message.c_str());
      }
      if (!flags_.common.json) {
        std::printf("ready: %s of %s\n", name().c_str(), layout_of(flags_).c_str());
        std::fflush(stdout);
        std::clearerr(stdout);  // Who closed stdout wants no such line, and is no reason to fail.
      }
    };
    events.generation.on_finished = [this](runtime::Output output) {
      job_.outputs.push_back(std::move(output));
    };
    return events;
  }

  /// On the watcher's threads. A rank that is loading has nothing to clean up.
  bool drain() {
    ready_file_.remove();
    const std::lock_guard lock(mutex_);
    if (rank_ == nullptr) {
      ::_exit(kExitOk);
    }
    return rank_->drain();
  }
  void stop() {
    ready_file_.remove();
    const std::lock_guard lock(mutex_);
    if (rank_ == nullptr) {
      ::_exit(kExitFailed);
    }
    rank_->stop();
  }

  int end(runtime::RunStats stats) {
    (flags_.id.role == Role::kAttention ? job_.attention : job_.ffn) = std::move(stats);
    std::ranges::sort(job_.outputs, {}, &runtime::Output::request_idx);
    if (job_.attention.num_unserved_prompts > 0) {
      std::fprintf(stderr, "%s: drained, %llu of its prompts were not begun\n", name().c_str(),
                   static_cast<unsigned long long>(job_.attention.num_unserved_prompts));
    }
    print_outputs(flags_, loaded_, own_.requests, std::move(job_));
    return kExitOk;
  }

  int end_failed(Error error, const runtime::StopWatcher& watcher) {
    const int stopped_by = watcher.stopped_by();
    if (stopped_by == runtime::StopWatcher::kNothingToDrain) {
      std::fprintf(stderr, "%s: stopped before all ranks had met\n", name().c_str());
      return kExitOk;
    }
    if (stopped_by == runtime::StopWatcher::kDrainTooLong) {
      return report_failure(
          kCommand,
          {ErrorCode::kFailedPrecondition, name() +
                                               " was told to stop, and its job did not end in " +
                                               duration_text(flags_.drain_timeout_s)},
          "SIGTERM has to reach the attention ranks: they end the job; --drain-timeout sets the "
          "limit");
    }
    const bool refused = error.code == ErrorCode::kInvalidArgument;
    const int status = report_failure(
        kCommand, with_cause(runtime::name_rank(std::move(error), flags_.id), loaded_.checkpoint));
    if (stopped_by > 0) {
      return kExitSignal + stopped_by;
    }
    return refused ? kExitRefused : status;
  }

  static std::string duration_text(double seconds) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%g s", seconds);
    return text.data();
  }
  std::string name() const { return runtime::to_string(flags_.id); }

  const RankFlags& flags_;
  const LoadedModel& loaded_;
  const OwnRequests own_;
  ReadyFile ready_file_;
  runtime::JobReport job_;
  std::mutex mutex_;  ///< Guards rank_ until it is set.
  std::unique_ptr<runtime::Rank> rank_;
};

int run_alone(CLI::App& command, RankFlags& flags) {
  if (Result<void> finished = finish_flags(command, flags); !finished) {
    return report_usage(kCommand, finished.error());
  }
  const AfdConfig& afd = flags.common.job.afd;
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
  if (Result<std::string> extra =
          factory.parse_connector_extra_info(afd.connector, afd.connector_extra_config);
      !extra) {
    return report(kCommand, extra.error());
  }
  // It would wait here for ranks that cannot come.
  if (!(*factory.get_connector_class(options.afd.connector))->capabilities().cross_process) {
    return report_usage(kCommand,
                        {ErrorCode::kInvalidArgument,
                         options.afd.connector + " connects threads of one process only"},
                        "`afd run` runs all ranks as threads with it; P2pAFDConnector connects "
                        "processes");
  }
  Result<LoadedModel> loaded = load_model(options.model_dir);
  if (!loaded) {
    return report_bad_model(kCommand, options.model_dir, loaded.error());
  }
  Result<OwnRequests> own = own_requests(flags, *loaded);
  if (!own) {
    return report_usage(kCommand, own.error());
  }
  return RankLife(flags, *loaded, *std::move(own))(factory);
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
          "--role", [flags](const std::string& text) { flags->role = *parse_role(text); },
          "attention or ffn")
      ->envname("AFD_ROLE")
      ->check(CLI::IsMember({"attention", "ffn"}));
  command->add_option("--role-rank", flags->role_rank, "Which one of its role, from 0")
      ->envname("AFD_ROLE_RANK");
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
  command
      ->add_option("--secret-file", session.secret_file,
                   "A file with what all ranks of the job know and nobody else: mode 0600, at "
                   "least 16 bytes. Needed beyond loopback")
      ->type_name(kPathType);
  command
      ->add_option("--tls-certificate", session.tls_certificate_file,
                   "TLS for the session, with --tls-key and --tls-ca: this rank's certificate "
                   "(PEM)")
      ->type_name(kPathType);
  command->add_option("--tls-key", session.tls_key_file, "Its key (PEM)")->type_name(kPathType);
  command
      ->add_option("--tls-ca", session.tls_ca_file,
                   "The authority that signed every rank's certificate (PEM)")
      ->type_name(kPathType);
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
  command
      ->add_option("--ready-file", flags->ready_file,
                   "Made when all ranks have met, removed when this one begins to end: for probes. "
                   "Without --json stdout says so as well: ready: ffn rank 0 of 2A1F")
      ->type_name(kPathType);
  command
      ->add_option("--drain-timeout", flags->drain_timeout_s,
                   "Seconds that the job may take to end in order after SIGTERM: no rank takes on "
                   "more prompts, those under way are finished. A second signal, or 0: at once")
      ->capture_default_str();
  command->footer(kExitStatuses);
  // From `afd run`: the job's descriptor, and the socket for events.
  command->add_option("--job-fd", flags->job_fd)->group("");
  command->add_option("--event-fd", flags->event_fd)->group("");
  command->callback([flags, command, &exit_status] {
    if (flags->job_fd >= 0 && flags->event_fd >= 0) {
      exit_status = runtime::run_launched_rank(
          known_connectors(), {*flags->role, *flags->role_rank}, flags->job_fd, flags->event_fd);
    } else {
      exit_status = run_alone(*command, *flags);
    }
  });
}

}  // namespace afd::cli
