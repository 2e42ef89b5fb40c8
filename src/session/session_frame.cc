#include "session/session_frame.h"

#include <algorithm>
#include <array>

namespace afd::session {
namespace {

constexpr std::string_view kMagic = "AFDS";

// Codes of the wire, apart from the enumerators' values, which may change.
constexpr std::array<std::pair<std::uint8_t, ErrorCode>, 8> kErrorCodes = {{
    {1, ErrorCode::kInvalidArgument},
    {2, ErrorCode::kFailedPrecondition},
    {3, ErrorCode::kUnavailable},
    {4, ErrorCode::kWouldBlock},
    {5, ErrorCode::kDeadlineExceeded},
    {6, ErrorCode::kPeerLost},
    {7, ErrorCode::kProtocolMismatch},
    {8, ErrorCode::kInternal},
}};

std::uint8_t wire_code(ErrorCode code) {
  for (const auto& [wire, known] : kErrorCodes) {
    if (known == code) {
      return wire;
    }
  }
  return 8;
}

class Writer {
 public:
  explicit Writer(FrameType type) : type_(type) { bytes_.resize(kHeaderBytes); }

  void u8(std::uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void u16(std::uint16_t value) {
    u8(static_cast<std::uint8_t>(value & 0xff));
    u8(static_cast<std::uint8_t>(value >> 8));
  }
  void u32(std::uint32_t value) {
    u16(static_cast<std::uint16_t>(value & 0xffff));
    u16(static_cast<std::uint16_t>(value >> 16));
  }
  void bytes(std::string_view value) { bytes_.append(value); }

  std::string finish() && {
    const FrameHeader header{
        .version = kProtocolVersion,
        .type = type_,
        .payload_bytes = static_cast<std::uint32_t>(bytes_.size() - kHeaderBytes)};
    bytes_.replace(0, kHeaderBytes, encode_header(header));
    return std::move(bytes_);
  }

 private:
  FrameType type_;
  std::string bytes_;
};

// Takes fields off the front. The first failure sticks and names the field; values read after it
// are zero.
class Reader {
 public:
  Reader(FrameType type, std::string_view bytes) : type_(type), rest_(bytes) {}

  std::uint8_t u8(const char* field) {
    const std::string_view taken = bytes(1, field);
    return taken.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(taken[0]);
  }
  std::uint16_t u16(const char* field) { return static_cast<std::uint16_t>(number(2, field)); }
  std::uint32_t u32(const char* field) { return number(4, field); }
  std::string_view bytes(std::size_t count, const char* field) {
    if (failed()) {
      return {};
    }
    if (rest_.size() < count) {
      fail_with(std::string("truncated in ") + field);
      return {};
    }
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }
  std::string_view rest() { return std::exchange(rest_, {}); }

  // Keeps the first problem.
  void require(bool holds, const char* problem) {
    if (!holds && !failed()) {
      fail_with(problem);
    }
  }

  bool failed() const { return !problem_.empty(); }

  /// Nothing may be left over.
  Result<void> finish() {
    if (!failed() && !rest_.empty()) {
      fail_with(std::to_string(rest_.size()) + " bytes too many");
    }
    if (failed()) {
      return fail(ErrorCode::kProtocolMismatch,
                  "malformed " + std::string(to_string(type_)) + " frame: " + problem_);
    }
    return {};
  }
  template <typename T>
  Result<T> finish(T value) {
    if (Result<void> finished = finish(); !finished) {
      return fail(std::move(finished).error());
    }
    return value;
  }

 private:
  std::uint32_t number(std::size_t width, const char* field) {
    const std::string_view taken = bytes(width, field);
    std::uint32_t value = 0;
    for (std::size_t i = taken.size(); i > 0; --i) {
      value = value << 8 | static_cast<std::uint8_t>(taken[i - 1]);
    }
    return value;
  }
  void fail_with(std::string problem) {
    problem_ = std::move(problem);
    rest_ = {};
  }

