// `afd run`: all ranks of a job on this machine, or both halves in this process.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>

#include "base/cpu.h"
#include "base/free_port.h"
#include "cli/background_output.h"
#include "cli/commands.h"
#include "cli/exit_status.h"
#include "cli/job_flags.h"
#include "cli/plugins.h"
#include "cli/run_report.h"
#include "cli/text_output.h"
#include "runtime/colocated_job.h"
#include "runtime/launcher.h"
#include "runtime/thread_job.h"

namespace afd::cli {
namespace {

constexpr std::string_view kCommand = "run";
/// How long a failure's message waits for what is to stand above it, and an interrupted run for
/// somebody who reads.
constexpr std::chrono::milliseconds kSlowReader{300};

struct RunFlags {
  JobFlags common;
  bool colocated = false;
  std::uint32_t num_threads = 0;  ///< 0: as many as there are processors.
  std::uint16_t port = 0;         ///< 0: a free one.
  runtime::Placement placement = runtime::Placement::kAuto;
};

void print_line(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fputc('\n', stderr);
}

/// Whether a short message can be written without waiting for a reader.
bool has_room(int fd) {
  pollfd room = {.fd = fd, .events = POLLOUT, .revents = 0};
  return ::poll(&room, 1, 0) == 1;
}

/// A run that has been checked and can begin.
class Run {
 public:
  Run(const RunFlags& flags, const ConnectorFactory& factory, const LoadedModel& loaded,
      std::vector<runtime::Request> requests)
      : flags_(flags),
        job_(flags.common.job),
        factory_(factory),
        loaded_(loaded),
        requests_(std::move(requests)),
        live_(loaded.tokenizer_or_null(), requests_, !flags.common.json, output_) {
    job_.stream_tokens = live_.wants_tokens();
  }

  int operator()() {
    RunReport report{.connector = flags_.colocated ? "" : job_.afd.connector,
                     .num_stages = job_.num_stages,
                     .num_threads = flags_.num_threads,
                     .requests = &requests_,
                     .tokenizer = loaded_.tokenizer_or_null()};
    report.layout = flags_.colocated ? "colocated"
                                     : std::to_string(job_.afd.num_attention_ranks) + "A" +
                                           std::to_string(job_.afd.num_ffn_ranks) + "F";
    Result<runtime::JobReport> job = run();
    live_.end();
    if (!job) {
      return end_failed(with_cause(std::move(job).error(), loaded_.checkpoint));
    }
    output_.drain();
    report.job = *std::move(job);
    tell_paths(flags_.common, report.job.attention.paths);
    if (flags_.common.json) {
      print_out(run_report_json(report) + "\n");
    } else {
      std::fputs(summary_text(report).c_str(), stderr);
    }
    return kExitOk;
  }

 private:
  int end_failed(const Error& error) {
    const bool drained = output_.drain(kSlowReader);
    if (interrupted_by_ != 0) {
      // Whoever wants it to end should not have to find somebody who reads.
      if (drained || has_room(STDERR_FILENO)) {
        report_failure(kCommand, error);
      }
      return kExitSignal + interrupted_by_;
    }
    const int status = report_failure(kCommand, error);
    output_.drain();
    return status;
  }

  runtime::GenerationEvents generation_events() {
    runtime::GenerationEvents events;
    if (live_.wants_tokens()) {
      events.on_tokens = [this](std::span<const runtime::TokenEvent> tokens) {
        live_.on_tokens(tokens);
      };
    }
    events.on_finished = [this](const runtime::Output& output) { live_.on_finished(output); };
    return events;
  }

