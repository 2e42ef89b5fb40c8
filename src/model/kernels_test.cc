// Every instruction set that this machine has gives the bits that kernels.h defines.
#include "model/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace afd::model {
namespace {

class KernelsTest : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    kernels_ = kernels_for(GetParam());
    if (kernels_ == nullptr) {
      GTEST_SKIP() << "this machine lacks the instruction set";
    }
  }

  const Kernels* kernels_ = nullptr;
  std::mt19937 generator_{1};

  std::vector<float> random_floats(std::size_t count, float magnitude = 2.0f) {
    std::uniform_real_distribution<float> uniform(-magnitude, magnitude);
    std::vector<float> values(count);
    for (float& value : values) {
      value = uniform(generator_);
    }
    return values;
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

float as_bf16(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffff0000u);
}

/// One fused chain over k for each element: what a product is.
std::vector<float> chains(const std::vector<float>& x, const std::vector<float>& weights,
                          std::size_t m, std::size_t k, std::size_t n) {
  std::vector<float> out(m * n);
  for (std::size_t r = 0; r < m; ++r) {
    for (std::size_t j = 0; j < n; ++j) {
      float sum = 0.0f;
      for (std::size_t i = 0; i < k; ++i) {
        sum = std::fma(x[r * k + i], weights[j * k + i], sum);
      }
      out[r * n + j] = sum;
    }
  }
  return out;
}

TEST_P(KernelsTest, AProductIsOneFusedChainForEachElement) {
  for (std::size_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 23}) {
    for (std::size_t n : {1, 15, 16, 17, 40, 64, 100, 144}) {
      for (std::size_t k : {1, 2, 7, 64}) {
        SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(k) + " x " + std::to_string(n));
        const std::vector<float> x = random_floats(m * k);
        std::vector<float> weights = random_floats(n * k);
        for (float& weight : weights) {
          weight = as_bf16(weight);
        }
        const std::size_t num_panels = (n + kLanes - 1) / kLanes;
        std::vector<float> panels(num_panels * k * kLanes);
        std::vector<std::uint16_t> halves(panels.size());
        for (std::size_t j = 0; j < n; ++j) {
          for (std::size_t i = 0; i < k; ++i) {
            const std::size_t panel = j / kLanes * k * kLanes;
            panels[panel + i * kLanes + j % kLanes] = weights[j * k + i];
            if (k % 2 == 0) {
              halves[panel + (i / 2 * kLanes + j % kLanes) * 2 + i % 2] =
                  static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weights[j * k + i]) >>
                                             16);
            }
          }
        }
        const std::vector<float> wanted = chains(x, weights, m, k, n);
        // One element of room behind each row shows a store that goes too far.
        constexpr float kUntouched = 123.0f;
        const std::size_t stride = n + 1;
        const auto check = [&](void (*product)(const Product&), const void* data) {
          std::vector<float> out(m * stride, kUntouched);
          product({.x = x.data(),
                   .x_stride = k,
                   .num_rows = m,
                   .panels = data,
                   .panel_stride = k * kLanes,
                   .k = k,
                   .n = n,
                   .out = out.data(),
                   .out_stride = stride});
          for (std::size_t r = 0; r < m; ++r) {
            ASSERT_EQ(std::memcmp(&out[r * stride], &wanted[r * n], n * sizeof(float)), 0)
                << "row " << r;
            ASSERT_EQ(out[r * stride + n], kUntouched);
          }
        };
        check(kernels_->product_f32, panels.data());
        if (k % 2 == 0) {
          check(kernels_->product_bf16, halves.data());
        }
      }
    }
  }
}

