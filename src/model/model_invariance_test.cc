// A row's bits depend on its own history only: not on how a prompt is cut, nor on the batch, the
// place in it, the side that runs the gate, or the machine's instructions.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "model/model.h"
#include "model/model_testing.h"

namespace afd::model {
namespace {

using Ids = std::vector<std::int32_t>;

class ModelInvariance : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string directory() { return std::string(AFD_MODELS "/") + GetParam(); }
  static TestModel load(const TestModelOptions& options = {}) {
    Result<TestModel> model = TestModel::load(directory(), options);
    EXPECT_TRUE(model) << model.error().message;
    return *std::move(model);
  }

  static Ids prompt(const TestModel& model, std::size_t length, std::uint32_t seed = 1) {
    Ids ids(length);
    for (std::int32_t& id : ids) {
      seed = seed * 1664525u + 1013904223u;
      id = static_cast<std::int32_t>((seed >> 8) % model.config().vocab_size);
    }
    return ids;
  }
};

/// Logits after each position of a prompt that passes in chunks of the given sizes.
std::vector<float> logits_in_chunks(const TestModel& model, const Ids& ids,
                                    const std::vector<std::size_t>& chunks) {
  std::vector<float> all;
  TestSequence sequence(model, ids.size());
  Scratch scratch;
  std::size_t begin = 0;
  for (std::size_t size : chunks) {
    const std::vector<Row> rows = sequence.next_rows(size);
    std::vector<std::size_t> wanted(size);
    std::iota(wanted.begin(), wanted.end(), 0);
    const std::vector<float> logits =
        forward_batch(model, rows, std::span(ids).subspan(begin, size), wanted, scratch);
    all.insert(all.end(), logits.begin(), logits.end());
    begin += size;
  }
  EXPECT_EQ(begin, ids.size());
  return all;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
        << "element " << i << ": " << a[i] << " and " << b[i];
  }
}

TEST_P(ModelInvariance, AnyCutOfAPromptGivesTheSameBits) {
  const TestModel model = load();
  const Ids ids = prompt(model, 60);
  const std::vector<float> whole = logits_in_chunks(model, ids, {60});
  for (std::size_t size : {1, 2, 3, 4, 5, 6, 12, 15, 20, 30}) {
    SCOPED_TRACE(size);
    expect_same_bits(whole,
                     logits_in_chunks(model, ids, std::vector<std::size_t>(60 / size, size)));
  }
  expect_same_bits(whole, logits_in_chunks(model, ids, {17, 1, 33, 1, 1, 7}));
}

TEST_P(ModelInvariance, ALongPromptGivesTheSameBitsWholeAndTokenByToken) {
  const TestModel model = load();
  // More rows than pass through a layer at once.
  const std::size_t length = std::min(model.config().max_position_embeddings, 300u);
  const Ids ids = prompt(model, length);
  expect_same_bits(logits_in_chunks(model, ids, {length}),
                   logits_in_chunks(model, ids, std::vector<std::size_t>(length, 1)));
}

