#include "conformance/harness.h"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <new>
#include <thread>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace afd::conformance {
namespace {

/// What whoever starts ranks does after one was killed while its segment still had a name: the
/// built-in connectors' names carry their creator ("afd-<pid>-").
void remove_left_segments(pid_t creator) {
  const std::string prefix = "afd-" + std::to_string(creator) + "-";
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", ignored)) {
    if (entry.path().filename().string().starts_with(prefix)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
}

using Clock = Board::Clock;

/// A whole job may take this long: many calls in a row, each within the patience.
std::chrono::milliseconds job_time_max(const ConnectorUnderTest& connector) {
  return 6 * connector.patience + std::chrono::seconds(20);
}

std::string short_name(const char* file) {
  const char* slash = std::strrchr(file, '/');
  return slash == nullptr ? file : slash + 1;
}

std::string rank_name(Role role, std::uint32_t role_rank) {
  return std::string(to_string(role)) + " rank " + std::to_string(role_rank);
}

/// The board in memory that survives fork().
class SharedBoard {
 public:
  SharedBoard() {
    memory_ =
        mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      std::perror("mmap of the board");
      std::abort();
    }
    board_ = new (memory_) Board();
  }
  ~SharedBoard() { munmap(memory_, sizeof(Board)); }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  Board& operator*() { return *board_; }

 private:
  void* memory_ = nullptr;
  Board* board_ = nullptr;
};

bool can_listen(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    return false;
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return bound;
}

}  // namespace

TransferLimits small_limits() {
  return {.hidden_size = 12,
          .num_layers = 64,
          .num_experts = 5,
          .top_k = 0,
          .max_num_tokens = 8,
          .num_stages = 2,
          .dtype = kFloat32};
}

std::uint16_t unused_port() {
  constexpr std::uint32_t kFirst = 10'000;
  constexpr std::uint32_t kCount = 20'000;  // up to 29999: the kernel hands out 32768 and above
  static std::uint32_t next =
      static_cast<std::uint32_t>(monotonic_ns() / 1000 + static_cast<std::uint64_t>(getpid()) * 97);
  for (std::uint32_t tries = 0; tries < kCount; ++tries) {
    const auto port = static_cast<std::uint16_t>(kFirst + next++ % kCount);
    if (can_listen(port)) {
      return port;
    }
  }
  std::fprintf(stderr, "no port is free in %u..%u\n", kFirst, kFirst + kCount - 1);
  std::abort();
}

std::uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// --- Rank ------------------------------------------------------------------------------------

Rank::Rank(const ConnectorUnderTest& under_test, const JobSpec& spec, Mode mode, std::uint16_t port,
           std::uint32_t world_rank, Board& board, Record record)
    : under_test_(under_test), spec_(spec), mode_(mode), board_(board), record_(std::move(record)) {
  const bool is_ffn = world_rank < spec.counts.num_ffn_ranks;
  mapping_ = *build_rank_mapping(spec.counts.num_attention_ranks, spec.counts.num_ffn_ranks,
                                 is_ffn ? Role::kFfn : Role::kAttention,
                                 is_ffn ? world_rank : world_rank - spec.counts.num_ffn_ranks);
  params_.rank = static_cast<std::int32_t>(mapping_.role_rank);
  params_.role_rank = mapping_.role_rank;
  params_.config.connector = under_test.connector_name;
  params_.config.role = mapping_.role;
  params_.config.port = port;
  if (under_test.hosts) {
    params_.config.host = under_test.hosts->address;
    params_.config.session = under_test.hosts->session;
  }
  params_.config.num_attention_ranks = spec.counts.num_attention_ranks;
  params_.config.num_ffn_ranks = spec.counts.num_ffn_ranks;
  params_.config.compute_gate_on_attention = spec.compute_gate_on_attention;
  params_.config.connector_extra_config = under_test.extra_config;
  params_.limits = spec.limits;
  if (spec.adjust) {
    spec.adjust(params_);
  }
}

std::string Rank::name() const {
  return rank_name(mapping_.role, mapping_.role_rank);
}

std::string Rank::describe(const Error& error) {
  return std::string(to_string(error.code)) + " \"" + error.message + "\"";
}

ControlPlane& Rank::control() {
  ControlPlane* control = connector_->control_plane();
  require_that(control != nullptr, "control_plane() is null");
  return *control;
}

std::unique_ptr<ConnectorBase> Rank::make_connector(const ConnectorParams& params) {
  return require(under_test_.create(params), "create the connector");
}

void Rank::replace_connector(std::unique_ptr<ConnectorBase> connector) {
  visible_.store(connector.get());
  connector_ = std::move(connector);
}

