// The bytes of the session protocol: one header, fifteen frames, strict decoders.
//
// Pure functions over bytes: no sockets, no state, no allocation beyond what arrived. Everything a
// peer sends goes through here first, so every decoder refuses what an encoder would not have
// written: a length out of range, bytes that are missing or left over, an unknown code. An accepted
// payload encodes to the same bytes again. docs/wire-format.md has the layout; numbers are
// little-endian. The fuzz target is tests/fuzz/session_frame_fuzz.cc.
//
// Types from 32 on are what hosts need that do not trust the network: a nonce and a proof from each
// side that precede the hello (authentication.h).
//
// Threads: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <afd/config.h>
#include <afd/result.h>
#include <afd/topology.h>

namespace afd::session {

inline constexpr std::uint16_t kProtocolVersion = 2;

inline constexpr std::size_t kHeaderBytes = 12;
inline constexpr std::uint32_t kRanksMax = 1024;  ///< A + F
inline constexpr std::size_t kBlobBytesMax = std::size_t{64} << 10;
inline constexpr std::size_t kContributionBytesMax = std::size_t{64} << 10;
inline constexpr std::size_t kMustMatchPairsMax = 64;
inline constexpr std::size_t kKeyBytesMax = 64;
inline constexpr std::size_t kValueBytesMax = 1024;
inline constexpr std::size_t kTextBytesMax = 4096;
inline constexpr std::size_t kAddressesMax = 8;
inline constexpr std::size_t kAddressBytesMax = 255;
inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;  ///< of an HMAC-SHA256; a frame's seal has as many

enum class FrameType : std::uint16_t {
  kHello = 1,            ///< member to hub: who it is, what must match, its blob
  kWaiting = 2,          ///< hub to member: who is missing; the first one accepts the hello
  kRefused = 3,          ///< hub to member: the join is over, and why
  kPeer = 4,             ///< hub to member: one rank's blob
  kStart = 5,            ///< hub to member: everybody is there
  kBarrier = 6,          ///< member to hub: arrived
  kBarrierReleased = 7,  ///< hub to member: all arrived
  kGather = 8,           ///< member to hub: its contribution
  kGathered = 9,         ///< hub to member: all contributions of its role
  kQuery = 10,           ///< member to hub: who is missing in this round?
  kGone = 11,            ///< hub to member: a rank left, gave up or was lost
  kGoodbye = 12,         ///< either way: the connection's end that follows is no loss
  kNonce = 32,           ///< either way, before the hello: 32 fresh random bytes
  kProof = 33,           ///< either way, after the nonces: the sender knows the secret
  kDenied = 34,          ///< hub to stranger: no hello from you, and which of four reasons
};
/// "hello", "waiting", ...
std::string_view to_string(FrameType type);
/// The frames that a connection accepts: one bit a type.
using FrameSet = std::uint64_t;
inline constexpr FrameSet kAllFrames = ~FrameSet{0};
constexpr FrameSet frame_bit(FrameType type) {
  return FrameSet{1} << static_cast<std::uint32_t>(type);
}

/// The longest payload of a type. A header that announces more is refused before anything is kept.
std::size_t payload_bytes_max(FrameType type);

struct FrameHeader {
  std::uint16_t version = kProtocolVersion;
  FrameType type = FrameType::kGoodbye;
  std::uint32_t payload_bytes = 0;
  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

/// What a collective waits for; the join counts as one.
enum class Collective : std::uint8_t { kJoin = 0, kBarrier = 1, kGather = 2 };

/// The part of a hello that is the same in every version, so that a difference can be named.
struct HelloIdentity {
  Role role = Role::kAttention;
  std::uint32_t role_rank = 0;
  friend bool operator==(const HelloIdentity&, const HelloIdentity&) = default;
};

struct Hello {
  HelloIdentity identity;
  RankCounts counts;
  std::vector<std::pair<std::string, std::string>> must_match;
  std::vector<std::string> addresses{};  ///< where the rank can be reached, the preferred one first
  std::string blob;
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Waiting {
  Collective what = Collective::kJoin;
  std::uint32_t round = 0;
  std::vector<std::uint32_t> world_ranks;  ///< ascending, not empty
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

struct PeerBlob {
  std::uint32_t world_rank = 0;
  std::vector<std::string> addresses{};  ///< none: rank 0, where its connection leads
  std::string blob;
  friend bool operator==(const PeerBlob&, const PeerBlob&) = default;
};

struct Gather {
  std::uint32_t round = 0;
  std::string contribution;
  friend bool operator==(const Gather&, const Gather&) = default;
};

struct Gathered {
  std::uint32_t round = 0;
  std::vector<std::string> contributions;  ///< by role_rank, not empty
  friend bool operator==(const Gathered&, const Gathered&) = default;
};

struct Query {
  Collective what = Collective::kBarrier;  ///< never kJoin
  std::uint32_t round = 0;
  friend bool operator==(const Query&, const Query&) = default;
};

enum class Departure : std::uint8_t {
  kLeft = 0,    ///< Said goodbye, in order.
  kLost = 1,    ///< Its connection ended without one.
  kGaveUp = 2,  ///< Said goodbye, and that it did not finish.
};

struct Gone {
  std::uint32_t world_rank = 0;
  Departure how = Departure::kLeft;
  std::string reason;  ///< Empty for one that left.
  friend bool operator==(const Gone&, const Gone&) = default;
};

struct Goodbye {
  bool gave_up = false;  ///< The sender did not finish.
  std::string reason;    ///< Why; empty for one that leaves in order.
  friend bool operator==(const Goodbye&, const Goodbye&) = default;
};

using Nonce = std::array<unsigned char, kNonceBytes>;
using Proof = std::array<unsigned char, kProofBytes>;

/// Why rank 0 hears no hello. A code, never a text: whoever says it has proved nothing yet.
enum class Denial : std::uint8_t {
  kSecretDiffers = 1,
  kSecretNeeded = 2,  ///< the stranger said hello without a proof
  kNoSecret = 3,      ///< the stranger offered a proof, and rank 0 has no secret
  kOtherVersion = 4,  ///< the header's version is rank 0's
};

/// Whole frames, header included. Their arguments are within the bounds above: join() and
/// all_gather() check what comes from callers, and texts are cut to kTextBytesMax.
std::string encode_header(FrameHeader header);
std::string encode_hello(const Hello& hello);
std::string encode_waiting(const Waiting& waiting);
std::string encode_refused(const Error& error);
std::string encode_peer(const PeerBlob& peer);
std::string encode_start(std::uint32_t epoch);
std::string encode_barrier(std::uint32_t round);
std::string encode_barrier_released(std::uint32_t round);
std::string encode_gather(std::uint32_t round, std::string_view contribution);
std::string encode_gathered(const Gathered& gathered);
std::string encode_query(Query query);
std::string encode_gone(const Gone& gone);
std::string encode_goodbye(const Goodbye& goodbye = {});
std::string encode_nonce(const Nonce& nonce);
std::string encode_proof(const Proof& proof);
std::string encode_denied(Denial denial);

/// Decoders. Each takes exactly its bytes and returns kProtocolMismatch otherwise:
/// "malformed hello frame: truncated in must_match".
///
/// The header of a hello, a refusal, a nonce or a denial may carry another version; of any other
/// frame it may not.
Result<FrameHeader> decode_header(std::string_view bytes);
/// The leading part of a hello of any version.
Result<HelloIdentity> decode_hello_identity(std::string_view payload);
Result<Hello> decode_hello(std::string_view payload);
Result<Waiting> decode_waiting(std::string_view payload);
Result<Error> decode_refused(std::string_view payload);
Result<PeerBlob> decode_peer(std::string_view payload);
Result<std::uint32_t> decode_start(std::string_view payload);
Result<std::uint32_t> decode_barrier(std::string_view payload);  ///< and kBarrierReleased
Result<Gather> decode_gather(std::string_view payload);
Result<Gathered> decode_gathered(std::string_view payload);
Result<Query> decode_query(std::string_view payload);
Result<Gone> decode_gone(std::string_view payload);
Result<Goodbye> decode_goodbye(std::string_view payload);
Result<Nonce> decode_nonce(std::string_view payload);
Result<Proof> decode_proof(std::string_view payload);
Result<Denial> decode_denied(std::string_view payload);

/// Only ASCII from space to tilde: fit for a terminal and a log line.
bool is_printable(std::string_view text);
/// Of 1 to 255 printable characters other than space.
bool is_address(std::string_view text);

/// Collects a connection's bytes and hands them out frame by frame. Holds at most one frame more
/// than what was appended at once: a header of the wrong type or length ends it at once.
class FrameBuffer {
 public:
  /// @param accepted  frame_bit()s of the types that may come
  explicit FrameBuffer(FrameSet accepted) : accepted_(accepted) {}
  void accept(FrameSet accepted) { accepted_ = accepted; }
  /// From the next frame on so many bytes follow each payload: its seal.
  void expect_seals(std::size_t seal_bytes) { seal_bytes_ = seal_bytes; }

  void append(std::string_view bytes);

  struct Frame {
    FrameHeader header;
    std::string_view payload;  ///< until the next append(), as those below
    std::string_view sealed;   ///< header and payload, as they came
    std::string_view seal;
  };
  /// The type of the frame that comes next, once its header is here and says a known one: also of
  /// one that may not come now.
  std::optional<FrameType> next_type() const;
  /// The next whole frame, or none yet.
  /// @return kProtocolMismatch  not this protocol, or a frame that may not come now
  Result<std::optional<Frame>> next();

 private:
  FrameSet accepted_;
  std::size_t seal_bytes_ = 0;
  std::string bytes_;
  std::size_t begin_ = 0;  ///< bytes before it have been handed out
};

}  // namespace afd::session
