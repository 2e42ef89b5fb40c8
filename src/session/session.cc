#include "session/session.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "session/address.h"
#include "session/authentication.h"
#include "session/event_loop.h"
#include "session/hub.h"
#include "session/link.h"
#include "session/member.h"
#include "session/wording.h"

namespace afd::session {
namespace {

using std::chrono::milliseconds;

// How long before a deadline, at most, rank 0 is asked who is missing, so that the error can name
// it.
constexpr milliseconds kAskBefore{500};

// Between two questions for a name that nobody knows yet.
constexpr milliseconds kResolvePauseMin{50};
constexpr milliseconds kResolvePauseMax{1'000};

const std::string& meeting_host(const std::string& host, bool listens,
                                const SessionConfig& network) {
  return listens && !network.bind_host.empty() ? network.bind_host : host;
}

Result<void> validate(const JoinOptions& options) {
  const auto invalid = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
  };
  const RankCounts counts = options.counts;
  if (Result<void> valid = validate_topology(counts.num_attention_ranks, counts.num_ffn_ranks);
      !valid) {
    return valid;
  }
  const std::uint64_t num_ranks = std::uint64_t{counts.num_attention_ranks} + counts.num_ffn_ranks;
  if (num_ranks > kRanksMax) {
    return invalid("a session has " + std::to_string(num_ranks) + " ranks, at most " +
                   std::to_string(kRanksMax));
  }
  const bool is_attention = options.role == Role::kAttention;
  const std::uint32_t num_of_role =
      is_attention ? counts.num_attention_ranks : counts.num_ffn_ranks;
  if (options.role_rank >= num_of_role) {
    return invalid("role_rank is " + std::to_string(options.role_rank) + ", expected less than " +
                   std::to_string(num_of_role));
  }
  const std::uint32_t world_rank = options.role_rank + (is_attention ? counts.num_ffn_ranks : 0);
  if (options.world_rank != world_rank) {
    return invalid("world_rank is " + std::to_string(options.world_rank) + ", expected " +
                   std::to_string(world_rank));
  }
  if (Result<void> valid =
          validate_meeting(options.host, options.port, world_rank == 0, options.network);
      !valid) {
    return valid;
  }
  if (options.blob.size() > kBlobBytesMax) {
    return invalid("blob has " + std::to_string(options.blob.size()) + " bytes, at most " +
                   std::to_string(kBlobBytesMax));
  }
  if (options.must_match.size() > kMustMatchPairsMax) {
    return invalid("must_match has " + std::to_string(options.must_match.size()) +
                   " pairs, at most " + std::to_string(kMustMatchPairsMax));
  }
  std::set<std::string_view> keys;
  for (const auto& [key, value] : options.must_match) {
    if (key.empty() || key.size() > kKeyBytesMax || !is_printable(key) ||
        value.size() > kValueBytesMax || !is_printable(value)) {
      return invalid("must_match: key or value of '" + key + "' is too long or not printable");
    }
    if (!keys.insert(key).second) {
      return invalid("must_match has '" + key + "' twice");
    }
  }
  return {};
}

}  // namespace

Result<void> validate_meeting(const std::string& given_host, std::uint16_t port, bool listens,
                              const SessionConfig& network) {
  const auto invalid = [](std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
  };
  if (port == 0 && !listens) {
    return invalid("port must be in 1..65535, got 0");
  }
  if (Result<void> valid = validate_session_config(network); !valid) {
    return valid;
  }
  const std::string& host = meeting_host(given_host, listens, network);
  if (host.empty()) {
    return invalid("host is empty");
  }
  if (!is_loopback(host) && network.secret_file.empty() && !network.has_tls() &&
      !network.insecure) {
    return invalid("host " + host +
                   " is not a loopback address: beyond loopback every rank needs the job's shared "
                   "secret (secret_file), or has to be told to go without (insecure)");
  }
  if (!listens && (host == "0.0.0.0" || host == "::")) {
    return invalid("host " + host + " is for listening; a rank connects to rank 0's own address");
  }
  if (const Result<Credentials> credentials = Credentials::load(network); !credentials) {
    return fail(credentials.error());
  }
  return {};
}

struct Session::State final : LinkEvents {
  explicit State(JoinOptions join_options)
      : options(std::move(join_options)),
        num_ranks(options.counts.num_attention_ranks + options.counts.num_ffn_ranks),
        peer_states(std::make_unique<std::atomic<PeerState>[]>(num_ranks)),
        has_come(num_ranks) {}