  Result<runtime::JobReport> run() {
    if (flags_.colocated) {
      return runtime::run_colocated_job(job_, loaded_.checkpoint, flags_.num_threads, requests_,
                                        generation_events());
    }
    const Result<const ConnectorClass*> connector =
        factory_.get_connector_class(job_.afd.connector);
    if (connector && !(*connector)->capabilities().cross_process) {
      if (flags_.port == 0) {
        const Result<std::uint16_t> port = base::find_free_port(job_.afd.host);
        if (!port) {
          return fail(port.error());
        }
        job_.afd.port = *port;
      }
      return runtime::run_thread_job(job_, factory_, requests_, generation_events());
    }
    runtime::LaunchOptions launch{.job = job_};
    launch.choose_port = flags_.port == 0;
    launch.placement = flags_.placement;
    runtime::LaunchEvents events;
    events.generation = generation_events();
    events.on_waiting = [this, last = std::string()](runtime::RankId,
                                                     std::string_view missing) mutable {
      if (last != missing) {  // every rank tells it once a second
        last = missing;
        output_.err("waiting for " + last + "\n");
      }
    };
    events.on_output = [this](runtime::RankId rank, std::string_view line) {
      output_.err("[" + runtime::to_string(rank) + "] " + std::string(line) + "\n");
    };
    events.on_interrupted = [this](int signal) { interrupted_by_ = signal; };
    return runtime::launch_job(launch, requests_, events);
  }

  const RunFlags& flags_;
  runtime::JobOptions job_;
  const ConnectorFactory& factory_;
  const LoadedModel& loaded_;
  const std::vector<runtime::Request> requests_;
  BackgroundOutput output_;
  LiveOutput live_;
  int interrupted_by_ = 0;
};

int run(RunFlags& flags, CLI::App& command) {
  if (Result<void> finished = finish_job_flags(command, flags.common); !finished) {
    return report_usage(kCommand, finished.error());
  }
  flags.common.job.afd.port = flags.port == 0 ? flags.common.job.afd.port : flags.port;
  if (flags.colocated) {
    for (const char* flag : {"--connector", "--attention-ranks", "--ffn-ranks", "--stages"}) {
      if (command.count(flag) > 0) {
        print_line(std::string("note: ") + flag + " has no effect with --colocated");
      }
    }
  }
  const ConnectorFactory factory = known_connectors();
  const runtime::JobOptions& job = flags.common.job;
  if (Result<void> valid = runtime::validate_job(job); !valid) {
    return report_usage(kCommand, valid.error());
  }
  if (!flags.colocated) {
    if (Result<void> valid = runtime::validate_connector(job, factory); !valid) {
      return report(kCommand, valid.error());
    }
  }
  Result<std::vector<PromptSource>> sources = collect_prompts(flags.common.prompts);
  if (!sources) {
    return report_usage(kCommand, sources.error());
  }
  Result<LoadedModel> loaded = load_model(job.model_dir);
  if (!loaded) {
    return report_bad_model(kCommand, job.model_dir, loaded.error());
  }
  if (!flags.colocated) {
    if (Result<void> valid = runtime::validate_connector_limits(job, loaded->checkpoint, factory);
        !valid) {
      return report(kCommand, valid.error());
    }
  }
  Result<std::vector<runtime::Request>> requests =
      make_requests(*sources, loaded->tokenizer_or_null(), loaded->checkpoint.config());
  if (!requests) {
    return report_usage(kCommand, requests.error());
  }
  if (flags.num_threads == 0) {
    flags.num_threads = static_cast<std::uint32_t>(base::allowed_cpus().size());
  }
  return Run(flags, factory, *loaded, *std::move(requests))();
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_status) {
  CLI::App* command =
      app.add_subcommand("run",
                         "Generate text with all ranks on this machine. A single prompt's text is "
                         "printed as it comes, several outputs each as soon as it and those before "
                         "it are finished");
  auto flags = std::make_shared<RunFlags>();
  add_job_flags(*command, flags->common);
  command->add_flag("--colocated", flags->colocated,
                    "Attention and FFN in this process, without a connector");
  command
      ->add_option("--threads", flags->num_threads,
                   "Threads of a colocated run (default: as many as processors)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--port", flags->port, "Port at which the ranks meet (default: a free one)")
      ->check(CLI::Range(1, 65535));
  command
      ->add_option(
          "--placement", flags->placement,
          "Where ranks run: anywhere, or auto: with more than two ranks to a processor, each "
          "subgroup on one, if every processor then gets the same work: jobs side by side load "
          "all of them alike")
      ->transform(CLI::CheckedTransformer(std::map<std::string, runtime::Placement>{
          {"anywhere", runtime::Placement::kAnywhere}, {"auto", runtime::Placement::kAuto}}))
      ->option_text("anywhere|auto=auto");
  command->callback([flags, command, &exit_status] { exit_status = run(*flags, *command); });
}

}  // namespace afd::cli
