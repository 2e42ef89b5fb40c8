#include "runtime/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/cpu.h"
#include "base/errno_text.h"
#include "base/free_port.h"
#include "base/shared_segment.h"
#include "runtime/child_process.h"
#include "runtime/line_buffer.h"
#include "runtime/placement.h"
#include "runtime/rank_message.h"

namespace afd::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// After the first failure: how long the others may take to find out and clean up by themselves,
/// and how long after that they may take to obey SIGTERM.
constexpr milliseconds kGrace{700};
constexpr milliseconds kTermGrace{600};
/// Port races: another program took the port between our choice and the rank's bind.
constexpr int kPortAttempts = 3;
constexpr std::size_t kEventLineBytesMax = std::size_t{64} << 20;
constexpr std::size_t kOutputLineBytesMax = 4096;

struct RankState {
  RankState(RankId rank_id, ChildProcess started, base::Fd event_socket)
      : id(rank_id), process(std::move(started)), events(std::move(event_socket)) {}

  RankId id;
  ChildProcess process;
  base::Fd events;
  LineBuffer event_lines{kEventLineBytesMax};
  LineBuffer output_lines{kOutputLineBytesMax};
  std::set<std::uint32_t> unfinished;  ///< Its requests of which no output came yet.
  bool output_ended = false;
  bool ready = false;
  bool told_to_end = false;
  std::optional<Clock::time_point> stopped_since;
  std::optional<ExitStatus> exit;
  std::optional<Error> error;  ///< As it reported, or what was wrong with its report.
  bool done = false;           ///< Reported success.
  bool died = false;           ///< Ended without a report before anybody told it to.
};

/// Blocks SIGINT, SIGTERM and SIGCHLD and makes them readable, for the object's life.
class SignalReader {
 public:
  SignalReader() {
    // A caller that ignores SIGCHLD hands that on: children would then leave neither a signal nor a
    // status.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &child_action_before_);
    sigset_t set;
    ::sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) {
      ::sigaddset(&set, signal);
    }
    ::sigprocmask(SIG_BLOCK, &set, &before_);
    fd_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalReader() {
    ::sigaction(SIGCHLD, &child_action_before_, nullptr);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  int fd() const { return fd_.get(); }

  /// The next pending signal, or 0.
  int take() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo)
                                                                  : 0;
  }

 private:
  struct sigaction child_action_before_ = {};
  sigset_t before_;
  base::Fd fd_;
};

/// This program's own path where `program` says so: processes then carry its name, not "exe".
std::string resolved(const std::string& program) {
  char path[4096];
  const ssize_t length =
      program == "/proc/self/exe" ? ::readlink(program.c_str(), path, sizeof(path)) : -1;
  const std::string found(path, length > 0 ? static_cast<std::size_t>(length) : 0);
  // Replaced or removed since it was started: the link still opens it.
  return ::access(found.c_str(), X_OK) == 0 ? found : program;
}