  // --- events, with the mutex held ---

  void joined(std::uint32_t new_epoch, std::vector<PeerBlob> new_peers) override;
  void join_failed(Error error) override;
  void missing(const Waiting& waiting, std::string_view why) override;
  void refused(std::string_view refusals) override { last_refusals = refusals; }
  void barrier_released(std::uint32_t round) override;
  void gathered(Gathered gathered) override;
  void gone(const Gone& gone) override;

  // --- the loop's thread, after each handler ---

  void after_handler(std::unique_lock<std::mutex>& lock);

  // --- callers ---

  Result<void> find(Deadline deadline);
  Result<void> open();
  Result<void> wait_for_all(Deadline deadline);
  Error why_not_joined(Deadline::Clock::duration waited) const;
  void end(const std::optional<Goodbye>& goodbye) noexcept;
  std::string departure_text(std::uint32_t world_rank) const;

  // One kind of collective, from the callers' side. Counts wrap, and are compared for equality.
  struct Rounds {
    std::uint32_t begun = 0;     // rounds that this rank arrived in
    std::uint32_t complete = 0;  // rounds that every rank arrived in
    std::uint32_t taken = 0;     // rounds whose end a caller has seen
    bool busy = false;           // a caller is in it
    bool asked = false;          // rank 0 tells who is missing in the round that has begun
  };
  // Waits for the turn of this caller. An error if that takes too long or must fail.
  Result<void> enter(std::unique_lock<std::mutex>& lock, Rounds& rounds, Collective what,
                     Deadline deadline);
  Result<void> wait_round(std::unique_lock<std::mutex>& lock, Rounds& rounds, Collective what,
                          Deadline deadline);
  void exit(Rounds& rounds);
  std::uint32_t num_of_role() const {
    return options.role == Role::kAttention ? options.counts.num_attention_ranks
                                            : options.counts.num_ffn_ranks;
  }
  // Whether a collective cannot complete any more, and why.
  bool is_broken(Collective what) const;
  Error why_broken(Collective what) const;
  Error why_late(Collective what, std::uint32_t round, Deadline::Clock::duration waited) const;

  template <typename Predicate>
  bool wait(std::unique_lock<std::mutex>& lock, Deadline deadline, Predicate predicate) {
    ++num_waiters;
    bool holds = true;
    if (deadline.is_never()) {
      changed.wait(lock, predicate);
    } else {
      holds = changed.wait_until(lock, deadline.when(), predicate);
    }
    --num_waiters;
    return holds;
  }

  // After a call into the link: what it changed may concern another caller.
  void wake_others() {
    if (std::exchange(wake, false)) {
      changed.notify_all();
    }
  }

  const JoinOptions options;
  const std::uint32_t num_ranks;
  std::unique_ptr<std::atomic<PeerState>[]> peer_states;  // stored with release, on a change

  std::mutex close_mutex;  // one close() at a time; taken before `mutex`
  std::mutex mutex;        // guards everything below
  std::condition_variable changed;
  std::uint32_t num_waiters = 0;
  bool wake = false;          // an event happened for which callers may wait
  bool peer_changed = false;  // an event for on_change

