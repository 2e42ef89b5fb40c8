#include "session/member.h"

#include <algorithm>
#include <utility>

#include <afd/deadline.h>

#include "session/wording.h"

namespace afd::session {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kDelayMin{10};
constexpr milliseconds kDelayMax{200};
constexpr milliseconds kFlushTime{100};

constexpr FrameSet kWhileJoining = frame_bit(FrameType::kWaiting) | frame_bit(FrameType::kRefused) |
                                   frame_bit(FrameType::kPeer) | frame_bit(FrameType::kStart) |
                                   frame_bit(FrameType::kGoodbye);
constexpr FrameSet kAfterJoining =
    frame_bit(FrameType::kWaiting) | frame_bit(FrameType::kBarrierReleased) |
    frame_bit(FrameType::kGathered) | frame_bit(FrameType::kGone) | frame_bit(FrameType::kGoodbye);

}  // namespace

Member::Member(EventLoop& loop, const std::vector<Address>& addresses, const JoinOptions& options,
               const Credentials& credentials, LinkEvents& events)
    : loop_(loop),
      addresses_(addresses),
      there_(addresses.front().text),
      options_(options),
      credentials_(credentials),
      events_(events),
      timer_(loop),
      delay_(kDelayMin),
      blobs_(num_ranks()) {}

std::uint32_t Member::num_ranks() const {
  return options_.counts.num_attention_ranks + options_.counts.num_ffn_ranks;
}

void Member::start() {
  // Also where a connection that has begun neither stands nor fails: who is missing has a name.
  events_.missing({.world_ranks = {0}}, "the connection is not answered");
  connect();
}

void Member::connect() {
  Result<base::Fd> fd = start_connecting(addresses_[num_attempts_++ % addresses_.size()]);
  if (!fd) {
    try_again(fd.error().message);
    return;
  }
  const FrameSet accepted = credentials_.secret
                                ? frame_bit(FrameType::kNonce) | frame_bit(FrameType::kDenied)
                                : kWhileJoining | frame_bit(FrameType::kDenied);
  connection_ = std::make_unique<Connection>(loop_, std::move(*fd), accepted);
  connection_->when_connected([this] { on_connected(); });
  // A host that is not there takes the kernel minutes. Ends with the hello: what hears that has to
  // be believed until its connection ends.
  timer_.start(options_.hello_timeout, [this] { try_again("the connection is not answered"); });
}

void Member::on_connected() {
  if (const Result<void> stands = connected(connection_->fd()); !stands) {
    try_again(stands.error().message);
    return;
  }
  hub_addresses_ = {remote_host(connection_->fd())};
  connection_->watch(options_.network);
  if (credentials_.tls) {
    connection_->encrypt(TlsStream::connect(*credentials_.tls, options_.host));
  }
  events_.missing({.world_ranks = {0}}, "connected, but there is no answer yet");
  if (!credentials_.secret) {
    greet();
  } else {
    const Result<Nonce> nonce = fresh_nonce();
    if (!nonce) {
      fail_join(nonce.error());
      return;
    }
    phase_ = Phase::kProving;
    nonce_ = *nonce;
    send(encode_nonce(nonce_));
  }
  connection_->start_reading([this] { on_readable(); });
}

void Member::greet() {
  timer_.stop();
  phase_ = Phase::kGreeted;
  std::vector<std::string> addresses = options_.network.addresses;
  if (addresses.empty()) {
    addresses = {local_host(connection_->fd())};
  }
  send(encode_hello({.identity = {.role = options_.role, .role_rank = options_.role_rank},
                     .counts = options_.counts,
                     .must_match = options_.must_match,
                     .addresses = std::move(addresses),
                     .blob = options_.blob}));
}

void Member::try_again(std::string_view why) {
  connection_.reset();
  phase_ = Phase::kConnecting;
  std::fill(blobs_.begin(), blobs_.end(), std::nullopt);
  events_.missing({.world_ranks = {0}}, why);
  // Ranks that a switch cut off together do not come back in step.
  const auto pause = delay_ * 3 / 4 + milliseconds(random_() % (delay_.count() / 4 + 1));
  timer_.start(pause, [this] { connect(); });
  delay_ = std::min(delay_ * 2, kDelayMax);
}

void Member::on_readable() {
  connection_->read(Connection::ReadUntil::kOneRead);
  while (connection_) {
    const Result<std::optional<FrameBuffer::Frame>> frame = connection_->next();
    if (!frame) {
      on_malformed(frame.error());
    } else if (*frame) {
      handle(**frame);
    } else {
      break;
    }
  }
  if (connection_ && connection_->ended()) {
    on_ended();
  }
}

