// After a Scratch has seen its largest batch, a pass through the network allocates nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "model/model_testing.h"

namespace {

std::atomic<std::size_t> num_allocations = 0;

void* counted(std::size_t size, std::size_t align) {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = nullptr;
  if (align <= alignof(std::max_align_t)) {
    memory = std::malloc(size);
  } else if (posix_memalign(&memory, align, size) != 0) {
    memory = nullptr;
  }
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t size) {
  return counted(size, 1);
}
void* operator new[](std::size_t size) {
  return counted(size, 1);
}
void* operator new(std::size_t size, std::align_val_t align) {
  return counted(size, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return counted(size, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace afd::model {
namespace {

class ModelAllocation : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelAllocation, NothingAllocatesOnceTheLargestBatchWasSeen) {
  const Result<TestModel> model = TestModel::load(std::string(AFD_MODELS "/") + GetParam());
  ASSERT_TRUE(model) << model.error().message;
  const ModelConfig& config = model->config();
  constexpr std::size_t kRowsMax = 20;
  KvCache cache(config, 200);
  Scratch scratch;
  std::vector<float> residual(kRowsMax * config.hidden_size);
  std::vector<float> hidden(residual.size());
  std::vector<float> output(residual.size());
  std::vector<float> logits(kRowsMax * config.vocab_size);
  std::vector<std::int32_t> ids(kRowsMax, 3);
  std::vector<Row> rows;
  rows.reserve(kRowsMax);
  std::uint32_t position = 0;
  const auto pass = [&](std::size_t num_rows) {
    rows.clear();
    for (std::size_t i = 0; i < num_rows; ++i) {
      rows.push_back({&cache, position++});
    }
    model->attention->embed({ids.data(), num_rows}, residual.data());
    for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      model->attention->attention(layer, rows, residual.data(), hidden.data(), scratch);
      model->ffn->forward(layer, hidden.data(), num_rows, nullptr, output.data(), scratch);
      model->attention->add(residual.data(), output.data(), num_rows);
    }
    model->attention->logits(residual.data(), num_rows, logits.data(), scratch);
  };

  const std::size_t before = num_allocations.load();
  pass(kRowsMax);
  EXPECT_GT(num_allocations.load(), before) << "the counter counts";
  const std::size_t warm = num_allocations.load();
  for (std::size_t num_rows : {1, 20, 7, 20, 3, 19, 1, 1}) {
    pass(num_rows);
  }
  EXPECT_EQ(num_allocations.load(), warm);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelAllocation,
                         ::testing::Values("austen-moe", "variants/q_lora", "variants/v3"),
                         [](const auto& test) {
                           std::string name = test.param;
                           name = name.substr(name.find('/') + 1);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace afd::model