void Rank::barrier(Place place) {
  if (!board_.barrier(world_rank(), ++round_,
                      spec_.counts.num_attention_ranks + spec_.counts.num_ffn_ranks,
                      Clock::now() + 2 * patience())) {
    if (!board_.aborted()) {
      fail("the other ranks did not come to the barrier", place);
    }
    stop();
  }
}

void Rank::await(std::size_t word, std::uint64_t value, Place place) {
  if (!board_.await(word, value, Clock::now() + 2 * patience())) {
    if (!board_.aborted()) {
      fail("waited in vain for word " + std::to_string(word), place);
    }
    stop();
  }
}

void Rank::die_here() {
  if (mode_ == Mode::kThreads) {
    board_.await(kKilledWord, 1, Clock::now() + job_time_max(under_test_));
    throw RankStopped{};
  }
  for (;;) {
    pause();
  }
}

void Rank::while_blocked(const std::function<void()>& call,
                         const std::function<void()>& meanwhile) {
  const pid_t thread_id = static_cast<pid_t>(syscall(SYS_gettid));
  std::atomic<bool> done{false};
  std::thread other([&] {
    // A call that never sleeps (a spin that never ends) must not hang the test: then it goes on
    // after the patience, and the call's own deadline tells.
    const Clock::time_point until = Clock::now() + patience();
    while (!done.load() && !thread_sleeps(getpid(), thread_id) && Clock::now() < until) {
      std::this_thread::yield();
    }
    meanwhile();
  });
  call();
  done.store(true);
  other.join();
}

bool Rank::fail(const std::string& text, Place place) {
  failed_.store(true);
  record_('F', name() + ": " + text + " (" + short_name(place.file) + ":" +
                   std::to_string(place.line) + ")");
  return false;
}

void Rank::miss_bound(const std::string& text, Place place) {
  record_('B', name() + ": " + text + " (" + short_name(place.file) + ":" +
                   std::to_string(place.line) + ")");
}

bool Rank::check_error_text(const Error& error, ErrorCode code,
                            std::initializer_list<std::string_view> words, std::string_view what,
                            Place place) {
  if (error.code != code) {
    return fail(std::string(what) + " failed with " + describe(error) + ", expected " +
                    std::string(to_string(code)),
                place);
  }
  for (std::string_view word : words) {
    if (error.message.find(word) == std::string::npos) {
      return fail(std::string(what) + ": the message \"" + error.message + "\" does not name \"" +
                      std::string(word) + "\"",
                  place);
    }
  }
  return true;
}

void Rank::stop() {
  board_.abort();
  throw RankStopped{};
}

void Rank::run(const std::function<void(Rank& rank)>& body) {
  board_.thread_ids[world_rank()].store(static_cast<std::int32_t>(syscall(SYS_gettid)));
  board_.process_ids[world_rank()].store(static_cast<std::int32_t>(getpid()));
  try {
    replace_connector(make_connector());
    if (spec_.init) {
      require(connector_->init_afd_connector(soon()), "init_afd_connector");
    }
    body(*this);
    // Nobody leaves while another still needs it.
    round_ = UINT32_MAX - 2;
    barrier();
  } catch (const RankStopped&) {
  }
  visible_.store(nullptr);
  if (connector_ != nullptr) {
    connector_->close();
    connector_.reset();
  }
}

// --- Job -------------------------------------------------------------------------------------

class Job : public JobControl {
 public:
  Job(const ConnectorUnderTest& connector, const JobSpec& spec, Mode mode,
      const std::function<void(Rank& rank)>& body)
      : connector_(connector), spec_(spec), mode_(mode), body_(body), port_(unused_port()) {
    num_ranks_ = spec.counts.num_attention_ranks + spec.counts.num_ffn_ranks;
  }

  CaseResult run() {
    if (num_ranks_ > kRanksMax) {
      std::abort();
    }
    if (std::optional<std::string> refused = layout_refusal(connector_, spec_.counts)) {
      result_.skipped = *std::move(refused);
    } else {
      mode_ == Mode::kThreads ? run_threads() : run_forked();
    }
    return std::move(result_);
  }

  Board& board() override { return *board_; }
  std::chrono::milliseconds patience() const override { return connector_.patience; }
  bool wait_asleep(std::uint32_t world_rank) override;
  void kill(std::uint32_t world_rank) override;

