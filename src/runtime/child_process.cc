#include "runtime/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "base/errno_text.h"

namespace afd::runtime {
namespace {

constexpr int kFirstInheritedFd = 3;
constexpr int kExecFailed = 127;

/// Everything that the child needs between fork and exec, prepared before, since it may then only
/// call what is safe after a fork.
struct Prepared {
  const char* program = nullptr;
  std::vector<char*> argv;
  std::vector<int> fds;  ///< Above every number that the child will use.
  int null_fd = -1;
  int output_fd = -1;
  pid_t parent = -1;
  bool pin = false;
  cpu_set_t cpus;
};

[[noreturn]] void become(const Prepared& prepared) {
  // SIGCONT, so that one that was stopped sees its launcher's end too, and cleans up; SIGTERM would
  // wait for somebody to continue it, and SIGKILL would leave what it has half made.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  if (::getppid() != prepared.parent) {
    ::_exit(kExecFailed);  // the parent died before the line above
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  if (prepared.pin) {
    ::sched_setaffinity(0, sizeof(prepared.cpus), &prepared.cpus);
  }
  ::dup2(prepared.null_fd, STDIN_FILENO);
  ::dup2(prepared.output_fd, STDOUT_FILENO);
  ::dup2(prepared.output_fd, STDERR_FILENO);
  int target = kFirstInheritedFd;
  for (const int fd : prepared.fds) {
    ::dup2(fd, target++);
  }
  // Whatever this program's caller left open is none of the child's business.
  ::close_range(static_cast<unsigned>(target), ~0U, 0);
  ::execv(prepared.program, prepared.argv.data());
  ::_exit(kExecFailed);
}

}  // namespace

std::string signal_text(int signal) {
  const char* const description = ::sigdescr_np(signal);  // null for real-time signals
  return "signal " + std::to_string(signal) +
         (description == nullptr ? std::string() : " (" + std::string(description) + ")");
}

std::string to_string(ExitStatus status) {
  if (!status.known) {
    return "exit status unknown";
  }
  if (status.signal != 0) {
    return "killed by " + signal_text(status.signal);
  }
  return "exit status " + std::to_string(status.exit_code);
}

Result<ChildProcess> ChildProcess::start(const ChildOptions& options) {
  const auto failed = [](const char* what) {
    return fail(ErrorCode::kUnavailable,
                std::string("start a process: ") + what + ": " + base::errno_text(errno));
  };
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return failed("pipe2");
  }
  base::Fd read_end(ends[0]);
  const base::Fd write_end(ends[1]);
  if (::fcntl(read_end.get(), F_SETFL, O_NONBLOCK) != 0) {
    return failed("fcntl");
  }
  const base::Fd null_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null_fd) {
    return failed("open /dev/null");
  }
  // Copies whose numbers are out of the way of the targets.
  const int out_of_the_way = kFirstInheritedFd + static_cast<int>(options.inherited_fds.size());
  std::vector<base::Fd> copies;
  const auto copy = [&](int fd) {
    copies.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, out_of_the_way));
    return copies.back().get();
  };
  Prepared prepared;
  prepared.program = options.program.c_str();
  prepared.null_fd = copy(null_fd.get());
  prepared.output_fd = copy(write_end.get());
  for (const int fd : options.inherited_fds) {
    prepared.fds.push_back(copy(fd));
  }
  for (const base::Fd& made : copies) {
    if (!made) {
      return failed("fcntl");
    }
  }
  std::vector<std::string> args = options.args;
  for (std::string& arg : args) {
    prepared.argv.push_back(arg.data());
  }
  prepared.argv.push_back(nullptr);
  prepared.parent = ::getpid();
  prepared.pin = !options.cpus.empty();
  CPU_ZERO(&prepared.cpus);
  for (const std::uint32_t cpu : options.cpus) {
    CPU_SET(cpu, &prepared.cpus);
  }
  const pid_t pid = ::fork();
  if (pid < 0) {
    return failed("fork");
  }
  if (pid == 0) {
    become(prepared);
  }
  return ChildProcess(pid, std::move(read_end));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)),
      status_(std::move(other.status_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    end();
    pid_ = std::exchange(other.pid_, -1);
    output_ = std::move(other.output_);
    status_ = std::move(other.status_);
  }
  return *this;
}

ChildProcess::~ChildProcess() {
  end();
}

void ChildProcess::end() noexcept {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pid_ = -1;
}

std::optional<ExitStatus> ChildProcess::poll() {
  if (pid_ > 0 && !status_) {
    int status = 0;
    const pid_t reaped = ::waitpid(pid_, &status, WNOHANG);
    if (reaped == pid_) {
      status_ = WIFSIGNALED(status) ? ExitStatus{.signal = WTERMSIG(status)}
                                    : ExitStatus{.exit_code = WEXITSTATUS(status)};
    } else if (reaped < 0 && errno == ECHILD) {
      status_ = ExitStatus{.known = false};  // it ended and somebody else reaped it
    }
  }
  return status_;
}

void ChildProcess::send_signal(int signal) const {
  if (pid_ > 0 && !status_) {
    ::kill(pid_, signal);
  }
}

bool ChildProcess::is_stopped() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string line;
  std::getline(file, line);
  // "pid (name) state ...": the name may hold anything, brackets too.
  const std::size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= line.size()) {
    return false;
  }
  const char state = line[name_end + 2];
  return state == 'T' || state == 't';
}

}  // namespace afd::runtime