  enum class Phase { kJoining, kJoined, kFailed } phase = Phase::kJoining;
  std::optional<Error> failure;  // of the join
  Waiting last_missing;
  std::string last_why;
  std::string last_refusals;
  // During the join, by world rank: was present in some list of this rank 0. One that is missing
  // none the less has left again, perhaps because its time was up a moment before ours.
  std::vector<bool> has_come;

  // Written once, before phase is kJoined; then read without the lock.
  std::uint32_t epoch = 0;
  std::vector<PeerBlob> peers;

  bool closed = false;
  std::optional<Error> first_lost;
  std::vector<std::pair<std::uint32_t, std::string>> gave_up;  // who first, and why
  std::uint32_t num_left = 0;
  std::uint32_t num_left_of_role = 0;
  std::shared_ptr<const std::function<void()>> on_change;  // shared with a call under way

  Rounds barriers;
  Rounds gathers;
  std::string contribution;                // of the gather that has begun
  std::vector<std::string> contributions;  // of the gather that is complete

  std::vector<Address> addresses;  // of the host to meet at
  std::string there;               // "node7:1239", for messages
  std::uint16_t port = 0;          // rank 0's
  Credentials credentials;
  // The link's sockets belong to the loop, so it goes first.
  std::unique_ptr<EventLoop> loop;
  std::unique_ptr<Link> link;
};

// --- events ---

void Session::State::joined(std::uint32_t new_epoch, std::vector<PeerBlob> new_peers) {
  if (phase != Phase::kJoining) {
    return;
  }
  phase = Phase::kJoined;
  epoch = new_epoch;
  peers = std::move(new_peers);
  wake = true;
}

void Session::State::join_failed(Error error) {
  if (phase != Phase::kJoining) {
    return;
  }
  phase = Phase::kFailed;
  failure = std::move(error);
  wake = true;
}

void Session::State::missing(const Waiting& waiting, std::string_view why) {
  last_missing = waiting;
  last_why = why;
  if (waiting.what != Collective::kJoin) {
    return;
  }
  if (!why.empty()) {  // no list of rank 0's: it has not answered, or is another one from now on
    has_come.assign(num_ranks, false);
    return;
  }
  for (std::uint32_t rank = 0; rank < num_ranks; ++rank) {
    if (!std::binary_search(waiting.world_ranks.begin(), waiting.world_ranks.end(), rank)) {
      has_come[rank] = true;
    }
  }
}

void Session::State::barrier_released(std::uint32_t round) {
  barriers.complete = round + 1;
  wake = true;
}

void Session::State::gathered(Gathered gathered) {
  gathers.complete = gathered.round + 1;
  contributions = std::move(gathered.contributions);
  wake = true;
}

void Session::State::gone(const Gone& gone) {
  if (peer_states[gone.world_rank].load(std::memory_order_relaxed) != PeerState::kPresent) {
    return;
  }
  PeerState state = PeerState::kLeft;
  if (gone.how == Departure::kLost) {
    state = PeerState::kLost;
    if (!first_lost) {
      first_lost = Error{ErrorCode::kPeerLost, rank_at_host(gone.world_rank, options.counts,
                                                            peers[gone.world_rank].addresses) +
                                                   " lost: " + gone.reason};
    }
  } else {
    const bool is_ffn = gone.world_rank < options.counts.num_ffn_ranks;
    num_left += 1;
    num_left_of_role += is_ffn == (options.role == Role::kFfn) ? 1 : 0;
    if (gone.how == Departure::kGaveUp) {
      state = PeerState::kGaveUp;
      gave_up.emplace_back(gone.world_rank, gone.reason);
    }
  }
  // Pairs with the acquire in peer_state().
  peer_states[gone.world_rank].store(state, std::memory_order_release);
  wake = true;
  peer_changed = true;
}

void Session::State::after_handler(std::unique_lock<std::mutex>& lock) {
  const bool notify = std::exchange(wake, false) && num_waiters > 0;
  std::shared_ptr<const std::function<void()>> call;
  if (std::exchange(peer_changed, false)) {
    call = on_change;
  }
  lock.unlock();
  if (notify) {
    changed.notify_all();
  }
  if (call) {
    (*call)();
  }
}

// --- the join ---

Result<void> Session::State::find(Deadline deadline) {
  const bool listens = options.world_rank == 0;
  const std::string& host = meeting_host(options.host, listens, options.network);
  const auto start = Deadline::Clock::now();
  auto next_tick = start + options.waiting_interval;
  milliseconds pause = kResolvePauseMin;
  std::mutex asleep;
  std::condition_variable_any stopped;
  while (true) {
    Result<std::vector<Address>> found = resolve(host, options.port, deadline, options.stop);
    if (found) {
      addresses = *std::move(found);
      there = addresses.front().text;
      return {};
    }
    if (options.stop.stop_requested()) {
      return fail(ErrorCode::kFailedPrecondition, "closed");
    }
    // A name may become known while the job starts, so that only rank 0 takes no for an answer.
    const bool over = deadline.expired() || options.abandon.stop_requested();
    if (listens || over || found.error().code == ErrorCode::kInvalidArgument ||
        found.error().code == ErrorCode::kFailedPrecondition) {
      if (found.error().code == ErrorCode::kUnavailable && over) {
        found.error() = {ErrorCode::kDeadlineExceeded,
                         rank_name(0, options.counts) + " did not arrive within " +
                             duration_text(deadline.when() - start) + ": " + found.error().message};
      }
      return fail(std::move(found).error());
    }
    if (options.on_waiting && Deadline::Clock::now() >= next_tick) {
      next_tick += options.waiting_interval;
      options.on_waiting(rank_name(0, options.counts));
    }
    std::unique_lock lock(asleep);
    stopped.wait_until(lock, options.stop, std::min(Deadline::after(pause).when(), deadline.when()),
                       [] { return false; });
    pause = std::min(pause * 2, kResolvePauseMax);
  }
}

Result<void> Session::State::open() {
  Result<std::unique_ptr<EventLoop>> made =
      EventLoop::create(mutex, [this](std::unique_lock<std::mutex>& lock) { after_handler(lock); });
  if (!made) {
    return fail(std::move(made).error());
  }
  loop = std::move(*made);
  if (options.world_rank == 0) {
    Result<std::unique_ptr<Hub>> hub =
        Hub::listen(*loop, addresses.front(), options, credentials, *this);
    if (!hub) {
      return fail(std::move(hub).error());
    }
    port = (*hub)->port();
    there = text_of(addresses.front().host, port);
    link = std::move(*hub);
  } else {
    link = std::make_unique<Member>(*loop, addresses, options, credentials, *this);
  }
  {
    const std::lock_guard lock(mutex);
    link->start();
  }
  return loop->start();
}

Error Session::State::why_not_joined(Deadline::Clock::duration waited) const {
  std::vector<std::uint32_t> never_came;
  std::vector<std::uint32_t> left;
  for (const std::uint32_t rank : last_missing.world_ranks) {
    (rank < num_ranks && has_come[rank] ? left : never_came).push_back(rank);
  }
  std::string text;
  if (never_came.empty()) {
    text = rank_names(left, options.counts) + " arrived at " + there +
           ", left, and did not return within " + duration_text(waited);
  } else {
    text = rank_names(never_came, options.counts) + " did not arrive within " +
           duration_text(waited) + " at " + there;
    if (!left.empty()) {
      text += "; " + rank_names(left, options.counts) + " arrived and left";
    }
  }
  return {ErrorCode::kDeadlineExceeded, text + (last_why.empty() ? "" : ": " + last_why) +
                                            (last_refusals.empty() ? "" : "; refused: ") +
                                            last_refusals};
}

Result<void> Session::State::wait_for_all(Deadline deadline) {
  const auto start = Deadline::Clock::now();
  const milliseconds interval = std::max(options.waiting_interval, milliseconds(1));
  auto next_tick = start + interval;
  const auto look_again = [this] {
    const std::lock_guard lock(mutex);
    changed.notify_all();
  };
  const std::stop_callback on_stop(options.stop, look_again);
  const std::stop_callback on_abandon(options.abandon, look_again);
  std::unique_lock lock(mutex);
  const auto over = [this] {
    return phase != Phase::kJoining || options.stop.stop_requested() ||
           options.abandon.stop_requested();
  };
  while (!wait(lock, Deadline(std::min(next_tick, deadline.when())), over)) {
    if (deadline.expired()) {
      break;
    }
    next_tick += interval;
    if (options.on_waiting) {
      const std::string names = rank_names(last_missing.world_ranks, options.counts) +
                                (last_refusals.empty() ? "" : "; refused: ") + last_refusals;
      lock.unlock();
      options.on_waiting(names);
      lock.lock();
    }
  }
  if (phase == Phase::kJoined) {
    return {};
  }
  if (phase == Phase::kJoining && options.abandon.stop_requested()) {
    phase = Phase::kFailed;
    failure = Error{ErrorCode::kFailedPrecondition, "abandoned"};
  }
  if (phase == Phase::kJoining) {
    if (options.stop.stop_requested()) {
      failure = Error{ErrorCode::kFailedPrecondition, "closed"};
    } else {
      failure = why_not_joined(deadline.when() - start);
    }
    phase = Phase::kFailed;
    failure = link->give_up(*failure);
  }
  return fail(*failure);
}

Result<std::unique_ptr<Session>> Session::join(JoinOptions options, Deadline deadline) {
  if (Result<void> valid = validate(options); !valid) {
    return fail(std::move(valid).error());
  }
  // Its destructor ends whatever has begun.
  std::unique_ptr<Session> session(new Session(std::make_unique<State>(std::move(options))));
  State& state = *session->state_;
  Result<Credentials> credentials = Credentials::load(state.options.network);
  if (!credentials) {
    return fail(std::move(credentials).error());
  }
  state.credentials = *std::move(credentials);
  if (Result<void> found = state.find(deadline); !found) {
    return fail(std::move(found).error());
  }
  if (Result<void> opened = state.open(); !opened) {
    return fail(std::move(opened).error());
  }
  if (state.options.on_listening && state.options.world_rank == 0) {
    state.options.on_listening(state.port);
  }
  if (Result<void> complete = state.wait_for_all(deadline); !complete) {
    if (state.options.abandon.stop_requested()) {
      session->abandon();
    } else {
      session->give_up(complete.error().message);  // rank 0 may have begun without waiting for us
    }
    return fail(std::move(complete).error());
  }
  return session;
}

// --- the session ---

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}

