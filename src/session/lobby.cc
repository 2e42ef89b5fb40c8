#include "session/lobby.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "session/address.h"

namespace afd::session {
namespace {

using std::chrono::milliseconds;

// More connections than these at once that have not said hello are no job of ours.
constexpr std::size_t kStrangersMax = 64;
constexpr int kAcceptsAtOnce = 64;
constexpr milliseconds kAcceptPause{100};  // out of file descriptors

constexpr std::chrono::minutes kLogPause{1};

}  // namespace

Lobby::Lobby(EventLoop& loop, base::Fd listener, Options options, OnHello on_hello)
    : loop_(loop),
      options_(options),
      on_hello_(std::move(on_hello)),
      listener_(loop, std::move(listener)),
      accept_again_(loop) {}

void Lobby::open() {
  listener_.start_reading([this] { on_connections(); });
}

void Lobby::on_connections() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Result<base::Fd> fd = accept_from(listener_.fd());
    if (fd) {
      add(std::move(*fd));
      continue;
    }
    if (fd.error().code != ErrorCode::kWouldBlock) {
      listener_.stop_reading();
      accept_again_.start(kAcceptPause, [this] { open(); });
    }
    return;
  }
}

void Lobby::add(base::Fd fd) {
  if (strangers_.size() >= kStrangersMax) {
    make_room();
  }
  const StrangerId id = next_id_++;
  Stranger& stranger = strangers_[id];
  stranger.host = remote_host(fd.get());
  // Without a secret a nonce is answered as well: that there is none.
  const FrameSet accepted = options_.credentials.secret
                                ? frame_bit(FrameType::kNonce)
                                : frame_bit(FrameType::kNonce) | frame_bit(FrameType::kHello);
  stranger.connection = std::make_unique<Connection>(loop_, std::move(fd), accepted);
  stranger.connection->watch(options_.network);
  if (options_.credentials.tls) {
    stranger.connection->encrypt(TlsStream::accept(*options_.credentials.tls));
  }
  stranger.timer = std::make_unique<LoopTimer>(loop_);
  stranger.timer->start(options_.hello_timeout, [this, id] {
    if (const auto late = strangers_.find(id); late != strangers_.end()) {
      if (late->second.stage != Stage::kRefused) {
        log_refusal(late->second, "it said no hello in time");
      }
      strangers_.erase(late);
    }
  });
  stranger.connection->start_reading([this, id] { on_readable(id); });
}

// Every turn ends a stranger, or lets one say more that had said nothing.
void Lobby::make_room() {
  while (strangers_.size() >= kStrangersMax) {
    const Strangers::iterator victim = next_to_go();
    const StrangerId id = victim->first;
    if (victim->second.stage == Stage::kSilent) {
      on_readable(id);  // what it said may be here, unread
      if (const auto still = strangers_.find(id);
          still != strangers_.end() && still->second.stage == Stage::kSilent) {
        strangers_.erase(still);
      }
    } else {
      if (victim->second.stage > Stage::kSilent) {
        log_refusal(victim->second, "too many connections that have not said hello");
      }
      strangers_.erase(victim);
    }
  }
}

Lobby::Strangers::iterator Lobby::next_to_go() {
  std::map<std::string_view, std::size_t> counts;
  for (const auto& [id, stranger] : strangers_) {
    ++counts[stranger.host];
  }
  const auto most = std::max_element(
      counts.begin(), counts.end(),
      [](const auto& one, const auto& other) { return one.second < other.second; });
  std::vector<Strangers::iterator> candidates;
  for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++stranger) {
    if (stranger->second.host != most->first) {
      continue;
    }
    if (!candidates.empty() && stranger->second.stage < candidates.front()->second.stage) {
      candidates.clear();
    }
    if (candidates.empty() || stranger->second.stage == candidates.front()->second.stage) {
      candidates.push_back(stranger);
    }
  }
  const bool oldest = candidates.front()->second.stage <= Stage::kSilent;
  return candidates[oldest ? 0 : random_() % candidates.size()];
}

