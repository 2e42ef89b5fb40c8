#include "base/check.h"

#include <gtest/gtest.h>

namespace afd::base {
namespace {

TEST(CheckDeathTest, NamesTheConditionAndTheValues) {
  const int offset = 9;
  const int size = 8;
  EXPECT_DEATH(AFD_CHECK(offset <= size, offset, size),
               "check_test.cc:[0-9]+: check failed: offset <= size \\(offset, size = 9, 8\\)");
  EXPECT_DEATH(AFD_CHECK(size == 0), "check failed: size == 0\n");
}

TEST(CheckTest, EvaluatesValuesOnlyOnFailure) {
  int evaluated = 0;
  AFD_CHECK(evaluated == 0, ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

}  // namespace
}  // namespace afd::base