  FrameType type_;
  std::string_view rest_;
  std::string problem_;
};

HelloIdentity read_identity(Reader& reader) {
  HelloIdentity identity;
  const std::uint8_t role = reader.u8("role");
  reader.require(role <= 1, "role is neither 0 nor 1");
  identity.role = role == 0 ? Role::kAttention : Role::kFfn;
  reader.require(reader.u8("padding") == 0, "padding is not zero");
  reader.require(reader.u16("padding") == 0, "padding is not zero");
  identity.role_rank = reader.u32("role_rank");
  return identity;
}

RankCounts read_counts(Reader& reader) {
  RankCounts counts;
  counts.num_attention_ranks = reader.u32("num_attention_ranks");
  counts.num_ffn_ranks = reader.u32("num_ffn_ranks");
  const bool in_range = counts.num_attention_ranks >= 1 && counts.num_ffn_ranks >= 1 &&
                        counts.num_attention_ranks <= kRanksMax &&
                        counts.num_ffn_ranks <= kRanksMax - counts.num_attention_ranks;
  reader.require(in_range, "rank counts out of range");
  return counts;
}

// The rest of the payload. Whoever leaves in order gives no reason.
std::string read_reason(Reader& reader, bool may_have_one) {
  std::string reason(reader.rest());
  reader.require(may_have_one || reason.empty(), "a reason to leave in order");
  reader.require(reason.size() <= kTextBytesMax, "text too long");
  reader.require(is_printable(reason), "unprintable character in text");
  return reason;
}

std::vector<std::string> read_addresses(Reader& reader) {
  std::vector<std::string> addresses;
  const std::uint8_t count = reader.u8("addresses");
  reader.require(count <= kAddressesMax, "too many addresses");
  for (std::uint8_t i = 0; i < count && !reader.failed(); ++i) {
    const std::uint8_t bytes = reader.u8("addresses");
    const std::string_view address = reader.bytes(bytes, "addresses");
    reader.require(is_address(address), "an address that is none");
    addresses.emplace_back(address);
  }
  return addresses;
}

void write_addresses(Writer& writer, const std::vector<std::string>& addresses) {
  writer.u8(static_cast<std::uint8_t>(addresses.size()));
  for (const std::string& address : addresses) {
    writer.u8(static_cast<std::uint8_t>(address.size()));
    writer.bytes(address);
  }
}

// Two fixed sizes of bytes that mean nothing to anybody who cannot compute them.
std::string encode_bytes(FrameType type, const std::array<unsigned char, 32>& bytes) {
  Writer writer(type);
  writer.bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return std::move(writer).finish();
}

Result<std::array<unsigned char, 32>> decode_bytes(FrameType type, std::string_view payload) {
  Reader reader(type, payload);
  std::array<unsigned char, 32> bytes{};
  const std::string_view taken = reader.bytes(bytes.size(), "bytes");
  std::copy(taken.begin(), taken.end(), bytes.begin());
  return reader.finish(bytes);
}

Collective read_collective(Reader& reader, std::uint8_t lowest) {
  const std::uint8_t what = reader.u8("collective");
  reader.require(what >= lowest && what <= 2, "unknown collective");
  return static_cast<Collective>(what <= 2 ? what : 1);
}

}  // namespace

std::string_view to_string(FrameType type) {
  switch (type) {
    case FrameType::kHello:
      return "hello";
    case FrameType::kWaiting:
      return "waiting";
    case FrameType::kRefused:
      return "refused";
    case FrameType::kPeer:
      return "peer";
    case FrameType::kStart:
      return "start";
    case FrameType::kBarrier:
      return "barrier";
    case FrameType::kBarrierReleased:
      return "barrier released";
    case FrameType::kGather:
      return "gather";
    case FrameType::kGathered:
      return "gathered";
    case FrameType::kQuery:
      return "query";
    case FrameType::kGone:
      return "gone";
    case FrameType::kGoodbye:
      return "goodbye";
    case FrameType::kNonce:
      return "nonce";
    case FrameType::kProof:
      return "proof";
    case FrameType::kDenied:
      return "denied";
  }
  return "unknown";
}

std::size_t payload_bytes_max(FrameType type) {
  constexpr std::size_t kAddressesBytesMax = 1 + kAddressesMax * (1 + kAddressBytesMax);
  std::size_t sum = 0;
  switch (type) {
    case FrameType::kHello:
      sum += 8 + 8;  // identity and counts
      sum += 2 + kMustMatchPairsMax * (2 + kKeyBytesMax + 2 + kValueBytesMax);
      sum += kAddressesBytesMax;
      sum += 4 + kBlobBytesMax;
      return sum;
    case FrameType::kWaiting:
      return 1 + 4 + 4 + kRanksMax * 4;  // collective, round, count, ranks
    case FrameType::kRefused:
      return 1 + kTextBytesMax;
    case FrameType::kPeer:
      return 4 + kAddressesBytesMax + kBlobBytesMax;
    case FrameType::kStart:
    case FrameType::kBarrier:
    case FrameType::kBarrierReleased:
      return 4;
    case FrameType::kGather:
      return 4 + kContributionBytesMax;
    case FrameType::kGathered:
      return 4 + 4 + kRanksMax * (4 + kContributionBytesMax);
    case FrameType::kQuery:
      return 1 + 4;
    case FrameType::kGone:
      return 4 + 1 + kTextBytesMax;
    case FrameType::kGoodbye:
      return 1 + kTextBytesMax;
    case FrameType::kNonce:
      return kNonceBytes;
    case FrameType::kProof:
      return kProofBytes;
    case FrameType::kDenied:
      return 1;
  }
  return 0;
}

bool is_printable(std::string_view text) {
  return std::none_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte > 0x7e;
  });
}

