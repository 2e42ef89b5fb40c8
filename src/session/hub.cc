#include "session/hub.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <sys/random.h>

#include <afd/deadline.h>

#include "base/log.h"
#include "session/wording.h"

namespace afd::session {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFlushTime{100};
// Who is missing is told at once in a job of so few ranks; in a larger one, where that would be
// ranks squared, only so often.
constexpr std::uint32_t kTellsAtOnceRanks = 64;
constexpr milliseconds kTellPause{100};
// How long a join that has failed waits for ranks that are just arriving: longer than the longest
// pause between two of their attempts.
constexpr milliseconds kStragglerTime{300};
constexpr std::size_t kShownValueBytes = 200;
constexpr std::size_t kShownRefusalsBytes = 1'000;

constexpr FrameSet kWhileJoining = frame_bit(FrameType::kGoodbye);
constexpr FrameSet kAfterJoining = frame_bit(FrameType::kBarrier) | frame_bit(FrameType::kGather) |
                                   frame_bit(FrameType::kQuery) | frame_bit(FrameType::kGoodbye);

std::uint32_t fresh_epoch() {
  std::uint32_t epoch = 0;
  while (epoch == 0) {
    if (::getentropy(&epoch, sizeof(epoch)) != 0) {
      epoch =
          static_cast<std::uint32_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    }
  }
  return epoch;
}

const std::string* find(const std::vector<std::pair<std::string, std::string>>& pairs,
                        std::string_view key) {
  for (const auto& [known, value] : pairs) {
    if (known == key) {
      return &value;
    }
  }
  return nullptr;
}

std::string shown(const std::string* value) {
  if (value == nullptr) {
    return "no value";
  }
  return value->size() <= kShownValueBytes ? *value : value->substr(0, kShownValueBytes) + "...";
}

std::string difference(std::string_view key, std::string_view their_name, const std::string* theirs,
                       std::string_view our_name, const std::string* ours) {
  std::string text(key);
  text += " differs: ";
  text += their_name;
  text += " has " + shown(theirs) + ", ";
  text += our_name;
  text += " has " + shown(ours);
  return text;
}

}  // namespace

Result<std::unique_ptr<Hub>> Hub::listen(EventLoop& loop, const Address& address,
                                         const JoinOptions& options, const Credentials& credentials,
                                         LinkEvents& events) {
  Result<base::Fd> listener = listen_at(address);
  if (!listener) {
    return fail(std::move(listener).error());
  }
  return std::unique_ptr<Hub>(new Hub(loop, std::move(*listener), options, credentials, events));
}

Hub::Hub(EventLoop& loop, base::Fd listener, const JoinOptions& options,
         const Credentials& credentials, LinkEvents& events)
    : options_(options),
      events_(events),
      lobby_(loop, std::move(listener),
             {.hello_timeout = options.hello_timeout,
              .network = options.network,
              .credentials = credentials},
             [this](Lobby::StrangerId id, const FrameBuffer::Frame& hello) { admit(id, hello); }),
      tell_again_(loop),
      peers_(options.counts.num_attention_ranks + options.counts.num_ffn_ranks),
      told_(peers_.size()),
      stragglers_(loop) {
  barrier_.arrived.resize(peers_.size());
  attention_gather_.round.arrived.resize(options.counts.num_attention_ranks);
  attention_gather_.contributions.resize(options.counts.num_attention_ranks);
  ffn_gather_.round.arrived.resize(options.counts.num_ffn_ranks);
  ffn_gather_.contributions.resize(options.counts.num_ffn_ranks);
}

std::string Hub::name(std::uint32_t world_rank) const {
  return rank_name(world_rank, options_.counts);
}

// Also of a rank that this job does not have.
std::string Hub::name(HelloIdentity identity) const {
  return std::string(to_string(identity.role)) + " rank " + std::to_string(identity.role_rank);
}

void Hub::start() {
  tell_who_is_missing();
  lobby_.open();
}

// --- hellos ---

