// Threads that share a loaded model, each with a Scratch and sequences of its own, get the bits
// that one alone gets.
#include <gtest/gtest.h>

#include <thread>

#include "model/model_testing.h"

namespace afd::model {
namespace {

TEST(ModelThreads, SharingAModelChangesNothing) {
  const Result<TestModel> model = TestModel::load(AFD_MODELS "/variants/v3");
  ASSERT_TRUE(model) << model.error().message;
  const std::vector<std::vector<std::int32_t>> prompts = {{5, 9, 77, 31}, {8}, {100, 3, 3, 14, 15}};
  std::vector<std::vector<std::int32_t>> alone;
  for (const auto& prompt : prompts) {
    alone.push_back(greedy(*model, prompt, 12));
  }
  std::vector<std::vector<std::int32_t>> together(prompts.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      threads.emplace_back([&, i] { together[i] = greedy(*model, prompts[i], 12); });
    }
  }
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace afd::model