Session::~Session() {
  close();
}

std::uint32_t Session::epoch() const noexcept {
  return state_->epoch;
}

std::string_view Session::blob(std::uint32_t world_rank) const {
  return world_rank < state_->peers.size() ? std::string_view(state_->peers[world_rank].blob)
                                           : std::string_view();
}

std::string_view Session::peer_host(std::uint32_t world_rank) const {
  return world_rank < state_->peers.size() && !state_->peers[world_rank].addresses.empty()
             ? std::string_view(state_->peers[world_rank].addresses.front())
             : std::string_view();
}

std::span<const std::string> Session::peer_addresses(std::uint32_t world_rank) const {
  return world_rank < state_->peers.size() ? state_->peers[world_rank].addresses
                                           : std::span<const std::string>();
}

PeerState Session::peer_state(std::uint32_t world_rank) const noexcept {
  return world_rank < state_->num_ranks
             ? state_->peer_states[world_rank].load(std::memory_order_acquire)
             : PeerState::kLost;
}

std::optional<std::uint32_t> Session::first_to_give_up() const {
  const std::lock_guard lock(state_->mutex);
  return state_->gave_up.empty() ? std::nullopt : std::optional(state_->gave_up.front().first);
}

std::string Session::departure_text(std::uint32_t world_rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->departure_text(world_rank);
}

