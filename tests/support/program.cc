#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

namespace afd::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string read_proc(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> arguments_of(pid_t pid) {
  std::vector<std::string> arguments;
  std::istringstream text(read_proc("/proc/" + std::to_string(pid) + "/cmdline"));
  for (std::string argument; std::getline(text, argument, '\0');) {
    arguments.push_back(argument);
  }
  return arguments;
}

std::string value_after(const std::vector<std::string>& arguments, const std::string& flag) {
  const auto found = std::find(arguments.begin(), arguments.end(), flag);
  return found == arguments.end() || found + 1 == arguments.end() ? std::string() : found[1];
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::istringstream text(read_proc(task.path().string() + "/children"));
    for (pid_t child = 0; text >> child;) {
      children.push_back(child);
    }
  }
  return children;
}

/// Its state in /proc/PID/stat; 0 where there is no such process.
char state_of(pid_t pid) {
  const std::string stat = read_proc("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t paren = stat.rfind(')');
  return paren != std::string::npos && paren + 2 < stat.size() ? stat[paren + 2] : '\0';
}

/// Running, not merely waiting to be reaped.
bool is_running(pid_t pid) {
  const char state = state_of(pid);
  return state != '\0' && state != 'Z';
}

/// Inodes of the sockets that a process has open.
std::vector<std::string> sockets_of(pid_t pid) {
  constexpr std::string_view kPrefix = "socket:[";
  std::vector<std::string> inodes;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.starts_with(kPrefix)) {
      inodes.push_back(target.substr(kPrefix.size(), target.size() - kPrefix.size() - 1));
    }
  }
  return inodes;
}

/// The lines of the system's tables of sockets that are about one of these inodes.
std::string lines_about_sockets(const std::set<std::string>& inodes) {
  struct Table {
    const char* path;
    int inode_column;
  };
  std::string lines;
  for (const Table& table :
       {Table{"/proc/net/tcp", 9}, {"/proc/net/tcp6", 9}, {"/proc/net/unix", 6}}) {
    std::istringstream text(read_proc(table.path));
    for (std::string line; std::getline(text, line);) {
      std::istringstream words(line);
      std::string word;
      for (int column = 0; column <= table.inode_column && words >> word; ++column) {
      }
      if (inodes.contains(word)) {
        lines += std::string("socket of ") + table.path + " is left: " + line + "\n";
      }
    }
  }
  return lines;
}

/// Moves what can be read now to `text`; false at the end.
bool drain(int fd, std::string* text) {
  char buffer[16384];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got > 0) {
      text->append(buffer, static_cast<std::size_t>(got));
    } else if (got == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
}

}  // namespace

std::string describe(const Ended& ended) {
  return "exit code " + std::to_string(ended.exit_code) + ", signal " +
         std::to_string(ended.signal) + (ended.timed_out ? ", timed out" : "") + ", after " +
         std::to_string(ended.elapsed.count()) + " ms\nstdout: " + ended.out.substr(0, 4000) +
         "\nstderr: " + ended.err.substr(0, 4000);
}

Program::Program(const std::vector<std::string>& args) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    std::abort();
  }
  std::vector<std::string> copies = args;
  std::vector<char*> argv;
  for (std::string& copy : copies) {
    argv.push_back(copy.data());
  }
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null_fd = ::open("/dev/null", O_RDONLY);
    ::dup2(null_fd, STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  seen_.push_back(pid_);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
  ::fcntl(out_, F_SETFL, O_NONBLOCK);
  ::fcntl(err_, F_SETFL, O_NONBLOCK);
}

Program::~Program() {
  if (!ended_) {
    remember(ranks());
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const pid_t pid : seen_) {
    // By its arguments, since the number may be another process's by now.
    if (pid != pid_ && !value_after(arguments_of(pid), "--event-fd").empty()) {
      ::kill(pid, SIGKILL);
    }
  }
  ::close(out_);
  ::close(err_);
}

void Program::signal(int signal_number) const {
  ::kill(pid_, signal_number);
}