TEST_P(KernelsTest, EveryOtherKernelHasThePortableBits) {
  const Kernels& portable = *kernels_for(InstructionSet::kPortable);
  // Several of each: a sum in another order rounds to the same bits more often than not.
  for (std::size_t round = 0; round < 200; ++round) {
    constexpr std::size_t kCounts[] = {1, 3, 15, 16, 17, 31, 32, 64, 80, 257};
    const std::size_t count = kCounts[round % std::size(kCounts)];
    SCOPED_TRACE(count);
    std::vector<float> x = random_floats(count, 30.0f);
    x[0] = -200.0f;  // Beyond what exp() can give.
    const std::vector<float> y = random_floats(count);
    const auto both = [&](auto call) {
      std::vector<float> here = x;
      std::vector<float> there = x;
      here.resize(round_up_to_lanes(count));
      there.resize(round_up_to_lanes(count));
      call(*kernels_, here);
      call(portable, there);
      EXPECT_TRUE(same_bits(here, there));
    };
    both([&](const Kernels& k, std::vector<float>& out) {
      k.rms_norm(y.data(), y.data(), count, 1e-6f, out.data());
    });
    both([&](const Kernels& k, std::vector<float>& out) {
      out[0] += k.exp_minus_max(out.data(), count, 0.25f);
    });
    both([&](const Kernels& k, std::vector<float>& out) { k.sigmoid(out.data(), count); });
    both([&](const Kernels& k, std::vector<float>& out) {
      k.silu_multiply(x.data(), y.data(), count, out.data());
    });
    both([&](const Kernels& k, std::vector<float>& out) { k.add(out.data(), y.data(), count); });
    both([&](const Kernels& k, std::vector<float>& out) {
      k.scale(out.data(), y.data(), 0.3f, count);
    });
    both([&](const Kernels& k, std::vector<float>& out) {
      k.scale_add(out.data(), y.data(), 0.3f, count);
    });
  }
}

TEST_P(KernelsTest, AnElementsBitsDoNotDependOnItsPlace) {
  const float value = 1.2345f;
  std::vector<float> alone = {value};
  kernels_->sigmoid(alone.data(), 1);
  std::vector<float> many(100, value);
  kernels_->sigmoid(many.data(), many.size());
  for (float element : many) {
    EXPECT_EQ(element, alone[0]);
  }
}

TEST_P(KernelsTest, ExponentialsAreExactToTwoUnits) {
  // With the largest of each vector at 0, the others come out as exp(x).
  std::vector<float> x(kLanes);
  double worst = 0.0;
  for (float at = -86.0f; at < 0.0f; at += 0.0437f) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      x[i] = i == 0 ? 0.0f : at - 0.002f * static_cast<float>(i);
    }
    const std::vector<float> before = x;
    kernels_->exp_minus_max(x.data(), kLanes, 1.0f);
    EXPECT_EQ(x[0], 1.0f);
    for (std::size_t i = 1; i < kLanes; ++i) {
      const double wanted = std::exp(static_cast<double>(before[i]));
      worst = std::max(worst, std::abs(x[i] / wanted - 1.0));
    }
  }
  EXPECT_LT(worst, 2 * static_cast<double>(std::numeric_limits<float>::epsilon()));
}

TEST_P(KernelsTest, ExpMinusMaxClearsWhatFollowsAndSumsTheRest) {
  std::vector<float> x(kLanes, 7.0f);
  const float sum = kernels_->exp_minus_max(x.data(), 3, 1.0f);
  EXPECT_EQ(sum, 3.0f);
  for (std::size_t i = 0; i < kLanes; ++i) {
    EXPECT_EQ(x[i], i < 3 ? 1.0f : 0.0f);
  }
}

TEST_P(KernelsTest, NotANumberStaysOne) {
  std::vector<float> x = {std::numeric_limits<float>::quiet_NaN(), 1.0f};
  kernels_->sigmoid(x.data(), x.size());
  EXPECT_TRUE(std::isnan(x[0]));
  EXPECT_FALSE(std::isnan(x[1]));
}

TEST_P(KernelsTest, TransposePutsRowsSideBySide) {
  for (std::size_t count : {1, 8, 16, 24, 80}) {
    const std::size_t padded = round_up_to_lanes(count);
    const std::vector<float> source = random_floats(kLanes * padded);
    const float* rows[kLanes];
    for (std::size_t r = 0; r < kLanes; ++r) {
      rows[r] = &source[r * padded];
    }
    std::vector<float> panel(padded * kLanes);
    kernels_->transpose(rows, count, panel.data());
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t r = 0; r < kLanes; ++r) {
        ASSERT_EQ(panel[i * kLanes + r], rows[r][i]) << i << ", " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, KernelsTest,
                         ::testing::Values(InstructionSet::kPortable, InstructionSet::kAvx2,
                                           InstructionSet::kAvx512),
                         [](const auto& test) -> std::string {
                           return test.param == InstructionSet::kPortable ? "Portable"
                                  : test.param == InstructionSet::kAvx2   ? "Avx2"
                                                                          : "Avx512";
                         });

TEST(KernelsForTest, TheBestIsAlwaysThere) {
  ASSERT_NE(kernels_for(InstructionSet::kBest), nullptr);
  ASSERT_NE(kernels_for(InstructionSet::kPortable), nullptr);
  EXPECT_STREQ(kernels_for(InstructionSet::kPortable)->name, "portable");
}

}  // namespace
}  // namespace afd::model
