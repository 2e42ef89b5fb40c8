#include "base/copy.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "base/fence.h"

namespace afd::base {
namespace {

class CopyTest : public ::testing::TestWithParam<CopyKind> {};

TEST_P(CopyTest, CopiesExactlyTheRangeAtAnyAlignment) {
  std::mt19937 random(7);
  constexpr std::size_t kBytes = 40'000;
  std::vector<std::byte> source(kBytes);
  for (std::byte& byte : source) {
    byte = static_cast<std::byte>(random());
  }
  for (int round = 0; round < 2'000; ++round) {
    const std::size_t size = round < 300 ? static_cast<std::size_t>(round) : random() % 20'000;
    const std::size_t from = random() % (kBytes - size);
    const std::size_t to = random() % (kBytes - size);
    constexpr auto kUntouched = std::byte{0xA5};
    std::vector<std::byte> target(kBytes, kUntouched);
    std::vector<std::byte> expected = target;
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), size,
                expected.begin() + static_cast<std::ptrdiff_t>(to));

    copy_bytes(GetParam(), target.data() + to, source.data() + from, size);
    streaming_store_fence();

    ASSERT_EQ(target, expected) << size << " bytes from " << from << " to " << to;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CopyTest,
                         ::testing::Values(CopyKind::kMemcpy, CopyKind::kRepMovsb,
                                           CopyKind::kStreaming));

}  // namespace
}  // namespace afd::base