Result<void> Session::check_peers() const {
  const std::lock_guard lock(state_->mutex);
  if (state_->first_lost) {
    return fail(*state_->first_lost);
  }
  return {};
}

void Session::set_on_change(std::function<void()> on_change) {
  const auto shared = std::make_shared<const std::function<void()>>(std::move(on_change));
  bool changed_already = false;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->closed) {
      return;
    }
    state_->on_change = *shared ? shared : nullptr;
    changed_already = *shared && (state_->first_lost || state_->num_left > 0);
  }
  if (changed_already) {
    (*shared)();
  }
}

bool Session::State::is_broken(Collective what) const {
  const bool hub_left = has_left(peer_states[0].load(std::memory_order_relaxed));
  const std::uint32_t num_needed_left = what == Collective::kBarrier ? num_left : num_left_of_role;
  return closed || first_lost || hub_left || num_needed_left > 0;
}

Error Session::State::why_broken(Collective what) const {
  if (closed) {
    return {ErrorCode::kFailedPrecondition, "closed"};
  }
  if (first_lost) {
    return *first_lost;
  }
  if (!gave_up.empty()) {  // others may have left because of it
    return {ErrorCode::kPeerLost, departure_text(gave_up.front().first)};
  }
  if (has_left(peer_states[0].load(std::memory_order_relaxed))) {
    return {ErrorCode::kPeerLost,
            rank_name(0, options.counts) + " left, and it relays barriers and gathers"};
  }
  std::string names;
  for (std::uint32_t rank = 1; rank < num_ranks; ++rank) {
    const bool is_needed = what == Collective::kBarrier ||
                           (rank < options.counts.num_ffn_ranks) == (options.role == Role::kFfn);
    if (is_needed && has_left(peer_states[rank].load(std::memory_order_relaxed))) {
      names += (names.empty() ? "" : ", ") + rank_name(rank, options.counts);
    }
  }
  return {ErrorCode::kPeerLost, names + (what == Collective::kBarrier
                                             ? " left, and a barrier needs every rank"
                                             : " left, and a gather needs every rank of the role")};
}