void Hub::admit(Lobby::StrangerId stranger, const FrameBuffer::Frame& frame) {
  const Result<HelloIdentity> identity = decode_hello_identity(frame.payload);
  const bool same_version = frame.header.version == kProtocolVersion;
  Result<Hello> hello = same_version ? decode_hello(frame.payload) : Hello();
  if (!identity || !hello) {
    lobby_.drop(stranger);
    return;
  }
  if (failure_) {
    tell_failure(stranger, *identity);
    return;
  }
  // A second holder of a rank is refused before its values are looked at: it may be of another job,
  // and must not end this one.
  const std::optional<std::uint32_t> world_rank = world_rank_of(*identity);
  if (world_rank && (*world_rank == 0 || peers_[*world_rank].connection)) {
    lobby_.refuse(stranger,
                  {ErrorCode::kInvalidArgument, name(*world_rank) + " is already present"});
    return;
  }
  if (world_rank && phase_ == Phase::kJoined) {
    // Perhaps the next incarnation of a job that is still ending: it may try again.
    lobby_.refuse(stranger,
                  {ErrorCode::kWouldBlock, "the job there has started, and " + name(*world_rank) +
                                               " is no longer part of it"});
    return;
  }
  const std::string problem =
      same_version ? differences(*hello) : version_difference(*identity, frame.header.version);
  if (problem.empty()) {
    take_in(stranger, *world_rank, std::move(*hello));  // equal counts: it has one
    return;
  }
  refuse_for(stranger, *identity, problem);
}

// The others wait on: it may have been started wrongly, or be of another job, and the right one
// come. If this rank is the one that is wrong, all others are refused and say so.
void Hub::refuse_for(Lobby::StrangerId stranger, HelloIdentity identity,
                     const std::string& problem) {
  lobby_.refuse(stranger, {ErrorCode::kProtocolMismatch, problem});
  if (phase_ != Phase::kJoining) {
    return;
  }
  std::string& known = refusals_[world_rank_of(identity).value_or(num_ranks())];
  if (known == problem) {
    return;  // It tries again and again.
  }
  known = problem;
  base::log(base::LogLevel::kWarn, "refused a rank whose settings differ", {{"why", problem}});
  tell_refusals();
}

void Hub::tell_refusals() {
  std::string all;
  for (const auto& [rank, problem] : refusals_) {
    if (all.size() < kShownRefusalsBytes) {
      all += (all.empty() ? "" : "; ") + problem;
    }
  }
  events_.refused(all);
}

std::optional<std::uint32_t> Hub::world_rank_of(HelloIdentity identity) const {
  const bool is_attention = identity.role == Role::kAttention;
  const std::uint32_t num_of_role =
      is_attention ? options_.counts.num_attention_ranks : options_.counts.num_ffn_ranks;
  if (identity.role_rank >= num_of_role) {
    return std::nullopt;
  }
  return identity.role_rank + (is_attention ? options_.counts.num_ffn_ranks : 0);
}

std::string Hub::version_difference(HelloIdentity identity, std::uint16_t version) const {
  const std::string theirs = std::to_string(version);
  const std::string ours = std::to_string(kProtocolVersion);
  return difference("protocol version", name(identity), &theirs, name(0), &ours);
}

std::string Hub::differences(const Hello& hello) const {
  const std::string their_name = name(hello.identity);
  std::string all;
  const auto compare = [&](std::string_view key, const std::string* theirs,
                           const std::string* ours) {
    if (theirs != nullptr && ours != nullptr && *theirs == *ours) {
      return;
    }
    all += (all.empty() ? "" : "; ") + difference(key, their_name, theirs, name(0), ours);
  };
  const auto compare_counts = [&](std::string_view key, std::uint32_t theirs, std::uint32_t ours) {
    const std::string their_text = std::to_string(theirs);
    const std::string our_text = std::to_string(ours);
    compare(key, &their_text, &our_text);
  };
  compare_counts("num_attention_ranks", hello.counts.num_attention_ranks,
                 options_.counts.num_attention_ranks);
  compare_counts("num_ffn_ranks", hello.counts.num_ffn_ranks, options_.counts.num_ffn_ranks);
  for (const auto& [key, value] : options_.must_match) {
    compare(key, find(hello.must_match, key), &value);
  }
  for (const auto& [key, value] : hello.must_match) {
    if (find(options_.must_match, key) == nullptr) {
      compare(key, &value, nullptr);
    }
  }
  return all;
}

