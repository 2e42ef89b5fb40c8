// How a case runs: a job of A attention and F FFN ranks, each a thread or a forked process, every
// one executing the same body with its own connector.
//
//   void r3_...(CaseRun& run) {
//     run.job({.counts = {2, 1}}, [](Rank& rank) {
//       if (rank.is_attention()) { ... rank.connector().send_attn_output(...) ... }
//     });
//   }
//
// A check that fails is recorded with its place and its rank, whichever process that is; one that
// makes the rest senseless (`require`, `stop`) also ends the body of its rank and wakes the others.
//
// Threads: a Rank is used by its own body; fail() and the board from any thread of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <afd/connector.h>
#include <afd/factory.h>
#include <afd/tensor.h>
#include <afd/topology.h>

#include "conformance/board.h"
#include "conformance/conformance.h"

namespace afd::conformance {

/// Small enough for thousands of steps, odd enough to show a wrong stride.
TransferLimits small_limits();

class JobControl;

/// A job of one case.
struct JobSpec {
  RankCounts counts;
  TransferLimits limits = small_limits();
  bool compute_gate_on_attention = false;
  /// False: the body initialises its connector itself.
  bool init = true;
  /// The last word on one rank's parameters, before its connector is made.
  std::function<void(ConnectorParams& params)> adjust;
  /// World rank (FFN ranks first) that will be killed.
  std::optional<std::uint32_t> victim;
  /// Runs beside the ranks, in the process that started them: kills the victim.
  std::function<void(JobControl& control)> controller;
};

/// Where a check stands: default-constructed as a default argument, the place of the call.
struct Place {
  // Not std::source_location: clang 14 has none.
  constexpr Place(const char* where = __builtin_FILE(), int which = __builtin_LINE())
      : file(where), line(which) {}
  const char* file;
  int line;
};

/// Ends the body of one rank. Caught by the harness.
struct RankStopped {};

/// One rank of a job, as its body sees it.
class Rank {
 public:
  using Record = std::function<void(char kind, const std::string& text)>;

  Rank(const ConnectorUnderTest& under_test, const JobSpec& spec, Mode mode, std::uint16_t port,
       std::uint32_t world_rank, Board& board, Record record);

  const RankMapping& mapping() const { return mapping_; }
  Role role() const { return mapping_.role; }
  std::uint32_t role_rank() const { return mapping_.role_rank; }
  std::uint32_t world_rank() const { return mapping_.world_rank; }
  bool is_attention() const { return mapping_.role == Role::kAttention; }
  bool is_ffn() const { return mapping_.role == Role::kFfn; }
  RankCounts counts() const { return spec_.counts; }
  const TransferLimits& limits() const { return spec_.limits; }
  const JobSpec& spec() const { return spec_; }
  Mode mode() const { return mode_; }
  /// "attention rank 1".
  std::string name() const;

  ConnectorBase& connector() { return *connector_; }
  ControlPlane& control();
  const Capabilities& capabilities() const { return under_test_.capabilities; }
  const ConnectorParams& params() const { return params_; }
  /// Another connector for this rank, not initialised.
  std::unique_ptr<ConnectorBase> make_connector() { return make_connector(params_); }
  std::unique_ptr<ConnectorBase> make_connector(const ConnectorParams& params);
  /// Takes the place of connector() until the body ends.
  void replace_connector(std::unique_ptr<ConnectorBase> connector);
  void destroy_connector() { connector_.reset(); }

  /// A tensor that lives until every rank of the job has ended. What is given to a connector comes
  /// from here: a broken one may show it to a peer whose body goes on after this one has ended.
  TensorView make_tensor(Shape shape, DType dtype) {
    return tensors_.emplace_back(shape, dtype).view();
  }

  std::chrono::milliseconds patience() const { return under_test_.patience; }
  /// For calls that ought to be done at once.
  Deadline soon() const { return Deadline::after(under_test_.patience); }

  Board& board() { return board_; }
  /// Meets the other ranks, but for those that were killed or whose bodies have ended.
  void barrier(Place place = {});
  void post(std::size_t word, std::uint64_t value = 1) { board_.post(word, value); }
  void await(std::size_t word, std::uint64_t value = 1, Place place = {});
  /// The victim's last line: waits to be killed.
  [[noreturn]] void die_here();

  /// Runs `call` on this thread and, when it sleeps in the kernel, `meanwhile` on another one.
  void while_blocked(const std::function<void()>& call, const std::function<void()>& meanwhile);