bool is_address(std::string_view text) {
  return !text.empty() && text.size() <= kAddressBytesMax && is_printable(text) &&
         text.find(' ') == std::string_view::npos;
}

std::string encode_header(FrameHeader header) {
  std::string bytes(kMagic);
  const auto put = [&bytes](std::uint32_t value, std::size_t width) {
    for (std::size_t i = 0; i < width; ++i) {
      bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    }
  };
  put(header.version, 2);
  put(static_cast<std::uint32_t>(header.type), 2);
  put(header.payload_bytes, 4);
  return bytes;
}

std::string encode_hello(const Hello& hello) {
  Writer writer(FrameType::kHello);
  writer.u8(hello.identity.role == Role::kAttention ? 0 : 1);
  writer.u8(0);
  writer.u16(0);
  writer.u32(hello.identity.role_rank);
  writer.u32(hello.counts.num_attention_ranks);
  writer.u32(hello.counts.num_ffn_ranks);
  writer.u16(static_cast<std::uint16_t>(hello.must_match.size()));
  for (const auto& [key, value] : hello.must_match) {
    writer.u16(static_cast<std::uint16_t>(key.size()));
    writer.bytes(key);
    writer.u16(static_cast<std::uint16_t>(value.size()));
    writer.bytes(value);
  }
  write_addresses(writer, hello.addresses);
  writer.u32(static_cast<std::uint32_t>(hello.blob.size()));
  writer.bytes(hello.blob);
  return std::move(writer).finish();
}

std::string encode_waiting(const Waiting& waiting) {
  Writer writer(FrameType::kWaiting);
  writer.u8(static_cast<std::uint8_t>(waiting.what));
  writer.u32(waiting.round);
  writer.u32(static_cast<std::uint32_t>(waiting.world_ranks.size()));
  for (std::uint32_t rank : waiting.world_ranks) {
    writer.u32(rank);
  }
  return std::move(writer).finish();
}

std::string encode_refused(const Error& error) {
  Writer writer(FrameType::kRefused);
  writer.u8(wire_code(error.code));
  writer.bytes(std::string_view(error.message).substr(0, kTextBytesMax));
  return std::move(writer).finish();
}

std::string encode_peer(const PeerBlob& peer) {
  Writer writer(FrameType::kPeer);
  writer.u32(peer.world_rank);
  write_addresses(writer, peer.addresses);
  writer.bytes(peer.blob);
  return std::move(writer).finish();
}

std::string encode_start(std::uint32_t epoch) {
  Writer writer(FrameType::kStart);
  writer.u32(epoch);
  return std::move(writer).finish();
}

std::string encode_barrier(std::uint32_t round) {
  Writer writer(FrameType::kBarrier);
  writer.u32(round);
  return std::move(writer).finish();
}

std::string encode_barrier_released(std::uint32_t round) {
  Writer writer(FrameType::kBarrierReleased);
  writer.u32(round);
  return std::move(writer).finish();
}

std::string encode_gather(std::uint32_t round, std::string_view contribution) {
  Writer writer(FrameType::kGather);
  writer.u32(round);
  writer.bytes(contribution);
  return std::move(writer).finish();
}