Error Session::State::why_late(Collective what, std::uint32_t round,
                               Deadline::Clock::duration waited) const {
  const bool known =
      last_missing.what == what && last_missing.round == round && !last_missing.world_ranks.empty();
  const std::string who =
      known ? rank_names(last_missing.world_ranks, options.counts) + " did not reach the "
            : "not every rank reached the ";
  return {ErrorCode::kDeadlineExceeded, who +
                                            (what == Collective::kBarrier ? "barrier" : "gather") +
                                            " within " + duration_text(waited)};
}

Result<void> Session::State::enter(std::unique_lock<std::mutex>& lock, Rounds& rounds,
                                   Collective what, Deadline deadline) {
  const bool free = wait(lock, deadline, [&] { return !rounds.busy || closed; });
  if (closed) {
    return fail(ErrorCode::kFailedPrecondition, "closed");
  }
  if (!free) {
    return fail(ErrorCode::kDeadlineExceeded, "another thread of this rank is in the same call");
  }
  if (rounds.taken == rounds.begun && is_broken(what)) {
    return fail(why_broken(what));
  }
  rounds.busy = true;
  return {};
}

void Session::State::exit(Rounds& rounds) {
  rounds.busy = false;
  if (num_waiters > 0) {
    changed.notify_all();
  }
}