std::vector<Program::RankProcess> Program::ranks() {
  std::vector<RankProcess> found;
  for (const pid_t pid : children_of(pid_)) {
    const std::vector<std::string> arguments = arguments_of(pid);
    const std::string role = value_after(arguments, "--role");
    const std::string role_rank = value_after(arguments, "--role-rank");
    if (!role.empty() && !role_rank.empty()) {
      found.push_back({pid, role, std::atoi(role_rank.c_str())});
    }
  }
  remember(found);
  return found;
}

std::vector<Program::RankProcess> Program::await_ranks(std::size_t num_ranks, milliseconds limit) {
  const auto until = Clock::now() + limit;
  std::vector<RankProcess> found = ranks();
  while (found.size() < num_ranks && Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
    found = ranks();
  }
  return found;
}

void Program::remember(const std::vector<RankProcess>& found) {
  for (const RankProcess& rank : found) {
    if (std::find(seen_.begin(), seen_.end(), rank.pid) == seen_.end()) {
      seen_.push_back(rank.pid);
    }
  }
}

bool Program::await_stderr(const std::string& text, milliseconds limit) {
  const auto until = Clock::now() + limit;
  while (err_text_.find(text) == std::string::npos) {
    if (has_ended() || Clock::now() > until) {
      return false;
    }
    pollfd fd = {.fd = err_, .events = POLLIN, .revents = 0};
    ::poll(&fd, 1, 5);
    drain(err_, &err_text_);
  }
  return true;
}

bool Program::has_ended() const {
  siginfo_t info{};
  return ended_ ||
         (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == pid_);
}

Ended Program::wait(milliseconds limit) {
  Ended ended;
  const auto begin = Clock::now();
  int status = 0;
  for (;;) {
    pollfd fds[] = {{.fd = out_, .events = POLLIN, .revents = 0},
                    {.fd = err_, .events = POLLIN, .revents = 0}};
    ::poll(fds, 2, 5);
    // Descendants may hold the pipes longer than the program lives: its end counts, not theirs.
    const bool exited = ::waitpid(pid_, &status, WNOHANG) == pid_;
    drain(out_, &out_text_);
    drain(err_, &err_text_);
    if (exited) {
      break;
    }
    if (Clock::now() - begin > limit) {
      ended.timed_out = true;
      remember(ranks());
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
      break;
    }
  }
  ended_ = true;
  ended.out = out_text_;
  ended.err = err_text_;
  ended.elapsed = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  if (WIFEXITED(status)) {
    ended.exit_code = WEXITSTATUS(status);
  } else {
    ended.signal = WTERMSIG(status);
  }
  return ended;
}

std::size_t Program::note_sockets() {
  for (const pid_t pid : seen_) {
    for (std::string& inode : sockets_of(pid)) {
      sockets_.insert(std::move(inode));
    }
  }
  return sockets_.size();
}

std::string Program::leftovers(milliseconds grace) {
  const auto until = Clock::now() + grace;
  std::string lines;
  for (const pid_t pid : seen_) {
    while (is_running(pid) && Clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(2));
    }
    if (is_running(pid)) {
      lines += "process " + std::to_string(pid) + " still runs\n";
    }
    ::waitpid(pid, nullptr, WNOHANG);  // an orphan that became ours
    const std::string prefix = "afd-" + std::to_string(pid) + "-";
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      if (entry.path().filename().string().rfind(prefix, 0) == 0) {
        lines += "segment " + entry.path().string() + " is left\n";
      }
    }
  }
  return lines + lines_about_sockets(sockets_);
}

bool await_state(pid_t pid, char state, milliseconds limit) {
  const auto until = Clock::now() + limit;
  while (state_of(pid) != state) {
    if (Clock::now() > until) {
      return false;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

Ended run_program(const std::vector<std::string>& args, milliseconds limit) {
  Program program(args);
  return program.wait(limit);
}

TempFolder::TempFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "afd-test-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    std::abort();
  }
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string TempFolder::write(const std::string& name, const std::string& text) const {
  const std::string path = path_ + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

}  // namespace afd::testing
