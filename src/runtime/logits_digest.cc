#include "runtime/logits_digest.h"

#include <array>
#include <bit>

#include <openssl/evp.h>

#include "base/check.h"

namespace afd::runtime {

static_assert(std::endian::native == std::endian::little, "the digest is over little-endian bytes");

struct LogitsDigest::State {
  EVP_MD_CTX* context = nullptr;
  ~State() { EVP_MD_CTX_free(context); }
  // SHA-256 of OpenSSL's default provider fails only for want of memory.
  static void require(int ok) { AFD_CHECK(ok == 1); }
};

LogitsDigest::LogitsDigest() : state_(std::make_unique<State>()) {
  state_->context = EVP_MD_CTX_new();
  State::require(state_->context != nullptr);
  State::require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
}
LogitsDigest::~LogitsDigest() = default;
LogitsDigest::LogitsDigest(LogitsDigest&&) noexcept = default;
LogitsDigest& LogitsDigest::operator=(LogitsDigest&&) noexcept = default;

void LogitsDigest::update(std::span<const float> logits) {
  State::require(EVP_DigestUpdate(state_->context, logits.data(), logits.size_bytes()));
}

std::string LogitsDigest::finish() {
  std::array<unsigned char, 32> digest;
  State::require(EVP_DigestFinal_ex(state_->context, digest.data(), nullptr));
  State::require(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

}  // namespace afd::runtime