void Member::handle(const FrameBuffer::Frame& frame) {
  if (phase_ == Phase::kProving) {
    handle_while_proving(frame);
  } else if (phase_ == Phase::kJoined) {
    handle_after_joining(frame);
  } else {
    handle_while_joining(frame);
  }
}

void Member::handle_while_proving(const FrameBuffer::Frame& frame) {
  switch (frame.header.type) {
    case FrameType::kNonce:
      take_nonce(frame);
      return;
    case FrameType::kProof: {
      const Result<Proof> proof = decode_proof(frame.payload);
      if (!proof || !is_same(*proof, keys_.hub_proof)) {
        fail_join({ErrorCode::kProtocolMismatch,
                   "what listens at " + there_ + " does not know the shared secret"});
        return;
      }
      connection_->protect(FrameSeal(keys_.member_seal_key), FrameSeal(keys_.hub_seal_key));
      connection_->accept(kWhileJoining);
      greet();
      return;
    }
    default:
      on_denied(frame);
      return;
  }
}

void Member::take_nonce(const FrameBuffer::Frame& frame) {
  const Result<Nonce> theirs = decode_nonce(frame.payload);
  if (!theirs || frame.header.version != kProtocolVersion) {
    on_malformed(theirs ? Error{ErrorCode::kProtocolMismatch, "a nonce of another version"}
                        : theirs.error());
    return;
  }
  keys_ = derive_keys(*credentials_.secret, {.member = nonce_, .hub = *theirs});
  connection_->accept(frame_bit(FrameType::kProof) | frame_bit(FrameType::kDenied));
  send(encode_proof(keys_.member_proof));
}

// Nobody has proved anything: the text is ours, not the sender's.
void Member::on_denied(const FrameBuffer::Frame& frame) {
  const Result<Denial> denial = decode_denied(frame.payload);
  if (!denial) {
    on_malformed(denial.error());
    return;
  }
  const std::string hub = rank_name(0, options_.counts);
  const std::string there = " at " + there_;
  switch (*denial) {
    case Denial::kSecretDiffers:
      fail_join({ErrorCode::kInvalidArgument, "the shared secret in " +
                                                  options_.network.secret_file + " differs from " +
                                                  hub + "'s" + there});
      return;
    case Denial::kSecretNeeded:
      fail_join({ErrorCode::kInvalidArgument,
                 hub + there + " asks for a shared secret, and this rank was given none"});
      return;
    case Denial::kNoSecret:
      fail_join({ErrorCode::kInvalidArgument,
                 hub + there + " was given no shared secret, and this rank was"});
      return;
    case Denial::kOtherVersion:
      fail_join({ErrorCode::kProtocolMismatch,
                 "protocol version differs: this rank has " + std::to_string(kProtocolVersion) +
                     ", " + hub + there + " has " + std::to_string(frame.header.version)});
      return;
  }
}

void Member::handle_while_joining(const FrameBuffer::Frame& frame) {
  switch (frame.header.type) {
    case FrameType::kWaiting: {
      const Result<Waiting> waiting = decode_waiting(frame.payload);
      if (!waiting) {
        on_malformed(waiting.error());
        return;
      }
      phase_ = Phase::kAccepted;
      delay_ = kDelayMin;
      events_.missing(*waiting, {});
      return;
    }
    case FrameType::kRefused: {
      Result<Error> refusal = decode_refused(frame.payload);
      if (!refusal) {
        on_malformed(refusal.error());
      } else if (refusal->code == ErrorCode::kWouldBlock) {
        try_again(refusal->message);
      } else {
        fail_join(std::move(*refusal));
      }
      return;
    }
    case FrameType::kPeer: {
      Result<PeerBlob> peer = decode_peer(frame.payload);
      if (!peer) {
        on_malformed(peer.error());
      } else if (peer->world_rank >= num_ranks() || blobs_[peer->world_rank]) {
        on_malformed({ErrorCode::kProtocolMismatch, "a blob of an unexpected rank"});
      } else {
        phase_ = Phase::kAccepted;  // the last to arrive hears of no waiting
        if (peer->world_rank == 0 && peer->addresses.empty()) {
          peer->addresses = hub_addresses_;
        }
        blobs_[peer->world_rank] = *std::move(peer);
      }
      return;
    }
    case FrameType::kStart: {
      const Result<std::uint32_t> epoch = decode_start(frame.payload);
      if (!epoch) {
        on_malformed(epoch.error());
      } else {
        begin(*epoch);
      }
      return;
    }
    case FrameType::kDenied:
      on_denied(frame);
      return;
    case FrameType::kGoodbye:
      try_again("it left while ranks were still arriving");
      return;
    default:
      return;  // kept out by the connection's set of accepted frames
  }
}