  // Checks. All return whether they held.
  bool fail(const std::string& text, Place place = {});
  bool check(bool holds, const std::string& text, Place place = {}) {
    return holds || fail(text, place);
  }
  template <typename A, typename B>
  bool check_equal(const A& found, const B& wanted, std::string_view what, Place place = {}) {
    if (found == wanted) {
      return true;
    }
    std::ostringstream text;
    text << what << " is " << found << ", expected " << wanted;
    return fail(text.str(), place);
  }
  template <typename T>
  bool check_ok(const Result<T>& result, std::string_view what, Place place = {}) {
    return result ? true : fail(std::string(what) + ": " + describe(result.error()), place);
  }
  /// The call failed with this code and a message that contains all `words`.
  template <typename T>
  bool check_error(const Result<T>& result, ErrorCode code,
                   std::initializer_list<std::string_view> words, std::string_view what,
                   Place place = {}) {
    if (result) {
      return fail(std::string(what) + " succeeded, expected " + std::string(to_string(code)),
                  place);
    }
    return check_error_text(result.error(), code, words, what, place);
  }
  /// The value, or the end of this body.
  template <typename T>
  T require(Result<T> result, std::string_view what, Place place = {}) {
    if (!check_ok(result, what, place)) {
      stop();
    }
    if constexpr (!std::is_void_v<T>) {
      return *std::move(result);
    }
  }
  void require_that(bool holds, const std::string& text, Place place = {}) {
    if (!check(holds, text, place)) {
      stop();
    }
  }
  [[noreturn]] void stop();
  /// A bound of time does not hold.
  void miss_bound(const std::string& text, Place place = {});
  /// This case can say nothing here.
  void skip(const std::string& why) { record_('S', why); }

  bool failed() const { return failed_; }
  static std::string describe(const Error& error);

 private:
  friend class Job;
  bool check_error_text(const Error& error, ErrorCode code,
                        std::initializer_list<std::string_view> words, std::string_view what,
                        Place place);
  void run(const std::function<void(Rank& rank)>& body);

  const ConnectorUnderTest& under_test_;
  const JobSpec& spec_;
  Mode mode_;
  Board& board_;
  Record record_;
  RankMapping mapping_;
  ConnectorParams params_;
  std::deque<Tensor> tensors_;
  std::unique_ptr<ConnectorBase> connector_;
  std::atomic<ConnectorBase*> visible_{nullptr};  ///< For the controller, threads mode only.
  std::uint32_t round_ = 0;
  std::atomic<bool> failed_{false};
};

/// What a controller may do to a running job.
class JobControl {
 public:
  virtual ~JobControl() = default;
  virtual Board& board() = 0;
  virtual std::chrono::milliseconds patience() const = 0;
  /// Waits until the body of `world_rank` sleeps in the kernel. @return false  on timeout
  virtual bool wait_asleep(std::uint32_t world_rank) = 0;
  /// kill -9 of the rank's process, or ConnectorUnderTest::abandon of its connector. Stamps
  /// kKilledAtWord first.
  virtual void kill(std::uint32_t world_rank) = 0;
};

/// Words of the board that the harness uses; cases use those below.
inline constexpr std::size_t kKilledAtWord = Board::kWords - 1;  ///< monotonic ns of the kill
inline constexpr std::size_t kKilledWord = Board::kWords - 2;    ///< threads: the victim may return

/// Nanoseconds of the monotonic clock, equal in all processes.
std::uint64_t monotonic_ns();

/// Why the connector cannot connect this many ranks, as its create() says; nothing if it can. A
/// connector without any_ratio says so there; 1A1F is not optional.
std::optional<std::string> layout_refusal(const ConnectorUnderTest& connector, RankCounts counts);

/// One case on one connector in one mode.
class CaseRun {
 public:
  CaseRun(const ConnectorUnderTest& connector, Mode mode) : connector_(connector), mode_(mode) {}

  const ConnectorUnderTest& connector() const { return connector_; }
  Mode mode() const { return mode_; }

  /// Runs a job to its end. May be called several times. A job that failed in nothing but a bound
  /// of time is repeated, twice at most.
  void job(const JobSpec& spec, const std::function<void(Rank& rank)>& body);

  /// Two attention ranks of one FFN rank; one, where the connector refuses that.
  RankCounts fan_in() const;

  void fail(std::string text) { result_.failures.push_back(std::move(text)); }
  void skip(std::string why) { result_.skipped = std::move(why); }
  bool failed() const { return !result_.failures.empty(); }
  CaseResult take() { return std::move(result_); }

 private:
  const ConnectorUnderTest& connector_;
  Mode mode_;
  CaseResult result_;
};

/// A TCP port on loopback that nobody listens on, below the range that the kernel hands out.
std::uint16_t unused_port();

/// True in builds whose timing, allocations and faults are those of the instrumentation.
constexpr bool is_instrumented() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace afd::conformance