void Hub::take_in(Lobby::StrangerId stranger, std::uint32_t world_rank, Hello hello) {
  Peer& peer = peers_[world_rank];
  peer.connection = lobby_.take(stranger);
  peer.addresses = std::move(hello.addresses);
  peer.blob = std::move(hello.blob);
  peer.connection->accept(kWhileJoining);
  peer.connection->start_reading([this, world_rank] { on_peer_readable(world_rank); });
  if (refusals_.erase(world_rank) != 0) {
    tell_refusals();
  }
  tell_who_is_missing();
}

// --- the join ---

void Hub::tell_who_is_missing() {
  Waiting waiting;
  for (std::uint32_t rank = 1; rank < num_ranks(); ++rank) {
    if (!peers_[rank].connection) {
      waiting.world_ranks.push_back(rank);
    }
  }
  if (waiting.world_ranks.empty()) {
    begin();
    return;
  }
  events_.missing(waiting, {});
  if (num_ranks() > kTellsAtOnceRanks && !tell_not_before_.expired()) {
    if (!std::exchange(tells_later_, true)) {
      tell_again_.start(kTellPause, [this] {
        tells_later_ = false;
        if (phase_ == Phase::kJoining) {
          tell_who_is_missing();
        }
      });
    }
    return;
  }
  tell_not_before_ = Deadline::after(kTellPause);
  broadcast(share(encode_waiting(waiting)));
}

void Hub::begin() {
  phase_ = Phase::kJoined;
  const std::uint32_t epoch = fresh_epoch();
  peers_[0].blob = options_.blob;
  peers_[0].addresses = options_.network.addresses;
  std::vector<PeerBlob> blobs;
  for (std::uint32_t rank = 0; rank < num_ranks(); ++rank) {
    blobs.push_back({.world_rank = rank,
                     .addresses = peers_[rank].addresses,
                     .blob = std::exchange(peers_[rank].blob, {})});
    broadcast(share(encode_peer(blobs.back())));
  }
  broadcast(share(encode_start(epoch)));
  for (Peer& peer : peers_) {
    if (peer.connection) {
      peer.connection->accept(kAfterJoining);
    }
  }
  events_.joined(epoch, std::move(blobs));
}

void Hub::fail_join(const Error& error) {
  if (phase_ != Phase::kJoining) {
    return;
  }
  phase_ = Phase::kFailed;
  failure_ = error;
  told_[0] = true;
  for (std::uint32_t rank = 1; rank < num_ranks(); ++rank) {
    told_[rank] = peers_[rank].connection != nullptr;
  }
  broadcast(share(encode_refused(error)));
  stragglers_.start(kStragglerTime, [this] { events_.join_failed(*failure_); });
  end_join_if_all_are_told();
}

void Hub::tell_failure(Lobby::StrangerId stranger, HelloIdentity identity) {
  lobby_.refuse(stranger, *failure_);
  if (const std::optional<std::uint32_t> world_rank = world_rank_of(identity)) {
    told_[*world_rank] = true;
  }
  end_join_if_all_are_told();
}

void Hub::end_join_if_all_are_told() {
  if (std::all_of(told_.begin(), told_.end(), [](bool told) { return told; })) {
    events_.join_failed(*failure_);
  }
}

Error Hub::give_up(Error error) {
  if (failure_) {
    return *failure_;
  }
  // A wish to stop is this rank's own: the goodbye in leave() lets the others wait for its return.
  if (error.code == ErrorCode::kDeadlineExceeded) {
    fail_join(error);
  }
  return error;
}

// --- peers ---

void Hub::on_peer_readable(std::uint32_t world_rank) {
  if (!peers_[world_rank].connection) {
    return;
  }
  collect(world_rank, Connection::ReadUntil::kOneRead);
  if (peers_[world_rank].departed()) {
    // Another may have died before, and this one gone because of it: a loss is told first.
    collect_all();
    apply_departures();
  }
}

