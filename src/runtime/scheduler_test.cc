#include "runtime/scheduler.h"

#include <numeric>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Request request(std::uint32_t request_idx, std::uint32_t num_prompt, std::uint32_t max_new_tokens) {
  Request made{.request_idx = request_idx, .prompt_ids = {}, .max_new_tokens = max_new_tokens};
  made.prompt_ids.resize(num_prompt);
  std::iota(made.prompt_ids.begin(), made.prompt_ids.end(), 100 * std::int32_t(request_idx));
  return made;
}

/// "request:first+count" of each chunk, with '*' where it samples.
std::vector<std::string> shape(std::span<const Chunk> chunks) {
  std::vector<std::string> text;
  for (const Chunk& chunk : chunks) {
    text.push_back(std::to_string(chunk.request_idx) + ":" + std::to_string(chunk.first_position) +
                   "+" + std::to_string(chunk.num_tokens) + (chunk.samples ? "*" : ""));
  }
  return text;
}

constexpr std::int32_t kEos = 9;

Scheduler scheduler(SchedulerLimits limits, std::vector<Request> requests,
                    std::uint32_t context_length = 1000) {
  return Scheduler(limits, {.context_length = context_length, .eos_token_ids = {kEos}},
                   std::move(requests));
}

TEST(SchedulerTest, GeneratingRowsComeFirstAndAPromptIsCutIntoChunks) {
  Scheduler subject = scheduler({.num_seqs_max = 8, .num_tokens_max = 4},
                                {request(0, 2, 3), request(1, 5, 1), request(2, 1, 1)});

  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:0+2*", "1:0+2"));
  subject.finish_step(std::vector<std::int32_t>{7});
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:2+1*", "1:2+3*"));
  const StepOutcome& outcome = subject.finish_step(std::vector<std::int32_t>{7, 8});
  EXPECT_THAT(outcome.tokens, ElementsAre(TokenEvent{0, 7}, TokenEvent{1, 8}));
  EXPECT_THAT(outcome.finished, ElementsAre(Output{.request_idx = 1, .token_ids = {8}}));
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:3+1*", "2:0+1*"));
  EXPECT_THAT(subject.finish_step(std::vector<std::int32_t>{1, 2}).finished,
              ElementsAre(Output{.request_idx = 0, .token_ids = {7, 7, 1}},
                          Output{.request_idx = 2, .token_ids = {2}}));
  EXPECT_TRUE(subject.done());
  EXPECT_THAT(subject.next_step(), IsEmpty());
}

TEST(SchedulerTest, WhatWaitsCanBeForgottenWhatIsUnderWayIsFinished) {
  Scheduler subject =
      scheduler({.num_seqs_max = 2, .num_tokens_max = 4},
                {request(0, 2, 2), request(1, 5, 1), request(2, 1, 1), request(3, 1, 1)});
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:0+2*", "1:0+2"));
  EXPECT_EQ(subject.drop_waiting(), 2u);
  EXPECT_EQ(subject.drop_waiting(), 0u);
  subject.finish_step(std::vector<std::int32_t>{7});
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:2+1*", "1:2+3*"));
  subject.finish_step(std::vector<std::int32_t>{7, 8});
  EXPECT_TRUE(subject.done());
  EXPECT_THAT(subject.next_step(), IsEmpty());
}

TEST(SchedulerTest, ChunksCarryTheTokensOfTheirPositions) {
  Scheduler subject = scheduler({.num_seqs_max = 8, .num_tokens_max = 2}, {request(3, 3, 2)});
  auto chunk = subject.next_step()[0];
  EXPECT_THAT(std::vector<std::int32_t>(chunk.token_ids, chunk.token_ids + 2),
              ElementsAre(300, 301));
  subject.finish_step({});
  chunk = subject.next_step()[0];
  EXPECT_EQ(chunk.token_ids[0], 302);
  subject.finish_step(std::vector<std::int32_t>{5});
  chunk = subject.next_step()[0];
  EXPECT_EQ(chunk.token_ids[0], 5);
  EXPECT_EQ(chunk.first_position, 3u);
}

TEST(SchedulerTest, KeepsNoMoreSequencesUnderWayThanSlotsAndReusesThem) {
  Scheduler subject = scheduler({.num_seqs_max = 2, .num_tokens_max = 100},
                                {request(0, 1, 1), request(1, 1, 2), request(2, 1, 1)});
  EXPECT_EQ(subject.num_slots(), 2u);
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:0+1*", "1:0+1*"));
  EXPECT_THAT(subject.finish_step(std::vector<std::int32_t>{4, 4}).finished_slots, ElementsAre(0u));
  const auto chunks = subject.next_step();
  EXPECT_THAT(shape(chunks), ElementsAre("1:1+1*", "2:0+1*"));
  EXPECT_EQ(chunks[1].slot_idx, 0u);
}

TEST(SchedulerTest, MoreSequencesThanRowsOfAStepNeverRun) {
  Scheduler subject =
      scheduler({.num_seqs_max = 8, .num_tokens_max = 1}, {request(0, 1, 2), request(1, 1, 1)});
  EXPECT_EQ(subject.num_slots(), 1u);
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:0+1*"));
  subject.finish_step(std::vector<std::int32_t>{4});
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("0:1+1*"));
  subject.finish_step(std::vector<std::int32_t>{4});
  EXPECT_THAT(shape(subject.next_step()), ElementsAre("1:0+1*"));
}

TEST(SchedulerTest, AnEndTokenStopsAndIsKept) {
  Scheduler subject = scheduler({}, {request(0, 1, 50)});
  (void)subject.next_step();
  EXPECT_THAT(subject.finish_step(std::vector<std::int32_t>{kEos}).finished,
              ElementsAre(Output{
                  .request_idx = 0, .token_ids = {kEos}, .finish_reason = FinishReason::kStop}));
}

TEST(SchedulerTest, TheContextsEndIsALength) {
  Scheduler subject = scheduler({}, {request(0, 3, 50)}, /*context_length=*/5);
  EXPECT_EQ(subject.num_positions_max(), 5u);
  (void)subject.next_step();
  EXPECT_THAT(subject.finish_step(std::vector<std::int32_t>{1}).finished, IsEmpty());
  (void)subject.next_step();
  EXPECT_THAT(subject.finish_step(std::vector<std::int32_t>{2}).finished,
              ElementsAre(Output{.request_idx = 0, .token_ids = {1, 2}}));
}

TEST(SchedulerTest, WithoutRequestsItIsDoneAtOnce) {
  Scheduler subject = scheduler({}, {});
  EXPECT_TRUE(subject.done());
  EXPECT_EQ(subject.num_slots(), 0u);
  EXPECT_THAT(subject.next_step(), IsEmpty());
}

TEST(StageRowsTest, CoverAllRowsInOrderAndDifferByAtMostOne) {
  for (std::uint32_t num_stages = 1; num_stages <= 8; ++num_stages) {
    for (std::uint32_t num_rows = 0; num_rows <= 20; ++num_rows) {
      std::uint32_t next = 0;
      for (std::uint32_t stage_idx = 0; stage_idx < num_stages; ++stage_idx) {
        const RowRange range = stage_rows(num_rows, stage_idx, num_stages);
        EXPECT_EQ(range.first_row, next);
        EXPECT_TRUE(range.num_rows == num_rows / num_stages ||
                    range.num_rows == num_rows / num_stages + 1);
        next += range.num_rows;
      }
      EXPECT_EQ(next, num_rows);
    }
  }
}

}  // namespace
}  // namespace afd::runtime