void Member::begin(std::uint32_t epoch) {
  std::vector<PeerBlob> blobs;
  for (std::optional<PeerBlob>& blob : blobs_) {
    if (!blob) {
      on_malformed({ErrorCode::kProtocolMismatch, "a start without every rank's blob"});
      return;
    }
    blobs.push_back(*std::exchange(blob, std::nullopt));
  }
  phase_ = Phase::kJoined;
  connection_->accept(kAfterJoining);
  events_.joined(epoch, std::move(blobs));
}

void Member::handle_after_joining(const FrameBuffer::Frame& frame) {
  // Decodes and raises the event, or reports what is wrong.
  const auto raise = [this](auto&& decoded, auto&& event) {
    if (decoded) {
      event(*decoded);
    } else {
      on_malformed(decoded.error());
    }
  };
  switch (frame.header.type) {
    case FrameType::kWaiting:
      raise(decode_waiting(frame.payload), [this](auto& waiting) { events_.missing(waiting, {}); });
      return;
    case FrameType::kBarrierReleased:
      raise(decode_barrier(frame.payload), [this](std::uint32_t round) {
        if (std::exchange(open_barrier_, std::nullopt) != round) {
          on_malformed({ErrorCode::kProtocolMismatch, "the end of a barrier that is not open"});
        } else {
          events_.barrier_released(round);
        }
      });
      return;
    case FrameType::kGathered:
      raise(decode_gathered(frame.payload), [this](Gathered& gathered) {
        const std::uint32_t num_of_role = options_.role == Role::kAttention
                                              ? options_.counts.num_attention_ranks
                                              : options_.counts.num_ffn_ranks;
        if (std::exchange(open_gather_, std::nullopt) != gathered.round ||
            gathered.contributions.size() != num_of_role) {
          on_malformed({ErrorCode::kProtocolMismatch, "the end of a gather that is not open"});
        } else {
          events_.gathered(std::move(gathered));
        }
      });
      return;
    case FrameType::kGone:
      raise(decode_gone(frame.payload), [this](const Gone& gone) {
        if (gone.world_rank == 0 || gone.world_rank == options_.world_rank ||
            gone.world_rank >= num_ranks()) {
          on_malformed({ErrorCode::kProtocolMismatch, "news of an unexpected rank"});
        } else {
          events_.gone(gone);
        }
      });
      return;
    case FrameType::kGoodbye:
      raise(decode_goodbye(frame.payload), [this](const Goodbye& goodbye) {
        phase_ = Phase::kOver;
        connection_.reset();
        events_.gone(departure_of(0, goodbye));
      });
      return;
    default:
      return;  // kept out by the connection's set of accepted frames
  }
}

void Member::on_malformed(const Error& error) {
  if (phase_ != Phase::kJoined) {
    const bool is_tls = error.message.starts_with("TLS: ");
    fail_join({ErrorCode::kProtocolMismatch,
               "what listens at " + there_ +
                   (is_tls ? ": " : " does not speak the session protocol: ") + error.message});
    return;
  }
  phase_ = Phase::kOver;
  connection_.reset();
  events_.gone({.world_rank = 0,
                .how = Departure::kLost,
                .reason = "it sent what no rank sends: " + error.message});
}

void Member::on_ended() {
  const Phase phase = phase_;
  const std::string why = connection_->why_ended();
  if (phase == Phase::kProving || phase == Phase::kGreeted) {
    try_again("it ended the connection without an answer");
    return;
  }
  if (phase == Phase::kAccepted) {
    fail_join({ErrorCode::kPeerLost, rank_at_host(0, options_.counts, hub_addresses_) +
                                         " lost: " + why + " while ranks were still arriving"});
    return;
  }
  phase_ = Phase::kOver;
  connection_.reset();
  events_.gone({.world_rank = 0, .how = Departure::kLost, .reason = why});
}

void Member::fail_join(Error error) {
  phase_ = Phase::kOver;
  timer_.stop();
  connection_.reset();
  events_.join_failed(std::move(error));
}

void Member::send(std::string frame) {
  if (connection_) {
    connection_->send(share(std::move(frame)));
  }
}

// The goodbye in leave() says it; to rank 0 this rank is then missing again.
Error Member::give_up(Error error) {
  return error;
}

void Member::arrive(std::uint32_t round) {
  open_barrier_ = round;
  send(encode_barrier(round));
}

void Member::contribute(std::uint32_t round, std::string_view contribution) {
  open_gather_ = round;
  send(encode_gather(round, contribution));
}

void Member::query(Query query) {
  send(encode_query(query));
}

void Member::leave(const Goodbye& goodbye) noexcept {
  if (connection_ && phase_ != Phase::kConnecting && phase_ != Phase::kProving &&
      phase_ != Phase::kOver) {
    send(encode_goodbye(goodbye));
    connection_->finish(Deadline::after(kFlushTime));
  }
}

}  // namespace afd::session