TEST_P(ModelInvariance, AnyBatchGivesEachSequenceTheSameBits) {
  const TestModel model = load();
  constexpr std::size_t kSequences = 13;
  constexpr std::size_t kSteps = 6;
  std::vector<Ids> prompts;
  std::vector<std::vector<float>> alone;
  for (std::size_t i = 0; i < kSequences; ++i) {
    const std::size_t length = 1 + 3 * i % 11;
    prompts.push_back(prompt(model, length + kSteps, static_cast<std::uint32_t>(i)));
    std::vector<std::size_t> chunks(kSteps + 1, 1);
    chunks[0] = length;
    alone.push_back(logits_in_chunks(model, prompts.back(), chunks));
  }

  // All prompts in one batch, the rows of different sequences dealt like cards; then steps in which
  // some take part, each time in another order.
  std::vector<std::unique_ptr<TestSequence>> sequences;
  std::vector<std::size_t> done(kSequences, 0);
  std::vector<std::vector<float>> together(kSequences);
  for (std::size_t i = 0; i < kSequences; ++i) {
    sequences.push_back(std::make_unique<TestSequence>(model, 32));
  }
  Scratch scratch;
  const auto run = [&](const std::vector<std::size_t>& order) {
    std::vector<Row> rows;
    Ids ids;
    std::vector<std::size_t> wanted;
    for (std::size_t i : order) {
      rows.push_back(sequences[i]->next_rows(1)[0]);
      ids.push_back(prompts[i][done[i]++]);
      wanted.push_back(wanted.size());
    }
    const std::vector<float> logits = forward_batch(model, rows, ids, wanted, scratch);
    const std::size_t vocab_size = model.config().vocab_size;
    for (std::size_t row = 0; row < order.size(); ++row) {
      together[order[row]].insert(together[order[row]].end(), &logits[row * vocab_size],
                                  &logits[row * vocab_size] + vocab_size);
    }
  };
  std::vector<std::size_t> order;
  for (std::size_t round = 0; round < 11; ++round) {
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (round < prompts[i].size() - kSteps) {
        order.push_back(i);
      }
    }
  }
  run(order);
  std::size_t step = 0;
  while (true) {
    order.clear();
    for (std::size_t i = 0; i < kSequences; ++i) {
      const std::size_t sequence = (i * 5 + step) % kSequences;
      if (done[sequence] < prompts[sequence].size() && (sequence + step) % 3 != 0) {
        order.push_back(sequence);
      }
    }
    ++step;
    if (!order.empty()) {
      run(order);
    }
    if (std::equal(done.begin(), done.end(), prompts.begin(),
                   [](std::size_t count, const Ids& ids) { return count == ids.size(); })) {
      break;
    }
    ASSERT_LT(step, 100u);
  }
  for (std::size_t i = 0; i < kSequences; ++i) {
    SCOPED_TRACE(i);
    expect_same_bits(together[i], alone[i]);
  }
}

TEST_P(ModelInvariance, TheGateOnTheAttentionSideGivesTheSameBits) {
  const TestModel model = load();
  const TestModel gated = load({.gate_on_attention = true});
  const Ids ids = prompt(model, 40);
  expect_same_bits(logits_in_chunks(model, ids, {33, 7}), logits_in_chunks(gated, ids, {33, 7}));
}

TEST_P(ModelInvariance, EveryInstructionSetGivesTheSameBits) {
  const TestModel best = load();
  const Ids ids = prompt(best, 24);
  const std::vector<float> wanted = logits_in_chunks(best, ids, {19, 5});
  for (InstructionSet set :
       {InstructionSet::kPortable, InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (kernels_for(set) == nullptr) {
      continue;  // kernels_test counts it as skipped.
    }
    SCOPED_TRACE(kernels_for(set)->name);
    expect_same_bits(wanted, logits_in_chunks(load({.instruction_set = set}), ids, {19, 5}));
  }
}

TEST_P(ModelInvariance, ACacheThatServedAnotherSequenceLeavesNoTrace) {
  const TestModel model = load();
  const Ids before = prompt(model, 50, 7);
  const Ids ids = prompt(model, 20);
  KvCache cache(model.config(), 50);
  Scratch scratch;
  const std::size_t last = ids.size() - 1;
  const auto rows = [&](std::size_t count) {
    std::vector<Row> result;
    for (std::uint32_t position = 0; position < count; ++position) {
      result.push_back({&cache, position});
    }
    return result;
  };
  const std::size_t unused = 0;
  forward_batch(model, rows(50), before, {&unused, 1}, scratch);
  const std::vector<float> reused = forward_batch(model, rows(20), ids, {&last, 1}, scratch);
  TestSequence fresh(model, 20);
  expect_same_bits(reused, fresh.forward(ids));
}

INSTANTIATE_TEST_SUITE_P(Models, ModelInvariance,
                         ::testing::Values("austen-moe", "variants/q_lora", "variants/v3_groups_16",
                                           "variants/yarn_mscale", "variants/f16",
                                           "variants/no_shared", "variants/layer_freq"),
                         [](const auto& test) {
                           std::string name = test.param;
                           name = name.substr(name.find('/') + 1);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace afd::model