 private:
  void run_threads();
  void run_forked();
  [[noreturn]] void run_child(std::uint32_t world_rank, int pipe_fd);
  void collect(std::vector<int>& pipes);
  void reap();
  void remove_left_segments_of(std::uint32_t world_rank);
  void record(char kind, const std::string& text) {
    std::scoped_lock lock(mutex_);
    if (kind == 'S') {
      result_.skipped = text;
    } else if (kind == 'B') {
      result_.missed_bounds.push_back(text);
    } else {
      result_.failures.push_back(text);
    }
  }
  std::string name_of(std::uint32_t world_rank) const {
    const std::uint32_t num_ffn = spec_.counts.num_ffn_ranks;
    return world_rank < num_ffn ? rank_name(Role::kFfn, world_rank)
                                : rank_name(Role::kAttention, world_rank - num_ffn);
  }

  const ConnectorUnderTest& connector_;
  const JobSpec& spec_;
  Mode mode_;
  const std::function<void(Rank& rank)>& body_;
  std::uint16_t port_;
  std::uint32_t num_ranks_ = 0;
  SharedBoard board_;
  std::mutex mutex_;
  CaseResult result_;
  std::deque<Rank> ranks_;       // threads mode
  std::vector<pid_t> children_;  // forked mode; 0 once reaped
};

bool Job::wait_asleep(std::uint32_t world_rank) {
  const Clock::time_point until = Clock::now() + connector_.patience;
  while (Clock::now() < until && !(*board_).aborted()) {
    const pid_t process = (*board_).process_ids[world_rank].load();
    if (process != 0 && thread_sleeps(process, (*board_).thread_ids[world_rank].load())) {
      return true;
    }
    std::this_thread::yield();
  }
  return false;
}

void Job::kill(std::uint32_t world_rank) {
  (*board_).post(kKilledAtWord, monotonic_ns());
  if (mode_ == Mode::kForked) {
    ::kill(children_[world_rank], SIGKILL);
  } else if (ConnectorBase* connector = ranks_[world_rank].visible_.load()) {
    connector_.abandon(*connector);
    (*board_).post(kKilledWord, 1);
  }
  (*board_).excuse(world_rank);
}

void Job::run_threads() {
  for (std::uint32_t world_rank = 0; world_rank < num_ranks_; ++world_rank) {
    ranks_.emplace_back(connector_, spec_, mode_, port_, world_rank, *board_,
                        [this](char kind, const std::string& text) { record(kind, text); });
  }
  std::condition_variable ended;
  std::uint32_t num_running = num_ranks_;
  std::vector<std::thread> threads;
  for (Rank& rank : ranks_) {
    threads.emplace_back([&] {
      rank.run(body_);
      std::scoped_lock lock(mutex_);
      --num_running;
      ended.notify_all();
    });
  }
  if (spec_.controller) {
    spec_.controller(*this);
  }
  std::unique_lock lock(mutex_);
  if (!ended.wait_for(lock, job_time_max(connector_), [&] { return num_running == 0; })) {
    lock.unlock();
    record('F', "the job did not end within its time; closing every connector");
    (*board_).abort();
    for (Rank& rank : ranks_) {
      if (ConnectorBase* connector = rank.visible_.load()) {
        connector->close();
      }
    }
    lock.lock();
    if (!ended.wait_for(lock, connector_.patience + std::chrono::seconds(10),
                        [&] { return num_running == 0; })) {
      std::fprintf(stderr, "a rank of '%s' hangs even after close(): cannot go on\n",
                   connector_.name.c_str());
      for (const std::string& failure : result_.failures) {
        std::fprintf(stderr, "  %s\n", failure.c_str());
      }
      std::abort();
    }
  }
  lock.unlock();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void Job::run_child(std::uint32_t world_rank, int pipe_fd) {
  // It never outlives the test, whatever happens to either.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGALRM, SIG_DFL);
  alarm(static_cast<unsigned>(
      std::chrono::duration_cast<std::chrono::seconds>(job_time_max(connector_)).count() + 5));
  if (connector_.hosts) {
    connector_.hosts->enter(world_rank);
  }
  Rank rank(connector_, spec_, mode_, port_, world_rank, *board_,
            [pipe_fd](char kind, const std::string& text) {
              // One write a record, terminated by NUL: what is said before a crash is not lost.
              std::string line = kind + text;
              line.push_back('\0');
              const char* data = line.data();
              std::size_t left = line.size();
              while (left > 0) {
                const ssize_t written = write(pipe_fd, data, left);
                if (written <= 0) {
                  return;
                }
                data += written;
                left -= static_cast<std::size_t>(written);
              }
            });
  rank.run(body_);
  std::fflush(nullptr);
  _exit(0);
}

void Job::run_forked() {
  std::vector<int> pipes;
  std::fflush(nullptr);
  for (std::uint32_t world_rank = 0; world_rank < num_ranks_; ++world_rank) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
      std::perror("pipe2");
      std::abort();
    }
    const pid_t child = fork();
    if (child == 0) {
      for (int other : pipes) {
        ::close(other);
      }
      ::close(ends[0]);
      run_child(world_rank, ends[1]);
    }
    ::close(ends[1]);
    if (child < 0) {
      ::close(ends[0]);
      record('F', "cannot fork a rank: " + std::string(std::strerror(errno)));
      (*board_).abort();
      break;
    }
    children_.push_back(child);
    pipes.push_back(ends[0]);
  }
  if (spec_.controller && children_.size() == num_ranks_) {
    spec_.controller(*this);
  }
  collect(pipes);
  reap();
}