std::string encode_gathered(const Gathered& gathered) {
  Writer writer(FrameType::kGathered);
  writer.u32(gathered.round);
  writer.u32(static_cast<std::uint32_t>(gathered.contributions.size()));
  for (const std::string& contribution : gathered.contributions) {
    writer.u32(static_cast<std::uint32_t>(contribution.size()));
    writer.bytes(contribution);
  }
  return std::move(writer).finish();
}

std::string encode_query(Query query) {
  Writer writer(FrameType::kQuery);
  writer.u8(static_cast<std::uint8_t>(query.what));
  writer.u32(query.round);
  return std::move(writer).finish();
}

std::string encode_gone(const Gone& gone) {
  Writer writer(FrameType::kGone);
  writer.u32(gone.world_rank);
  writer.u8(static_cast<std::uint8_t>(gone.how));
  writer.bytes(std::string_view(gone.reason).substr(0, kTextBytesMax));
  return std::move(writer).finish();
}

std::string encode_goodbye(const Goodbye& goodbye) {
  Writer writer(FrameType::kGoodbye);
  writer.u8(goodbye.gave_up ? 1 : 0);
  writer.bytes(std::string_view(goodbye.reason).substr(0, kTextBytesMax));
  return std::move(writer).finish();
}

std::string encode_nonce(const Nonce& nonce) {
  return encode_bytes(FrameType::kNonce, nonce);
}

std::string encode_proof(const Proof& proof) {
  return encode_bytes(FrameType::kProof, proof);
}

std::string encode_denied(Denial denial) {
  Writer writer(FrameType::kDenied);
  writer.u8(static_cast<std::uint8_t>(denial));
  return std::move(writer).finish();
}

Result<FrameHeader> decode_header(std::string_view bytes) {
  if (bytes.size() != kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return fail(ErrorCode::kProtocolMismatch, "not a session frame");
  }
  Reader reader(FrameType::kGoodbye, bytes.substr(kMagic.size()));
  FrameHeader header;
  header.version = reader.u16("version");
  const std::uint16_t type = reader.u16("type");
  header.payload_bytes = reader.u32("payload_bytes");
  const auto is_from = [type](FrameType first, FrameType last) {
    return type >= static_cast<std::uint16_t>(first) && type <= static_cast<std::uint16_t>(last);
  };
  if (!is_from(FrameType::kHello, FrameType::kGoodbye) &&
      !is_from(FrameType::kNonce, FrameType::kDenied)) {
    return fail(ErrorCode::kProtocolMismatch, "unknown frame type " + std::to_string(type));
  }
  header.type = static_cast<FrameType>(type);
  const bool any_version = header.type == FrameType::kHello || header.type == FrameType::kRefused ||
                           header.type == FrameType::kNonce || header.type == FrameType::kDenied;
  if (header.version != kProtocolVersion && !any_version) {
    return fail(ErrorCode::kProtocolMismatch, "protocol version is " +
                                                  std::to_string(header.version) + ", expected " +
                                                  std::to_string(kProtocolVersion));
  }
  if (header.payload_bytes > payload_bytes_max(header.type)) {
    return fail(ErrorCode::kProtocolMismatch, std::string(to_string(header.type)) + " frame of " +
                                                  std::to_string(header.payload_bytes) +
                                                  " bytes, at most " +
                                                  std::to_string(payload_bytes_max(header.type)));
  }
  return header;
}

Result<HelloIdentity> decode_hello_identity(std::string_view payload) {
  Reader reader(FrameType::kHello, payload);
  const HelloIdentity identity = read_identity(reader);
  reader.require(identity.role_rank < kRanksMax, "role_rank out of range");
  reader.rest();  // whatever that version has
  return reader.finish(identity);
}

