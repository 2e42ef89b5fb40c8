#include "runtime/rank_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "base/errno_text.h"
#include "runtime/rank_message.h"
#include "runtime/stop_watcher.h"

namespace afd::runtime {
namespace {

Result<std::string> read_all(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    return fail(ErrorCode::kInvalidArgument, "job descriptor: " + base::errno_text(errno));
  }
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got =
        ::pread(fd, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (got <= 0) {
      return fail(ErrorCode::kInvalidArgument, "job descriptor: " + base::errno_text(errno));
    }
    done += static_cast<std::size_t>(got);
  }
  return text;
}

/// Writes messages; a launcher that is gone is the StopWatcher's business.
class EventWriter {
 public:
  explicit EventWriter(int fd) : fd_(fd) {}

  void send(const RankMessage& message) {
    const std::string line = encode_rank_message(message) + "\n";
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t sent = ::send(fd_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) {
        continue;
      }
      if (sent <= 0) {
        return;
      }
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
  }

 private:
  int fd_;
};

RankEvents rank_events(EventWriter& writer, bool stream_tokens) {
  RankEvents events;
  events.on_waiting = [&writer](std::string_view missing) {
    writer.send(WaitingMessage{std::string(missing)});
  };
  events.on_ready = [&writer](const std::vector<HopPath>&) { writer.send(ReadyMessage{}); };
  if (stream_tokens) {
    events.generation.on_tokens = [&writer](std::span<const TokenEvent> tokens) {
      writer.send(TokensMessage{{tokens.begin(), tokens.end()}});
    };
  }
  events.generation.on_finished = [&writer](Output output) {
    writer.send(FinishedMessage{std::move(output)});
  };
  return events;
}

int run_rank(const ConnectorFactory& factory, RankId id, int job_fd, int event_fd) {
  EventWriter writer(event_fd);
  std::unique_ptr<Rank> rank;
  std::mutex rank_mutex;  // guards `rank` until it is set
  const auto watcher = StopWatcher::start({SIGTERM}, event_fd, [&] {
    const std::lock_guard lock(rank_mutex);
    if (rank == nullptr) {
      ::_exit(1);  // still loading: there is nothing to clean up
    }
    rank->stop();
  });
  if (!watcher) {
    writer.send(FailedMessage{watcher.error()});
    return 1;
  }

  const Result<RunStats> stats = [&]() -> Result<RunStats> {
    Result<std::string> text = read_all(job_fd);
    if (!text) {
      return fail(std::move(text).error());
    }
    Result<RankJob> job = decode_rank_job(*text);
    if (!job) {
      return fail(std::move(job).error());
    }
    Result<std::unique_ptr<Rank>> created =
        Rank::create(job->options, id, factory, rank_events(writer, job->options.stream_tokens));
    if (!created) {
      return fail(std::move(created).error());
    }
    {
      const std::lock_guard lock(rank_mutex);
      rank = *std::move(created);
    }
    return rank->run(std::move(job->requests));
  }();
  if (!stats) {
    writer.send(FailedMessage{stats.error()});
    return 1;
  }
  writer.send(DoneMessage{*stats});
  return 0;
}

}  // namespace

int run_launched_rank(const ConnectorFactory& factory, RankId id, int job_fd, int event_fd) {
  ::signal(SIGINT, SIG_IGN);
  const std::string name =
      (id.role == Role::kAttention ? "afd-attn-" : "afd-ffn-") + std::to_string(id.role_rank);
  ::prctl(PR_SET_NAME, name.c_str());  // "afd-attn-0" in ps and top
  const int exit_status = run_rank(factory, id, job_fd, event_fd);
  // Nothing is left to clean up, so the launcher's end need not wake this process any more; and it
  // must not: SIGCONT cancels the SIGSTOP with which a tracer (LeakSanitizer looks for leaks as a
  // process exits) attaches, and the tracer then waits for ever.
  ::prctl(PR_SET_PDEATHSIG, 0);
  return exit_status;
}

}  // namespace afd::runtime
