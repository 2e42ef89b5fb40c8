#include "runtime/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::uint32_t> of(Role role, std::uint32_t role_rank, RankCounts counts,
                              const std::vector<std::uint32_t>& allowed) {
  return processors_of({role, role_rank}, counts, Placement::kAuto, allowed);
}

TEST(PlacementTest, EvenSubgroupsShareAProcessor) {
  const RankCounts counts{.num_attention_ranks = 4, .num_ffn_ranks = 2};
  EXPECT_THAT(of(Role::kFfn, 1, counts, {0, 1}), ElementsAre(1u));
  EXPECT_THAT(of(Role::kAttention, 1, counts, {0, 1}), ElementsAre(0u));
  EXPECT_THAT(of(Role::kAttention, 2, counts, {0, 1}), ElementsAre(1u));
}

TEST(PlacementTest, WhatIsUnevenIsLeftToTheKernel) {
  EXPECT_THAT(of(Role::kFfn, 0, {.num_attention_ranks = 3, .num_ffn_ranks = 2}, {0, 1}), IsEmpty());
  EXPECT_THAT(of(Role::kFfn, 0, {.num_attention_ranks = 2, .num_ffn_ranks = 1}, {0, 1}), IsEmpty());
  EXPECT_THAT(of(Role::kFfn, 0, {.num_attention_ranks = 1, .num_ffn_ranks = 1}, {0, 1}), IsEmpty());
  EXPECT_THAT(of(Role::kFfn, 0, {.num_attention_ranks = 2, .num_ffn_ranks = 2}, {0, 1}), IsEmpty());
  EXPECT_THAT(of(Role::kFfn, 0, {.num_attention_ranks = 4, .num_ffn_ranks = 2}, {0}), IsEmpty());
}

TEST(PlacementTest, AnywhereIsAnywhere) {
  EXPECT_THAT(processors_of({Role::kFfn, 0}, {.num_attention_ranks = 4, .num_ffn_ranks = 2},
                            Placement::kAnywhere, {0, 1}),
              IsEmpty());
}

}  // namespace
}  // namespace afd::runtime