Result<Hello> decode_hello(std::string_view payload) {
  Reader reader(FrameType::kHello, payload);
  Hello hello;
  hello.identity = read_identity(reader);
  hello.counts = read_counts(reader);
  const std::uint32_t num_of_role = hello.identity.role == Role::kAttention
                                        ? hello.counts.num_attention_ranks
                                        : hello.counts.num_ffn_ranks;
  reader.require(hello.identity.role_rank < num_of_role, "role_rank out of range");
  const std::uint16_t num_pairs = reader.u16("must_match");
  reader.require(num_pairs <= kMustMatchPairsMax, "too many must_match pairs");
  for (std::uint16_t i = 0; i < num_pairs && !reader.failed(); ++i) {
    const std::uint16_t key_bytes = reader.u16("must_match");
    reader.require(key_bytes >= 1 && key_bytes <= kKeyBytesMax, "key length out of range");
    const std::string_view key = reader.bytes(key_bytes, "must_match");
    const std::uint16_t value_bytes = reader.u16("must_match");
    reader.require(value_bytes <= kValueBytesMax, "value length out of range");
    const std::string_view value = reader.bytes(value_bytes, "must_match");
    reader.require(is_printable(key) && is_printable(value), "unprintable character in must_match");
    const auto is_same = [key](const auto& pair) { return pair.first == key; };
    reader.require(std::none_of(hello.must_match.begin(), hello.must_match.end(), is_same),
                   "a must_match key twice");
    hello.must_match.emplace_back(key, value);
  }
  hello.addresses = read_addresses(reader);
  const std::uint32_t blob_bytes = reader.u32("blob");
  reader.require(blob_bytes <= kBlobBytesMax, "blob too long");
  hello.blob = reader.bytes(blob_bytes, "blob");
  return reader.finish(std::move(hello));
}

Result<Waiting> decode_waiting(std::string_view payload) {
  Reader reader(FrameType::kWaiting, payload);
  Waiting waiting;
  waiting.what = read_collective(reader, 0);
  waiting.round = reader.u32("round");
  const std::uint32_t count = reader.u32("count");
  reader.require(count >= 1 && count <= kRanksMax, "number of ranks out of range");
  for (std::uint32_t i = 0; i < count && !reader.failed(); ++i) {
    const std::uint32_t rank = reader.u32("ranks");
    const bool ascends = waiting.world_ranks.empty() || waiting.world_ranks.back() < rank;
    reader.require(rank < kRanksMax && ascends, "ranks out of range or order");
    waiting.world_ranks.push_back(rank);
  }
  return reader.finish(std::move(waiting));
}

Result<Error> decode_refused(std::string_view payload) {
  Reader reader(FrameType::kRefused, payload);
  const std::uint8_t wire = reader.u8("code");
  Error error;
  const auto known = std::find_if(kErrorCodes.begin(), kErrorCodes.end(),
                                  [wire](const auto& pair) { return pair.first == wire; });
  reader.require(known != kErrorCodes.end(), "unknown error code");
  error.code = known != kErrorCodes.end() ? known->second : ErrorCode::kInternal;
  error.message = reader.rest();
  reader.require(error.message.size() <= kTextBytesMax, "text too long");
  reader.require(is_printable(error.message), "unprintable character in text");
  return reader.finish(std::move(error));
}

Result<PeerBlob> decode_peer(std::string_view payload) {
  Reader reader(FrameType::kPeer, payload);
  PeerBlob peer;
  peer.world_rank = reader.u32("world_rank");
  reader.require(peer.world_rank < kRanksMax, "world_rank out of range");
  peer.addresses = read_addresses(reader);
  peer.blob = reader.rest();
  reader.require(peer.blob.size() <= kBlobBytesMax, "blob too long");
  return reader.finish(std::move(peer));
}

Result<std::uint32_t> decode_start(std::string_view payload) {
  Reader reader(FrameType::kStart, payload);
  const std::uint32_t epoch = reader.u32("epoch");
  reader.require(epoch != 0, "epoch is zero");
  return reader.finish(epoch);
}

Result<std::uint32_t> decode_barrier(std::string_view payload) {
  Reader reader(FrameType::kBarrier, payload);
  const std::uint32_t round = reader.u32("round");
  return reader.finish(round);
}

Result<Gather> decode_gather(std::string_view payload) {
  Reader reader(FrameType::kGather, payload);
  Gather gather;
  gather.round = reader.u32("round");
  gather.contribution = reader.rest();
  reader.require(gather.contribution.size() <= kContributionBytesMax, "contribution too long");
  return reader.finish(std::move(gather));
}

