#include "session/authentication.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/errno_text.h"
#include "base/fd.h"

namespace afd::session {
namespace {

// They carry kProtocolVersion: a version that derives differently shares no proof with this one.
constexpr std::string_view kMemberProves = "afd session 2: member proves";
constexpr std::string_view kHubProves = "afd session 2: rank 0 proves";
constexpr std::string_view kMemberSeals = "afd session 2: member seals";
constexpr std::string_view kHubSeals = "afd session 2: rank 0 seals";
static_assert(kProtocolVersion == 2, "the labels name the version");

std::string_view text_of(const std::array<unsigned char, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Proof hmac_sha256(std::string_view key, std::initializer_list<std::string_view> parts) {
  static EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  const std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)> context(
      EVP_MAC_CTX_new(algorithm), &EVP_MAC_CTX_free);
  Proof proof{};
  std::size_t bytes = 0;
  bool done =
      context && EVP_MAC_init(context.get(), reinterpret_cast<const unsigned char*>(key.data()),
                              key.size(), params) == 1;
  for (const std::string_view part : parts) {
    done =
        done && EVP_MAC_update(context.get(), reinterpret_cast<const unsigned char*>(part.data()),
                               part.size()) == 1;
  }
  done = done && EVP_MAC_final(context.get(), proof.data(), &bytes, proof.size()) == 1;
  // Only where OpenSSL is broken or memory is out. A proof that was not computed must not compare
  // equal to another that was not.
  AFD_CHECK(done && bytes == proof.size());
  return proof;
}

tl::unexpected<Error> bad_file(const std::string& path, const std::string& problem) {
  return fail(ErrorCode::kInvalidArgument, "secret file " + path + " " + problem);
}

}  // namespace

Secret::Bytes::~Bytes() {
  OPENSSL_cleanse(text.data(), text.size());
}

Result<Secret> Secret::read(const std::string& path) {
  // Not blocking: what turns out to be a pipe must not hold up the rank.
  const base::Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) {
    return bad_file(path, "cannot be opened: " + base::errno_text(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return bad_file(path, "is no regular file");
  }
  if (status.st_uid != ::geteuid()) {
    return bad_file(path, "belongs to user " + std::to_string(status.st_uid) +
                              ", expected this one's, " + std::to_string(::geteuid()));
  }
  if ((status.st_mode & 07177U) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof(mode), "%04o", static_cast<unsigned>(status.st_mode & 07777U));
    return bad_file(path, "has mode " + std::string(mode) + ", expected 0600: chmod 600 it");
  }
  char bytes[kBytesMax + 1];
  std::size_t count = 0;
  while (count < sizeof(bytes)) {
    const ssize_t got = ::read(fd.get(), bytes + count, sizeof(bytes) - count);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return bad_file(path, "cannot be read: " + base::errno_text(errno));
    }
    if (got == 0) {
      break;
    }
    count += static_cast<std::size_t>(got);
  }
  std::string_view text(bytes, count);
  const bool too_long = count > kBytesMax;
  // An editor adds a line end; `echo` as well.
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  const Secret secret(text);
  OPENSSL_cleanse(bytes, sizeof(bytes));
  if (too_long || text.size() < kBytesMin) {
    return bad_file(path, (too_long ? "has more than " + std::to_string(kBytesMax)
                                    : "has " + std::to_string(text.size())) +
                              " bytes, expected " + std::to_string(kBytesMin) + " to " +
                              std::to_string(kBytesMax) + ": head -c 32 /dev/urandom | base64");
  }
  return secret;
}

Result<Credentials> Credentials::load(const SessionConfig& config) {
  Credentials credentials;
  if (!config.secret_file.empty()) {
    Result<Secret> secret = Secret::read(config.secret_file);
    if (!secret) {
      return fail(std::move(secret).error());
    }
    credentials.secret = *std::move(secret);
  }
  if (config.has_tls()) {
    Result<TlsContext> tls = TlsContext::load(config);
    if (!tls) {
      return fail(std::move(tls).error());
    }
    credentials.tls = *std::move(tls);
  }
  return credentials;
}

Result<Nonce> fresh_nonce() {
  Nonce nonce;
  if (::getentropy(nonce.data(), nonce.size()) != 0) {
    return fail(ErrorCode::kUnavailable, "no random bytes: " + base::errno_text(errno));
  }
  return nonce;
}

ConnectionKeys derive_keys(const Secret& secret, const Nonces& nonces) {
  const auto derive = [&](std::string_view label) {
    return hmac_sha256(secret.bytes(), {label, text_of(nonces.member), text_of(nonces.hub)});
  };
  return {.member_proof = derive(kMemberProves),
          .hub_proof = derive(kHubProves),
          .member_seal_key = derive(kMemberSeals),
          .hub_seal_key = derive(kHubSeals)};
}

bool is_same(const Proof& one, const Proof& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

FrameSeal::~FrameSeal() {
  OPENSSL_cleanse(key_.data(), key_.size());
}

Proof FrameSeal::next(std::string_view frame) {
  char number[sizeof(number_)];
  for (std::size_t i = 0; i < sizeof(number); ++i) {
    number[i] = static_cast<char>(number_ >> (8 * i) & 0xff);
  }
  ++number_;
  return hmac_sha256(text_of(key_), {{number, sizeof(number)}, frame});
}

std::string FrameSeal::seal(std::string_view frame) {
  return std::string(text_of(next(frame)));
}

bool FrameSeal::opens(std::string_view frame, std::string_view seal) {
  const Proof expected = next(frame);
  return seal.size() == expected.size() &&
         CRYPTO_memcmp(expected.data(), seal.data(), seal.size()) == 0;
}

}  // namespace afd::session
