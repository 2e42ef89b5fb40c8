#include "runtime/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Request request(std::uint32_t request_idx, std::size_t num_prompt, std::uint32_t max_new_tokens) {
  return {.request_idx = request_idx,
          .prompt_ids = std::vector<std::int32_t>(num_prompt, 1),
          .max_new_tokens = max_new_tokens,
          .sampling = {}};
}

std::vector<std::vector<std::uint32_t>> indices(const std::vector<std::vector<Request>>& dealt) {
  std::vector<std::vector<std::uint32_t>> by_rank;
  for (const std::vector<Request>& requests : dealt) {
    by_rank.emplace_back();
    for (const Request& each : requests) {
      by_rank.back().push_back(each.request_idx);
    }
  }
  return by_rank;
}

TEST(DealRequestsTest, EachGoesToTheRankWithTheLeastWork) {
  const std::vector<Request> requests = {request(0, 10, 10), request(1, 1, 1), request(2, 1, 1),
                                         request(3, 15, 5), request(4, 1, 1)};
  EXPECT_THAT(indices(deal_requests(requests, 2)),
              ElementsAre(ElementsAre(0u, 4u), ElementsAre(1u, 2u, 3u)));
}

TEST(DealRequestsTest, EqualRequestsGoRoundAndSomeRanksMayHaveNone) {
  const std::vector<Request> requests = {request(0, 1, 1), request(1, 1, 1), request(2, 1, 1)};
  EXPECT_THAT(indices(deal_requests(requests, 2)),
              ElementsAre(ElementsAre(0u, 2u), ElementsAre(1u)));
  EXPECT_THAT(indices(deal_requests(requests, 4)),
              ElementsAre(ElementsAre(0u), ElementsAre(1u), ElementsAre(2u), ElementsAre()));
}

TEST(ValidateJobTest, NamesTheValueFoundAndTheValueWanted) {
  JobOptions options;
  EXPECT_TRUE(validate_job(options));
  options.num_stages = 0;
  EXPECT_EQ(validate_job(options).error().message, "num_stages is 0, expected at least 1");
  options = {};
  options.max_num_tokens = 0;
  EXPECT_EQ(validate_job(options).error().message, "max_num_tokens is 0, expected at least 1");
  options = {};
  options.hop_timeout = std::chrono::milliseconds(0);
  EXPECT_EQ(validate_job(options).error().message, "hop_timeout is 0 ms, expected above 0");
  options = {};
  options.afd.num_ffn_ranks = 0;
  EXPECT_THAT(validate_job(options).error().message, HasSubstr("num_ffn_ranks"));
  options = {};
  options.model_dir = "/m/caf\xc3\xa9";
  EXPECT_TRUE(validate_job(options));
  options.model_dir = "/m/caf\xe9";
  EXPECT_EQ(validate_job(options).error().message,
            "the model folder's name is not UTF-8 at byte 6: /m/caf\xe9");
}

TEST(ValidateRequestTest, TheContextNeedsRoomForATokenAndIdsHaveToBeKnown) {
  model::ModelConfig config;
  config.vocab_size = 10;
  config.max_position_embeddings = 4;
  EXPECT_TRUE(validate_request(request(0, 3, 1), config));
  EXPECT_THAT(validate_request(request(0, 4, 1), config).error().message,
              HasSubstr("the prompt has 4 tokens"));
  EXPECT_THAT(validate_request(request(0, 0, 1), config).error().message, HasSubstr("no tokens"));
  EXPECT_THAT(validate_request(request(0, 1, 0), config).error().message,
              HasSubstr("max_new_tokens is 0"));
  Request unknown = request(0, 2, 1);
  unknown.prompt_ids[1] = 10;
  EXPECT_THAT(validate_request(unknown, config).error().message,
              HasSubstr("token id 10 at position 1 is not in [0, 10)"));
  unknown.prompt_ids[1] = -1;
  EXPECT_THAT(validate_request(unknown, config).error().message, HasSubstr("token id -1"));
}

}  // namespace
}  // namespace afd::runtime
