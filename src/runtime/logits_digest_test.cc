#include "runtime/logits_digest.h"

#include <vector>

#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

TEST(LogitsDigestTest, IsSha256OverTheLittleEndianBytes) {
  LogitsDigest subject;
  EXPECT_EQ(subject.finish(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  // printf '\x00\x00\x80\x3f\x00\x00\x00\xc0' | sha256sum
  subject.update(std::vector<float>{1.0f});
  subject.update(std::vector<float>{-2.0f});
  EXPECT_EQ(subject.finish(), "ee4ac73c2bd27756ab82780f27c73a7bc4d3f0bb6acb37e008bc27eccd7e588b");
}

TEST(LogitsDigestTest, OneBitChangesIt) {
  LogitsDigest subject;
  subject.update(std::vector<float>{0.0f});
  const std::string zero = subject.finish();
  subject.update(std::vector<float>{-0.0f});
  EXPECT_NE(subject.finish(), zero);
}

}  // namespace
}  // namespace afd::runtime