void Job::collect(std::vector<int>& pipes) {
  const Clock::time_point until = Clock::now() + job_time_max(connector_);
  std::vector<std::string> texts(pipes.size());
  std::size_t num_open = pipes.size();
  while (num_open > 0) {
    std::vector<pollfd> polled;
    for (int fd : pipes) {
      polled.push_back({fd, POLLIN, 0});  // a negative fd is ignored
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) {
      break;
    }
    poll(polled.data(), polled.size(), static_cast<int>(left));
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (pipes[i] < 0 || polled[i].revents == 0) {
        continue;
      }
      char buffer[4096];
      const ssize_t size = read(pipes[i], buffer, sizeof buffer);
      if (size > 0) {
        texts[i].append(buffer, static_cast<std::size_t>(size));
      } else {
        ::close(pipes[i]);
        pipes[i] = -1;
        --num_open;
      }
    }
  }
  for (std::size_t i = 0; i < pipes.size(); ++i) {
    if (pipes[i] >= 0) {
      ::close(pipes[i]);
      ::kill(children_[i], SIGKILL);
      record('F', name_of(static_cast<std::uint32_t>(i)) + " did not end within its time");
    }
    for (std::size_t begin = 0; begin < texts[i].size();) {
      const std::size_t end = std::min(texts[i].find('\0', begin), texts[i].size());
      record(texts[i][begin], texts[i].substr(begin + 1, end - begin - 1));
      begin = end + 1;
    }
  }
}

void Job::remove_left_segments_of(std::uint32_t world_rank) {
  const pid_t creator = children_[world_rank];
  if (!connector_.hosts) {
    remove_left_segments(creator);
    return;
  }
  // In the /dev/shm that it saw, without moving this process.
  const pid_t child = fork();
  if (child == 0) {
    connector_.hosts->enter(world_rank);
    remove_left_segments(creator);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
}

void Job::reap() {
  for (std::size_t i = 0; i < children_.size(); ++i) {
    int status = 0;
    waitpid(children_[i], &status, 0);
    remove_left_segments_of(static_cast<std::uint32_t>(i));
    const bool is_victim = spec_.victim && *spec_.victim == i;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      continue;
    }
    if (is_victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      continue;
    }
    record('F', name_of(static_cast<std::uint32_t>(i)) + " ended with " +
                    (WIFSIGNALED(status) ? std::string("signal ") + strsignal(WTERMSIG(status))
                                         : "status " + std::to_string(WEXITSTATUS(status))));
  }
}

std::optional<std::string> layout_refusal(const ConnectorUnderTest& connector, RankCounts counts) {
  if (connector.capabilities.any_ratio || counts == RankCounts{1, 1}) {
    return std::nullopt;
  }
  SharedBoard board;
  const JobSpec spec{.counts = counts};
  const Rank probe(connector, spec, Mode::kThreads, 1, 0, *board, [](char, const std::string&) {});
  const auto made = connector.create(probe.params());
  if (made || made.error().code != ErrorCode::kInvalidArgument) {
    return std::nullopt;
  }
  return connector.name + " refuses " + std::to_string(counts.num_attention_ranks) + "A" +
         std::to_string(counts.num_ffn_ranks) + "F: " + made.error().message;
}

RankCounts CaseRun::fan_in() const {
  constexpr RankCounts kTwoToOne{2, 1};
  return layout_refusal(connector_, kTwoToOne) ? RankCounts{1, 1} : kTwoToOne;
}

void CaseRun::job(const JobSpec& spec, const std::function<void(Rank& rank)>& body) {
  CaseResult result;
  for (int tries = 0; tries < 3; ++tries) {
    result = Job(connector_, spec, mode_, body).run();
    if (!result.failures.empty() || result.missed_bounds.empty()) {
      break;
    }
  }
  for (std::string& missed : result.missed_bounds) {
    result.failures.push_back(std::move(missed));
  }
  for (std::string& failure : result.failures) {
    result_.failures.push_back(std::move(failure));
  }
  if (!result.skipped.empty()) {
    result_.skipped = std::move(result.skipped);
  }
}

}  // namespace afd::conformance