void Hub::collect(std::uint32_t world_rank, Connection::ReadUntil until) {
  Peer& peer = peers_[world_rank];
  peer.connection->read(until);
  while (!peer.departed()) {
    const Result<std::optional<FrameBuffer::Frame>> frame = peer.connection->next();
    if (!frame) {
      peer.fault = "it sent what no rank sends: " + frame.error().message;
    } else if (!*frame) {
      break;
    } else {
      handle(world_rank, **frame);
    }
  }
  if (!peer.departed() && peer.connection->ended()) {
    peer.fault = peer.connection->why_ended();
  }
  if (peer.departed()) {
    departing_.push_back(world_rank);
  }
}

void Hub::collect_all() {
  for (std::uint32_t rank = 1; rank < num_ranks(); ++rank) {
    if (peers_[rank].connection && !peers_[rank].departed()) {
      collect(rank, Connection::ReadUntil::kDrained);
    }
  }
}

void Hub::handle(std::uint32_t world_rank, const FrameBuffer::Frame& frame) {
  Peer& peer = peers_[world_rank];
  const auto check = [&peer](const auto& decoded) {
    if (!decoded) {
      peer.fault = "it sent what no rank sends: " + decoded.error().message;
    }
    return decoded.has_value();
  };
  const auto check_round = [&peer](bool in_turn) {
    if (!in_turn) {
      peer.fault = "it sent what no rank sends: a round out of turn";
    }
  };
  switch (frame.header.type) {
    case FrameType::kBarrier: {
      const Result<std::uint32_t> round = decode_barrier(frame.payload);
      if (check(round)) {
        check_round(arrive_from(world_rank, *round));
      }
      return;
    }
    case FrameType::kGather: {
      Result<Gather> gather = decode_gather(frame.payload);
      if (check(gather)) {
        check_round(contribute_from(world_rank, gather->round, std::move(gather->contribution)));
      }
      return;
    }
    case FrameType::kQuery: {
      const Result<Query> query = decode_query(frame.payload);
      if (check(query)) {
        query_from(world_rank, *query);
      }
      return;
    }
    case FrameType::kGoodbye:
      if (Result<Goodbye> goodbye = decode_goodbye(frame.payload); check(goodbye)) {
        peer.goodbye = *std::move(goodbye);
      }
      return;
    default:
      return;  // kept out by the connection's set of accepted frames
  }
}

void Hub::apply_departures() {
  // All of them first: while ranks are joining, departing makes a peer's place empty.
  std::vector<Gone> departures;
  for (const std::uint32_t rank : std::exchange(departing_, {})) {
    departures.push_back(departure_of(rank));
  }
  for (const Departure how : {Departure::kLost, Departure::kGaveUp, Departure::kLeft}) {
    for (const Gone& gone : departures) {
      if (gone.how == how) {
        depart(gone);
      }
    }
  }
}

Gone Hub::departure_of(std::uint32_t world_rank) const {
  const Peer& peer = peers_[world_rank];
  if (!peer.fault.empty()) {
    return {.world_rank = world_rank, .how = Departure::kLost, .reason = peer.fault};
  }
  return session::departure_of(world_rank, *peer.goodbye);
}

void Hub::depart(const Gone& gone) {
  const std::uint32_t world_rank = gone.world_rank;
  const bool lost = gone.how == Departure::kLost;
  Peer& peer = peers_[world_rank];
  peer.connection.reset();
  if (phase_ == Phase::kJoined) {
    lost_any_ = lost_any_ || lost;
    broadcast(share(encode_gone(gone)));
    events_.gone(gone);
  } else if (phase_ == Phase::kJoining && lost) {
    fail_join({ErrorCode::kPeerLost, rank_at_host(world_rank, options_.counts, peer.addresses) +
                                         " lost: " + gone.reason +
                                         " while ranks were still arriving"});
  } else if (phase_ == Phase::kJoining) {
    peer = Peer();
    tell_who_is_missing();
  }
}

void Hub::broadcast(const SharedFrame& frame) {
  for (Peer& peer : peers_) {
    if (peer.connection) {
      peer.connection->send(frame);
    }
  }
}