Result<void> Session::State::wait_round(std::unique_lock<std::mutex>& lock, Rounds& rounds,
                                        Collective what, Deadline deadline) {
  const auto start = Deadline::Clock::now();
  const auto complete = [&] { return rounds.complete == rounds.begun; };
  const auto over = [&] { return complete() || is_broken(what); };
  bool ended = over();
  if (!ended && !deadline.is_never()) {
    const auto ask_before =
        std::min<Deadline::Clock::duration>(kAskBefore, deadline.remaining() / 4);
    ended = wait(lock, Deadline(deadline.when() - ask_before), over);
    if (!ended && !deadline.expired() && !std::exchange(rounds.asked, true)) {
      link->query({.what = what, .round = rounds.begun - 1});
    }
  }
  ended = ended || wait(lock, deadline, over);
  if (!closed && complete()) {
    rounds.taken = rounds.begun;
    rounds.asked = false;
    return {};
  }
  return fail(ended ? why_broken(what)
                    : why_late(what, rounds.begun - 1, std::max(start, deadline.when()) - start));
}

Result<void> Session::barrier(Deadline deadline) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  State::Rounds& rounds = state.barriers;
  if (Result<void> entered = state.enter(lock, rounds, Collective::kBarrier, deadline); !entered) {
    return entered;
  }
  if (rounds.taken == rounds.begun) {  // else: a repeat after a deadline
    state.link->arrive(rounds.begun++);
    state.wake_others();
  }
  Result<void> result = state.wait_round(lock, rounds, Collective::kBarrier, deadline);
  state.exit(rounds);
  return result;
}

Result<std::vector<std::string>> Session::all_gather(std::string_view mine, Deadline deadline) {
  if (mine.size() > kContributionBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "a contribution has " + std::to_string(mine.size()) +
                                                 " bytes, at most " +
                                                 std::to_string(kContributionBytesMax));
  }
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  State::Rounds& rounds = state.gathers;
  if (Result<void> entered = state.enter(lock, rounds, Collective::kGather, deadline); !entered) {
    return fail(std::move(entered).error());
  }
  if (state.num_of_role() == 1) {
    state.exit(rounds);
    return std::vector<std::string>{std::string(mine)};
  }
  Result<std::vector<std::string>> result = std::vector<std::string>();
  if (rounds.taken == rounds.begun) {
    state.contribution = mine;
    state.link->contribute(rounds.begun++, mine);
    state.wake_others();
  } else if (state.contribution != mine) {  // a repeat after a deadline
    state.exit(rounds);
    return fail(ErrorCode::kInvalidArgument,
                "a gather has begun with another contribution; repeat it with the same one");
  }
  if (Result<void> waited = state.wait_round(lock, rounds, Collective::kGather, deadline);
      !waited) {
    result = fail(std::move(waited).error());
  } else {
    result = std::exchange(state.contributions, {});
  }
  state.exit(rounds);
  return result;
}

std::string Session::State::departure_text(std::uint32_t world_rank) const {
  const auto found = std::find_if(gave_up.begin(), gave_up.end(),
                                  [=](const auto& one) { return one.first == world_rank; });
  return rank_name(world_rank, options.counts) +
         (found == gave_up.end() ? " has left the job" : " gave up: " + found->second);
}

void Session::State::end(const std::optional<Goodbye>& goodbye) noexcept {
  const std::lock_guard closing(close_mutex);
  {
    const std::lock_guard lock(mutex);
    if (closed) {
      return;
    }
    closed = true;
    on_change = nullptr;
    if (link && goodbye) {
      link->leave(*goodbye);
    }
  }
  changed.notify_all();
  if (loop) {
    loop->stop();
  }
  const std::lock_guard lock(mutex);
  link.reset();
  loop.reset();
}

void Session::close() noexcept {
  state_->end(Goodbye{});
}

void Session::give_up(std::string_view reason) noexcept {
  std::string text(reason.substr(0, kTextBytesMax));
  std::replace_if(
      text.begin(), text.end(),
      [](char c) {
        return !is_printable({&c, 1});
      },
      '?');
  state_->end(Goodbye{.gave_up = true, .reason = std::move(text)});
}

void Session::abandon() noexcept {
  state_->end(std::nullopt);
}

}  // namespace afd::session