/// Memory that a child can read from its start: no pipe that could fill up.
Result<base::Fd> memory_file(const std::string& text) {
  base::Fd fd(::memfd_create("afd-job", MFD_CLOEXEC));
  std::size_t done = 0;
  while (fd && done < text.size()) {
    const ssize_t wrote = ::write(fd.get(), text.data() + done, text.size() - done);
    if (wrote <= 0) {
      fd.reset();
      break;
    }
    done += static_cast<std::size_t>(wrote);
  }
  if (!fd) {
    return fail(ErrorCode::kUnavailable, "memfd: " + base::errno_text(errno));
  }
  return fd;
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, const LaunchEvents& events)
      : options_(options), events_(events) {}

  ~Launcher() {
    std::vector<pid_t> pids;
    for (const auto& rank : ranks_) {
      pids.push_back(rank->process.pid());
    }
    ranks_.clear();  // kills and reaps what still runs
    for (const pid_t pid : pids) {
      base::sweep_segments(pid);
    }
  }

  Result<JobReport> run(std::span<const Request> requests) {
    if (Result<void> started = start(requests); !started) {
      return fail(std::move(started).error());
    }
    while (!all_ended()) {
      wait_and_handle();
    }
    if (std::optional<Error> error = cause()) {
      return fail(*std::move(error));
    }
    std::ranges::sort(report_.outputs, {}, &Output::request_idx);
    if (report_.outputs.size() != requests.size()) {
      return fail(ErrorCode::kInternal, std::to_string(report_.outputs.size()) +
                                            " outputs came for " + std::to_string(requests.size()) +
                                            " prompts");
    }
    return std::move(report_);
  }

  /// Somebody else took the port before the job began, whatever else went wrong then.
  bool lost_the_port() const {
    return options_.choose_port && interrupted_by_ == 0 && !began() &&
           std::ranges::any_of(failures_, [](const RankState* rank) {
             return rank->error && rank->error->code == ErrorCode::kInvalidArgument &&
                    rank->error->message.find("in use") != std::string::npos;
           });
  }

 private:
  Result<void> start(std::span<const Request> requests) {
    const AfdConfig& afd = options_.job.afd;
    std::vector<RankId> ids;
    for (std::uint32_t rank = 0; rank < afd.num_ffn_ranks; ++rank) {
      ids.push_back({Role::kFfn, rank});
    }
    for (std::uint32_t rank = 0; rank < afd.num_attention_ranks; ++rank) {
      ids.push_back({Role::kAttention, rank});
    }
    std::vector<std::vector<Request>> dealt = deal_requests(requests, afd.num_attention_ranks);
    for (const RankId id : ids) {
      RankJob job{.options = options_.job, .requests = {}};
      if (id.role == Role::kAttention) {
        job.requests = std::move(dealt[id.role_rank]);
      }
      if (Result<void> started = start_rank(id, job); !started) {
        return fail(name_rank(std::move(started).error(), id));
      }
    }
    return {};
  }

  Result<void> start_rank(RankId id, const RankJob& job) {
    Result<base::Fd> job_fd = memory_file(encode_rank_job(job));
    if (!job_fd) {
      return fail(std::move(job_fd).error());
    }
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      return fail(ErrorCode::kUnavailable, "socketpair: " + base::errno_text(errno));
    }
    base::Fd own(ends[0]);
    const base::Fd theirs(ends[1]);
    ::fcntl(own.get(), F_SETFL, O_NONBLOCK);
    const RankCounts counts{.num_attention_ranks = job.options.afd.num_attention_ranks,
                            .num_ffn_ranks = job.options.afd.num_ffn_ranks};
    Result<ChildProcess> process = ChildProcess::start(
        {.program = resolved(options_.program),
         .args = {"afd", "rank", "--role", std::string(afd::to_string(id.role)), "--role-rank",
                  std::to_string(id.role_rank), "--job-fd", "3", "--event-fd", "4"},
         .inherited_fds = {job_fd->get(), theirs.get()},
         .cpus = processors_of(id, counts, options_.placement, base::allowed_cpus())});
    if (!process) {
      return fail(std::move(process).error());
    }
    ranks_.push_back(std::make_unique<RankState>(id, *std::move(process), std::move(own)));
    for (const Request& request : job.requests) {
      ranks_.back()->unfinished.insert(request.request_idx);
    }
    return {};
  }

  /// All ranks have met.
  bool began() const {
    return std::ranges::any_of(ranks_, [](const auto& rank) { return rank->ready; });
  }

  /// For how long a rank may stand still.
  milliseconds patience() const {
    return began() ? options_.job.hop_timeout : options_.job.init_timeout;
  }

  bool all_ended() const {
    return std::ranges::all_of(ranks_, [](const auto& rank) { return rank->exit.has_value(); });
  }

  void wait_and_handle() {
    std::vector<pollfd> fds = {{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    for (const auto& rank : ranks_) {
      fds.push_back({.fd = rank->events.get(), .events = POLLIN, .revents = 0});
      // A pipe at its end is readable for ever.
      const int output = rank->output_ended ? -1 : rank->process.output();
      fds.push_back({.fd = output, .events = POLLIN, .revents = 0});
    }
    int timeout_ms = -1;
    if (const std::optional<Clock::time_point> next = next_time()) {
      const auto left = std::chrono::ceil<milliseconds>(*next - Clock::now());
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
    }
    ::poll(fds.data(), fds.size(), timeout_ms);
    while (const int signal = signals_.take()) {
      if (signal != SIGCHLD) {
        interrupt(signal);
      } else {
        note_stopped();
      }
    }
    judge_stopped();
    for (const auto& rank : ranks_) {
      // The status first: what it wrote before it ended is then there to be read.
      const std::optional<ExitStatus> exit = rank->exit ? rank->exit : rank->process.poll();
      drain(*rank);
      if (exit && !rank->exit) {
        rank->exit = exit;
        ended(*rank);
      }
    }
    if (next_signal_at_ && Clock::now() >= *next_signal_at_) {
      escalate();
    }
  }

  /// When something has to be done though nothing happens.
  std::optional<Clock::time_point> next_time() const {
    std::optional<Clock::time_point> next = next_signal_at_;
    for (const auto& rank : ranks_) {
      if (rank->stopped_since && !rank->error) {
        const Clock::time_point until = *rank->stopped_since + patience();
        next = next ? std::min(*next, until) : until;
      }
    }
    return next;
  }

  /// The kernel says when a child stops or goes on, not which one.
  void note_stopped() {
    for (const auto& rank : ranks_) {
      if (rank->exit || !rank->process.is_stopped()) {
        rank->stopped_since.reset();
      } else if (!rank->stopped_since) {
        rank->stopped_since = Clock::now();
      }
    }
  }

  /// A rank that stands still between two steps keeps ranks waiting that wait for a next step
  /// without a deadline: nobody else would ever say so.
  void judge_stopped() {
    for (const auto& rank : ranks_) {
      if (rank->stopped_since && !rank->error &&
          Clock::now() >= *rank->stopped_since + patience()) {
        rank_failed(*rank, {ErrorCode::kDeadlineExceeded,
                            "it stood still for " + std::to_string(patience().count()) + " ms"});
      }
    }
  }

  void drain(RankState& rank) {
    read_lines(rank.events, rank.event_lines,
               [&](std::string_view line) { handle_event(rank, line); });
    if (!rank.output_ended) {
      rank.output_ended =
          !read_available(rank.process.output(), rank.output_lines, [&](std::string_view line) {
            if (events_.on_output) {
              events_.on_output(rank.id, line);
            }
          });
    }
  }

  /// Reads what is there and closes the descriptor at its end.
  template <typename Handler>
  void read_lines(base::Fd& fd, LineBuffer& lines, Handler handler) {
    if (fd && !read_available(fd.get(), lines, handler)) {
      fd.reset();
    }
  }

  /// @return false at the stream's end
  template <typename Handler>
  bool read_available(int fd, LineBuffer& lines, Handler handler) {
    char buffer[16384];
    for (;;) {
      const ssize_t got = ::read(fd, buffer, sizeof(buffer));
      if (got > 0) {
        lines.append({buffer, static_cast<std::size_t>(got)}, handler);
      } else if (got == 0) {
        lines.finish(handler);
        return false;
      } else if (errno != EINTR) {
        return errno == EAGAIN;
      }
    }
  }

  void handle_event(RankState& rank, std::string_view line) {
    Result<RankMessage> message = decode_rank_message(line);
    if (!message) {
      rank_failed(rank, std::move(message).error());
      return;
    }
    std::visit([&](auto& alternative) { handle(rank, alternative); }, *message);
  }

  void handle(RankState& rank, const WaitingMessage& message) {
    if (events_.on_waiting) {
      events_.on_waiting(rank.id, message.missing);
    }
  }
  void handle(RankState& rank, const ReadyMessage&) {
    rank.ready = true;
    if (events_.on_ready &&
        std::ranges::all_of(ranks_, [](const auto& each) { return each->ready; })) {
      events_.on_ready();
    }
  }
  void handle(RankState&, const TokensMessage& message) {
    if (events_.generation.on_tokens) {
      events_.generation.on_tokens(message.tokens);
    }
  }
  void handle(RankState& rank, const FinishedMessage& message) {
    if (rank.unfinished.erase(message.output.request_idx) == 0) {
      rank_failed(rank, {ErrorCode::kInternal,
                         "output " + std::to_string(message.output.request_idx) +
                             " came twice or from a rank that was not given its prompt"});
      return;
    }
    if (events_.generation.on_finished) {
      events_.generation.on_finished(message.output);
    }
    report_.outputs.push_back(message.output);
  }
  void handle(RankState& rank, const DoneMessage& message) {
    rank.done = true;
    (rank.id.role == Role::kAttention ? report_.attention : report_.ffn).merge(message.stats);
  }
  void handle(RankState& rank, const FailedMessage& message) { rank_failed(rank, message.error); }

  void rank_failed(RankState& rank, Error error) {
    // Those that waited in vain need not have waited for the one that is to blame: whoever stands
    // still, the system knows.
    if (error.code == ErrorCode::kDeadlineExceeded && stopped_.empty()) {
      for (const auto& each : ranks_) {
        if (each->process.is_stopped()) {
          stopped_ += (stopped_.empty() ? "" : ", ") + to_string(each->id);
        }
      }
    }
    if (!rank.error) {
      rank.error = std::move(error);
      failures_.push_back(&rank);
    }
    begin_ending(kGrace);
  }

  void ended(RankState& rank) {
    if (rank.exit->ok() && rank.done) {
      return;
    }
    if (!rank.error && !rank.told_to_end) {
      rank.died = true;
      failures_.push_back(&rank);
    }
    begin_ending(kGrace);
  }

  void interrupt(int signal) {
    if (interrupted_by_ == 0) {
      interrupted_by_ = signal;
      if (events_.on_interrupted) {
        events_.on_interrupted(signal);
      }
      begin_ending(milliseconds(0));
    }
  }

  void begin_ending(milliseconds grace) {
    if (!next_signal_at_ || Clock::now() + grace < *next_signal_at_) {
      next_signal_at_ = Clock::now() + grace;
    }
  }

  void escalate() {
    const int signal = term_sent_ ? SIGKILL : SIGTERM;
    for (const auto& rank : ranks_) {
      rank->told_to_end = true;
      rank->process.send_signal(signal);
    }
    term_sent_ = true;
    next_signal_at_ = Clock::now() + kTermGrace;
  }

  std::optional<Error> cause() const {
    if (interrupted_by_ != 0) {
      return Error{ErrorCode::kFailedPrecondition,
                   "interrupted by " + signal_text(interrupted_by_)};
    }
    for (const RankState* rank : failures_) {
      if (rank->died) {
        return Error{ErrorCode::kPeerLost,
                     to_string(rank->id) + " died: " + to_string(*rank->exit)};
      }
    }
    // Those that were stopped, waited in vain or lost others saw what others did: they come last.
    const auto weight = [](const RankState* rank) {
      switch (rank->error->code) {
        case ErrorCode::kPeerLost:
          return 2;
        case ErrorCode::kFailedPrecondition:
        case ErrorCode::kDeadlineExceeded:
          return 1;
        default:
          return 0;
      }
    };
    const auto first = std::ranges::min_element(failures_, {}, weight);
    if (first == failures_.end()) {
      return std::nullopt;
    }
    Error error = name_rank(*(*first)->error, (*first)->id);
    if (error.code == ErrorCode::kDeadlineExceeded && !stopped_.empty()) {
      error.message = stopped_ + " is stopped (SIGSTOP, or a debugger); " + error.message;
    }
    return error;
  }

  const LaunchOptions& options_;
  const LaunchEvents& events_;
  SignalReader signals_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::vector<RankState*> failures_;  ///< In the order in which they became known.
  std::string stopped_;  ///< Names of ranks that stood still when another had waited in vain.
  JobReport report_;
  int interrupted_by_ = 0;
  std::optional<Clock::time_point> next_signal_at_;
  bool term_sent_ = false;
};

}  // namespace

Result<JobReport> launch_job(const LaunchOptions& options, std::span<const Request> requests,
                             const LaunchEvents& events) {
  LaunchOptions chosen = options;
  for (int attempt = 1;; ++attempt) {
    if (options.choose_port) {
      Result<std::uint16_t> port = base::find_free_port(options.job.afd.host);
      if (!port) {
        return fail(std::move(port).error());
      }
      chosen.job.afd.port = *port;
    }
    Launcher launcher(chosen, events);
    Result<JobReport> report = launcher.run(requests);
    if (report || attempt == kPortAttempts || !launcher.lost_the_port()) {
      return report;
    }
  }
}

}  // namespace afd::runtime
