#include "session/authentication.h"

#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace afd::session {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

std::string hex(const Proof& proof) {
  return hex({reinterpret_cast<const char*>(proof.data()), proof.size()});
}

Nonces counted_nonces() {
  Nonces nonces;
  for (std::size_t i = 0; i < kNonceBytes; ++i) {
    nonces.member[i] = static_cast<unsigned char>(i);
    nonces.hub[i] = static_cast<unsigned char>(i + kNonceBytes);
  }
  return nonces;
}

// The numbers are those of Python's hmac: an implementation that is not this one.
TEST(AuthenticationTest, DerivesWhatTheWireFormatPageSays) {
  const ConnectionKeys keys = derive_keys(Secret("0123456789abcdef"), counted_nonces());
  EXPECT_EQ(hex(keys.member_proof),
            "a754d18dc09f4ae8cec88a013adcc91297a9815ddacae5ad13ebd72c31045a3b");
  EXPECT_EQ(hex(keys.hub_proof),
            "af25d0aa1ae723ca55fee64b93dfb8ce918ece55d220b5aceddcac3be4b5f017");
  EXPECT_EQ(hex(keys.member_seal_key),
            "29558fa5bd38c2ec4da46346f32478d051de33521f63a56e35e34dad46c3c694");
  EXPECT_EQ(hex(keys.hub_seal_key),
            "0e01e5128d927fa3c69e15895c429a5bc6a6d2ae43da64b1ae2be7b9da18c2c4");

  Proof key;
  std::copy_n(counted_nonces().member.begin(), key.size(), key.begin());
  FrameSeal seal(key);
  EXPECT_EQ(hex(seal.seal("frame")),
            "4236f3b1467562a5e8d6e48ab3252c6f83028dddaf4d03fd79269075d0f5d374");
  EXPECT_EQ(hex(seal.seal("frame")),
            "c2278c295f14c2d11f8f0db1b28263185915d4987f0891057a54408f77a81cb2");
}

TEST(AuthenticationTest, DerivesOthersFromAnyOtherSecretNonceOrSide) {
  const Secret secret("0123456789abcdef");
  const ConnectionKeys keys = derive_keys(secret, counted_nonces());
  const auto differs_everywhere = [&](const ConnectionKeys& other) {
    return !is_same(keys.member_proof, other.member_proof) &&
           !is_same(keys.hub_proof, other.hub_proof) &&
           !is_same(keys.member_seal_key, other.member_seal_key) &&
           !is_same(keys.hub_seal_key, other.hub_seal_key);
  };
  EXPECT_FALSE(differs_everywhere(derive_keys(secret, counted_nonces())));
  EXPECT_TRUE(differs_everywhere(derive_keys(Secret("0123456789abcdeF"), counted_nonces())));
  Nonces nonces = counted_nonces();
  nonces.member[31] ^= 1;
  EXPECT_TRUE(differs_everywhere(derive_keys(secret, nonces)));
  nonces = counted_nonces();
  nonces.hub[0] ^= 0x80;
  EXPECT_TRUE(differs_everywhere(derive_keys(secret, nonces)));
  nonces = counted_nonces();
  std::swap(nonces.member, nonces.hub);
  const ConnectionKeys swapped = derive_keys(secret, nonces);
  EXPECT_TRUE(differs_everywhere(swapped));
  // What one side says is never what the other has to say, whoever chooses the nonces.
  EXPECT_FALSE(is_same(keys.member_proof, keys.hub_proof));
  EXPECT_FALSE(is_same(keys.member_proof, swapped.hub_proof));
  EXPECT_FALSE(is_same(keys.member_seal_key, keys.hub_seal_key));
}

TEST(AuthenticationTest, MakesAnotherNonceEveryTime) {
  EXPECT_NE(fresh_nonce().value(), fresh_nonce().value());
  EXPECT_NE(fresh_nonce().value(), Nonce{});
}