Result<Gathered> decode_gathered(std::string_view payload) {
  Reader reader(FrameType::kGathered, payload);
  Gathered gathered;
  gathered.round = reader.u32("round");
  const std::uint32_t count = reader.u32("count");
  reader.require(count >= 1 && count <= kRanksMax, "number of contributions out of range");
  for (std::uint32_t i = 0; i < count && !reader.failed(); ++i) {
    const std::uint32_t bytes = reader.u32("contribution");
    reader.require(bytes <= kContributionBytesMax, "contribution too long");
    gathered.contributions.emplace_back(reader.bytes(bytes, "contribution"));
  }
  return reader.finish(std::move(gathered));
}

Result<Query> decode_query(std::string_view payload) {
  Reader reader(FrameType::kQuery, payload);
  Query query;
  query.what = read_collective(reader, 1);
  query.round = reader.u32("round");
  return reader.finish(query);
}

Result<Gone> decode_gone(std::string_view payload) {
  Reader reader(FrameType::kGone, payload);
  Gone gone;
  gone.world_rank = reader.u32("world_rank");
  reader.require(gone.world_rank < kRanksMax, "world_rank out of range");
  const std::uint8_t how = reader.u8("how");
  reader.require(how <= 2, "how is none of 0, 1, 2");
  gone.how = static_cast<Departure>(how <= 2 ? how : 0);
  gone.reason = read_reason(reader, gone.how != Departure::kLeft);
  return reader.finish(std::move(gone));
}

Result<Goodbye> decode_goodbye(std::string_view payload) {
  Reader reader(FrameType::kGoodbye, payload);
  Goodbye goodbye;
  const std::uint8_t gave_up = reader.u8("gave_up");
  reader.require(gave_up <= 1, "gave_up is neither 0 nor 1");
  goodbye.gave_up = gave_up == 1;
  goodbye.reason = read_reason(reader, goodbye.gave_up);
  return reader.finish(std::move(goodbye));
}

Result<Nonce> decode_nonce(std::string_view payload) {
  return decode_bytes(FrameType::kNonce, payload);
}

Result<Proof> decode_proof(std::string_view payload) {
  return decode_bytes(FrameType::kProof, payload);
}

Result<Denial> decode_denied(std::string_view payload) {
  Reader reader(FrameType::kDenied, payload);
  const std::uint8_t denial = reader.u8("reason");
  reader.require(denial >= 1 && denial <= 4, "unknown reason");
  return reader.finish(static_cast<Denial>(denial >= 1 && denial <= 4 ? denial : 1));
}

std::optional<FrameType> FrameBuffer::next_type() const {
  const std::string_view rest = std::string_view(bytes_).substr(begin_);
  if (rest.size() < kHeaderBytes) {
    return std::nullopt;
  }
  const Result<FrameHeader> header = decode_header(rest.substr(0, kHeaderBytes));
  return header ? std::optional(header->type) : std::nullopt;
}

void FrameBuffer::append(std::string_view bytes) {
  if (begin_ > 0) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  bytes_.append(bytes);
}

Result<std::optional<FrameBuffer::Frame>> FrameBuffer::next() {
  const std::string_view rest = std::string_view(bytes_).substr(begin_);
  // A stranger's first bytes tell: no need to wait for the rest of the header.
  const std::size_t told = std::min(rest.size(), kMagic.size());
  if (rest.substr(0, told) != kMagic.substr(0, told)) {
    return fail(ErrorCode::kProtocolMismatch, "not a session frame");
  }
  if (rest.size() < kHeaderBytes) {
    return std::nullopt;
  }
  Result<FrameHeader> header = decode_header(rest.substr(0, kHeaderBytes));
  if (!header) {
    return fail(std::move(header).error());
  }
  if ((accepted_ & frame_bit(header->type)) == 0) {
    return fail(ErrorCode::kProtocolMismatch,
                "unexpected " + std::string(to_string(header->type)) + " frame");
  }
  const std::size_t sealed_bytes = kHeaderBytes + header->payload_bytes;
  if (rest.size() < sealed_bytes + seal_bytes_) {
    return std::nullopt;
  }
  begin_ += sealed_bytes + seal_bytes_;
  return Frame{.header = *header,
               .payload = rest.substr(kHeaderBytes, header->payload_bytes),
               .sealed = rest.substr(0, sealed_bytes),
               .seal = rest.substr(sealed_bytes, seal_bytes_)};
}

}  // namespace afd::session
