// How two ranks show each other that they know one secret, and what they do with it afterwards.
//
//     member                                    rank 0
//       nonce M  ---------------------------->                   32 fresh random bytes
//                <----------------------------  nonce H          32 of rank 0's
//       HMAC(secret, "member proves", M, H) ->                   compared in constant time
//                <-  HMAC(secret, "rank 0 proves", M, H)         compared in constant time
//       hello, and everything after it, in both directions, each with its seal
//
// Nothing of it can be used again or elsewhere: the nonces are of this connection, and the four
// labels (two proofs, two directions of seals) carry the protocol version and differ, so that what
// one side says never serves as the other's answer. The member proves first: whoever merely
// connects gets nothing from rank 0 to try secrets on.
//
// A seal is an HMAC-SHA256 of a frame and its number in its direction, with a key of this
// connection and direction. Who sits between two ranks can end their connection, and read along
// (TLS is for that), but not change, drop, repeat or add a frame unnoticed.
//
// Threads: Secret is immutable; a FrameSeal is of one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <afd/config.h>
#include <afd/result.h>

#include "session/session_frame.h"
#include "session/tls.h"

namespace afd::session {

/// What all ranks of a job know, and nobody else.
class Secret {
 public:
  static constexpr std::size_t kBytesMin = 16;
  static constexpr std::size_t kBytesMax = 4096;

  /// The file's bytes without line ends at its end. A regular file of this user that nobody else
  /// may read or write (mode 0600 or less), of 16 to 4096 bytes; 32 random ones are plenty.
  /// @return kInvalidArgument  names the file, and what is wrong with it
  static Result<Secret> read(const std::string& path);

  explicit Secret(std::string_view bytes) : bytes_(std::make_shared<Bytes>(bytes)) {}
  std::string_view bytes() const { return bytes_->text; }

 private:
  // Wiped when the last copy goes.
  struct Bytes {
    explicit Bytes(std::string_view given) : text(given) {}
    ~Bytes();
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    std::string text;
  };
  std::shared_ptr<const Bytes> bytes_;  // of all copies of this secret
};

/// How a rank knows another: each may be absent.
struct Credentials {
  std::optional<Secret> secret;
  std::optional<TlsContext> tls;

  /// @return kInvalidArgument  names the file that cannot be used
  static Result<Credentials> load(const SessionConfig& config);
};

/// @return kUnavailable  the system gives no random bytes
Result<Nonce> fresh_nonce();

/// What follows from a secret and both nonces of a connection.
struct ConnectionKeys {
  Proof member_proof{};
  Proof hub_proof{};
  Proof member_seal_key{};
  Proof hub_seal_key{};
};
struct Nonces {
  Nonce member{};
  Nonce hub{};
};
ConnectionKeys derive_keys(const Secret& secret, const Nonces& nonces);

/// In a time that does not depend on where they differ.
bool is_same(const Proof& one, const Proof& other);

/// One direction of a connection: numbers its frames and computes their seals.
class FrameSeal {
 public:
  explicit FrameSeal(const Proof& key) : key_(key) {}
  ~FrameSeal();
  FrameSeal(FrameSeal&&) = default;
  FrameSeal& operator=(FrameSeal&&) = default;

  /// Of the next frame, header included.
  std::string seal(std::string_view frame);
  /// Whether `seal` is the next frame's.
  bool opens(std::string_view frame, std::string_view seal);

 private:
  Proof next(std::string_view frame);

  Proof key_;
  std::uint64_t number_ = 0;
};

}  // namespace afd::session
