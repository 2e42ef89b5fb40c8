#include "runtime/placement.h"

#include <map>
#include <string>
#include <utility>

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

TEST(PlacementTest, EveryProcessorGetsAsManyRanksOrNobodyIsTied) {
  // So jobs side by side load every processor alike, whatever their shapes.
  std::size_t num_tied = 0;
  for (const std::vector<std::uint32_t>& allowed :
       {std::vector<std::uint32_t>{3, 5}, {0, 1, 2}, {2, 3, 6, 7}}) {
    for (std::uint32_t a = 1; a <= 16; ++a) {
      for (std::uint32_t f = 1; f <= 16; ++f) {
        const RankCounts counts{.num_attention_ranks = a, .num_ffn_ranks = f};
        std::map<std::uint32_t, std::uint32_t> ranks_of_processor;
        std::uint32_t num_free = 0;
        for (const auto& [role, count] : {std::pair{Role::kAttention, a}, {Role::kFfn, f}}) {
          for (std::uint32_t rank = 0; rank < count; ++rank) {
            const std::vector<std::uint32_t> cpus = of(role, rank, counts, allowed);
            num_free += cpus.empty() ? 1 : 0;
            for (const std::uint32_t cpu : cpus) {
              ++ranks_of_processor[cpu];
            }
          }
        }
        SCOPED_TRACE(std::to_string(a) + "A" + std::to_string(f) + "F");
        if (num_free > 0) {
          EXPECT_EQ(num_free, a + f);
          continue;
        }
        ++num_tied;
        EXPECT_EQ(ranks_of_processor.size(), allowed.size());
        for (const auto& [cpu, num_ranks] : ranks_of_processor) {
          EXPECT_EQ(num_ranks, (a + f) / allowed.size()) << "processor " << cpu;
        }
      }
    }
  }
  EXPECT_GT(num_tied, 20u);
}

TEST(PlacementTest, AnywhereIsAnywhere) {
  EXPECT_THAT(processors_of({Role::kFfn, 0}, {.num_attention_ranks = 4, .num_ffn_ranks = 2},
                            Placement::kAnywhere, {0, 1}),
              IsEmpty());
}

}  // namespace
}  // namespace afd::runtime