void Lobby::on_readable(StrangerId id) {
  const Strangers::iterator found = strangers_.find(id);
  if (found == strangers_.end()) {
    return;
  }
  Stranger& stranger = found->second;
  Connection& connection = *stranger.connection;
  if (stranger.stage == Stage::kRefused) {
    connection.discard();
    if (connection.ended()) {
      strangers_.erase(found);
    }
    return;
  }
  connection.read(Connection::ReadUntil::kOneRead);
  while (true) {
    const Result<std::optional<FrameBuffer::Frame>> frame = connection.next();
    if (!frame && options_.credentials.secret && stranger.stage == Stage::kSilent &&
        connection.next_type() == FrameType::kHello) {
      deny(stranger, Denial::kSecretNeeded, "it knows of no secret");
      return;
    }
    if (!frame) {
      log_refusal(stranger, frame.error().message);
      if (options_.credentials.tls) {
        stranger.stage = Stage::kRefused;  // an alert says why, and needs a moment to arrive
      } else {
        strangers_.erase(found);
      }
      return;
    }
    if (!*frame) {
      break;
    }
    if (!handle(id, stranger, **frame)) {
      return;
    }
  }
  if (connection.ended()) {
    strangers_.erase(found);
  }
}

bool Lobby::handle(StrangerId id, Stranger& stranger, const FrameBuffer::Frame& frame) {
  switch (frame.header.type) {
    case FrameType::kNonce:
      return take_nonce(stranger, frame);
    case FrameType::kProof:
      return take_proof(stranger, frame);
    default:  // a hello: the connection takes nothing else
      on_hello_(id, frame);
      return false;
  }
}

bool Lobby::take_nonce(Stranger& stranger, const FrameBuffer::Frame& frame) {
  if (!options_.credentials.secret) {
    return deny(stranger, Denial::kNoSecret, "it wants a proof, and there is no secret here");
  }
  if (frame.header.version != kProtocolVersion) {
    return deny(stranger, Denial::kOtherVersion,
                "its protocol version is " + std::to_string(frame.header.version));
  }
  const Result<Nonce> theirs = decode_nonce(frame.payload);
  const Result<Nonce> ours = fresh_nonce();
  if (!theirs || !ours) {
    log_refusal(stranger, theirs ? ours.error().message : theirs.error().message);
    stranger.stage = Stage::kRefused;  // its time ends it
    return false;
  }
  stranger.keys = derive_keys(*options_.credentials.secret, {.member = *theirs, .hub = *ours});
  stranger.stage = Stage::kProving;
  stranger.connection->accept(frame_bit(FrameType::kProof));
  stranger.connection->send(share(encode_nonce(*ours)));
  return true;
}

bool Lobby::take_proof(Stranger& stranger, const FrameBuffer::Frame& frame) {
  const Result<Proof> proof = decode_proof(frame.payload);
  if (!proof || !is_same(*proof, stranger.keys.member_proof)) {
    return deny(stranger, Denial::kSecretDiffers, "its secret differs");
  }
  stranger.stage = Stage::kProven;
  stranger.connection->accept(frame_bit(FrameType::kHello));
  stranger.connection->send(share(encode_proof(stranger.keys.hub_proof)));
  stranger.connection->protect(FrameSeal(stranger.keys.hub_seal_key),
                               FrameSeal(stranger.keys.member_seal_key));
  return true;
}

bool Lobby::deny(Stranger& stranger, Denial denial, std::string_view why) {
  log_refusal(stranger, why);
  stranger.stage = Stage::kRefused;
  stranger.connection->send(share(encode_denied(denial)));
  return false;
}

void Lobby::log_refusal(const Stranger& stranger, std::string_view why) {
  if (!options_.credentials.secret && !options_.credentials.tls) {
    return;
  }
  ++num_unlogged_;
  if (!log_not_before_.expired()) {
    return;
  }
  log_not_before_ = Deadline::after(kLogPause);
  base::log(base::LogLevel::kWarn, "refused a connection that is no rank of this job",
            {{"host", stranger.host},
             {"why", why},
             {"refused_since_last_logged", std::exchange(num_unlogged_, 0)}});
}

void Lobby::drop(StrangerId id) {
  strangers_.erase(id);
}

void Lobby::refuse(StrangerId id, const Error& error) {
  if (const auto stranger = strangers_.find(id); stranger != strangers_.end()) {
    stranger->second.stage = Stage::kRefused;
    stranger->second.connection->send(share(encode_refused(error)));
  }
}

std::unique_ptr<Connection> Lobby::take(StrangerId id) {
  const auto stranger = strangers_.find(id);
  std::unique_ptr<Connection> connection = std::move(stranger->second.connection);
  strangers_.erase(stranger);
  return connection;
}

void Lobby::refuse_all(const Error& error) {
  on_connections();
  for (const auto& [id, stranger] : strangers_) {
    if (stranger.stage != Stage::kRefused) {
      refuse(id, error);
    }
  }
}

void Lobby::finish(Deadline deadline) noexcept {
  for (auto& [id, stranger] : strangers_) {
    stranger.connection->finish(deadline);
  }
}

}  // namespace afd::session
