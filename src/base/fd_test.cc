#include "base/fd.h"

#include <fcntl.h>

#include <utility>

#include <gtest/gtest.h>

namespace afd::base {
namespace {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) != -1;
}

TEST(FdTest, ClosesWhatItOwnsOnce) {
  const int raw = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(raw, 0);
  {
    Fd first(raw);
    Fd second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT: what a moved-from one holds is the claim.
    EXPECT_EQ(second.get(), raw);
    EXPECT_TRUE(is_open(raw));
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(FdTest, AssignmentClosesTheOldOne) {
  const int first = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int second = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  Fd fd(first);
  fd = Fd(second);
  EXPECT_FALSE(is_open(first));
  EXPECT_EQ(fd.get(), second);
}

TEST(FdTest, ReleaseGivesItUp) {
  Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int raw = fd.release();
  EXPECT_FALSE(fd);
  EXPECT_TRUE(is_open(raw));
  ::close(raw);
}

}  // namespace
}  // namespace afd::base