TEST(FrameSealTest, OpensFramesInTheirOrderOnly) {
  const Proof key{1, 2, 3};
  FrameSeal sender(key);
  const std::string first = sender.seal("first");
  const std::string second = sender.seal("second");

  FrameSeal in_order(key);
  EXPECT_TRUE(in_order.opens("first", first));
  EXPECT_TRUE(in_order.opens("second", second));
  EXPECT_FALSE(in_order.opens("second", second)) << "repeated";

  EXPECT_FALSE(FrameSeal(key).opens("second", second)) << "the first was dropped";
  EXPECT_FALSE(FrameSeal(key).opens("First", first)) << "changed";
  EXPECT_FALSE(FrameSeal(Proof{1, 2, 4}).opens("first", first)) << "another connection's";
  for (std::size_t at = 0; at < first.size(); ++at) {
    std::string changed = first;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_FALSE(FrameSeal(key).opens("first", changed)) << at;
    EXPECT_FALSE(FrameSeal(key).opens("first", first.substr(0, at))) << at;
  }
  EXPECT_FALSE(FrameSeal(key).opens("first", first + "x"));
}

// A file of its own, removed at the end.
class SecretFile {
 public:
  SecretFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "afd-secret-XXXXXX").string();
    const int fd = ::mkstemp(pattern.data());
    ::close(fd);
    path_ = pattern;
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  SecretFile(const SecretFile&) = delete;
  SecretFile& operator=(const SecretFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::string_view bytes, mode_t mode = 0600) const {
    std::FILE* const file = std::fopen(path_.c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file), bytes.size());
    ASSERT_EQ(std::fclose(file), 0);
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  std::string problem() const {
    const Result<Secret> secret = Secret::read(path_);
    if (secret) {
      return "none";
    }
    EXPECT_EQ(secret.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(secret.error().message, StartsWith("secret file " + path_ + " "));
    return secret.error().message;
  }

 private:
  std::string path_;
};

TEST(SecretTest, ReadsAFileWithoutItsLastLineEnds) {
  const SecretFile file;
  file.write("sixteen bytes ok");
  EXPECT_EQ(Secret::read(file.path()).value().bytes(), "sixteen bytes ok");
  file.write("sixteen bytes ok\r\n\n");
  EXPECT_EQ(Secret::read(file.path()).value().bytes(), "sixteen bytes ok");
  file.write(std::string("with\0 a \n within", 16), 0400);
  EXPECT_EQ(Secret::read(file.path()).value().bytes(), std::string("with\0 a \n within", 16));
  file.write(std::string(Secret::kBytesMax, 's'));
  EXPECT_EQ(Secret::read(file.path()).value().bytes().size(), Secret::kBytesMax);
}

TEST(SecretTest, RefusesAFileThatOthersMayRead) {
  const SecretFile file;
  for (const mode_t mode : {0640, 0604, 0660, 0606, 0610, 0601, 0644, 0700, 04600}) {
    file.write("sixteen bytes ok", mode);
    EXPECT_THAT(file.problem(), HasSubstr(", expected 0600: chmod 600 it")) << std::oct << mode;
  }
  file.write("sixteen bytes ok", 0644);
  EXPECT_THAT(file.problem(), HasSubstr("has mode 0644"));
}

TEST(SecretTest, RefusesAFileOfAnotherUser) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs the right to give a file away (root)";
  }
  const SecretFile file;
  file.write("sixteen bytes ok");
  ASSERT_EQ(::chown(file.path().c_str(), 12345, 0), 0);
  EXPECT_THAT(file.problem(), HasSubstr("belongs to user 12345, expected this one's, 0"));
}

TEST(SecretTest, RefusesWhatIsNoSecret) {
  const SecretFile file;
  file.write("");
  EXPECT_THAT(file.problem(), HasSubstr("has 0 bytes, expected 16 to 4096"));
  file.write("fifteen bytes..\n");
  EXPECT_THAT(file.problem(), HasSubstr("has 15 bytes, expected 16 to 4096"));
  file.write(std::string(Secret::kBytesMax + 1, 's'));
  EXPECT_THAT(file.problem(), HasSubstr("has more than 4096 bytes"));

  EXPECT_THAT(Secret::read("/nonexistent/secret").error().message,
              "secret file /nonexistent/secret cannot be opened: No such file or directory "
              "(errno 2)");
  EXPECT_THAT(Secret::read("/").error().message, "secret file / is no regular file");
  std::filesystem::remove(file.path());
  ASSERT_EQ(::mkfifo(file.path().c_str(), 0600), 0);
  EXPECT_THAT(file.problem(), HasSubstr("is no regular file"));  // and does not wait for a writer
}

}  // namespace
}  // namespace afd::session