void Hub::leave(const Goodbye& goodbye) noexcept {
  if (phase_ == Phase::kJoined) {
    collect_all();
    apply_departures();
  }
  const Deadline deadline = Deadline::after(kFlushTime);
  if (failure_) {
    lobby_.refuse_all(*failure_);
  } else {
    broadcast(share(encode_goodbye(goodbye)));
  }
  for (Peer& peer : peers_) {
    if (peer.connection) {
      peer.connection->finish(deadline);
    }
  }
  lobby_.finish(deadline);
}

// --- collectives ---

// False: out of turn.
bool Hub::arrive_in(Round& round, std::uint32_t idx, std::uint32_t number) {
  if (number != round.number || round.arrived[idx]) {
    return false;
  }
  round.arrived[idx] = true;
  ++round.num_arrived;
  if (round.num_arrived == round.arrived.size()) {
    round.arrived.assign(round.arrived.size(), false);
    round.num_arrived = 0;
    round.askers.clear();
    ++round.number;
  }
  return true;
}

bool Hub::arrive_from(std::uint32_t world_rank, std::uint32_t number) {
  if (lost_any_) {
    return true;  // nothing completes after a loss, so that all ranks see the same end
  }
  if (!arrive_in(barrier_, world_rank, number)) {
    return false;
  }
  if (barrier_.number == number) {
    tell_askers(Collective::kBarrier, barrier_, 0);
    return true;
  }
  broadcast(share(encode_barrier_released(number)));
  events_.barrier_released(number);
  return true;
}

bool Hub::contribute_from(std::uint32_t world_rank, std::uint32_t number,
                          std::string contribution) {
  if (lost_any_) {
    return true;
  }
  const bool is_ffn = world_rank < options_.counts.num_ffn_ranks;
  Gathering& gathering = is_ffn ? ffn_gather_ : attention_gather_;
  const std::uint32_t first = first_rank_of(is_ffn);
  const auto num_of_role = static_cast<std::uint32_t>(gathering.contributions.size());
  if (!arrive_in(gathering.round, world_rank - first, number)) {
    return false;
  }
  gathering.contributions[world_rank - first] = std::move(contribution);
  if (gathering.round.number == number) {
    tell_askers(Collective::kGather, gathering.round, first);
    return true;
  }
  Gathered gathered{.round = number, .contributions = std::move(gathering.contributions)};
  gathering.contributions.assign(num_of_role, {});
  const SharedFrame frame = share(encode_gathered(gathered));
  for (std::uint32_t rank = first; rank < first + num_of_role; ++rank) {
    if (peers_[rank].connection) {
      peers_[rank].connection->send(frame);
    }
  }
  if (is_ffn) {
    events_.gathered(std::move(gathered));
  }
  return true;
}

void Hub::query_from(std::uint32_t world_rank, Query query) {
  const bool is_ffn = world_rank < options_.counts.num_ffn_ranks;
  const bool is_barrier = query.what == Collective::kBarrier;
  Round& round = is_barrier ? barrier_ : (is_ffn ? ffn_gather_ : attention_gather_).round;
  const bool asks_already =
      std::find(round.askers.begin(), round.askers.end(), world_rank) != round.askers.end();
  if (query.round == round.number && !asks_already) {
    round.askers.push_back(world_rank);
    tell_askers(query.what, round, is_barrier ? 0 : first_rank_of(is_ffn));
  }
}

void Hub::tell_askers(Collective what, const Round& round, std::uint32_t first_rank) {
  if (round.askers.empty()) {
    return;
  }
  Waiting waiting{.what = what, .round = round.number, .world_ranks = {}};
  for (std::uint32_t idx = 0; idx < round.arrived.size(); ++idx) {
    if (!round.arrived[idx]) {
      waiting.world_ranks.push_back(first_rank + idx);
    }
  }
  const SharedFrame frame = share(encode_waiting(waiting));
  for (const std::uint32_t rank : round.askers) {
    if (rank == 0) {
      events_.missing(waiting, {});
    } else if (peers_[rank].connection) {
      peers_[rank].connection->send(frame);
    }
  }
}

void Hub::arrive(std::uint32_t round) {
  arrive_from(0, round);
}

void Hub::contribute(std::uint32_t round, std::string_view contribution) {
  contribute_from(0, round, std::string(contribution));
}

void Hub::query(Query query) {
  query_from(0, query);
}

}  // namespace afd::session
