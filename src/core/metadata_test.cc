#include <afd/metadata.h>

#include <limits>

#include <gtest/gtest.h>

#include "core/golden_testing.h"

namespace afd {
namespace {

using golden::Json;

Shape to_shape(const Json& extents) {
  switch (extents.size()) {
    case 0:
      return {};
    case 1:
      return {extents[0].get<std::uint64_t>()};
    default:
      return {extents[0].get<std::uint64_t>(), extents[1].get<std::uint64_t>()};
  }
}

/// Ours adds what was found: "..., got [3, 0]".
void expect_starts_with(const std::string& message, const Json& beginning) {
  EXPECT_EQ(message.substr(0, beginning.get<std::string>().size()), beginning);
}

TEST(MetadataGoldenTest, EverySectionIsReadHereOrListed) {
  const std::map<std::string, std::string> elsewhere = {
      {"source", "where the vectors come from"},
      {"control_state_update", "what a connector does: connectors/p2p/p2p_state_golden_test.cc"},
      {"graph_mode_receive_buffers",
       "buffers are one window, sized at init; there are none to key"},
      {"ffn_graph_key", "no device graphs: the map of the payload is sorted by stage already"},
      {"graph_run_mode", "no device graphs"},
  };
  const Json sections = golden::load("transfer_metadata.json");
  std::size_t num_read = 0;
  for (const auto& [section, cases] : sections.items()) {
    num_read += elsewhere.contains(section) ? 0 : 1;
  }
  EXPECT_EQ(num_read, 4u);  // One test each, below.
}

TEST(MetadataGoldenTest, ChecksLengthsAndShapesAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"layer_stage_unchecked", "layer and stage are unsigned here: -7 cannot be passed"},
  };
  golden::run_cases(
      golden::load("transfer_metadata.json")["transfer_metadata"], 9, inapplicable,
      [](const Json& one) {
        const Result<TransferMetadata> made = TransferMetadata::create_ffn_metadata(
            one["layer_idx"], one["stage_idx"], one["seq_lens"].get<std::vector<std::int64_t>>());
        if (one.contains("error")) {
          ASSERT_FALSE(made);
          EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
          expect_starts_with(made.error().message, one["error"]["message"]);
          return;
        }
        ASSERT_TRUE(made);
        EXPECT_TRUE(made->is_valid());
        EXPECT_EQ(made->layer_idx, one["layer_idx"]);
        EXPECT_EQ(made->stage_idx, one["stage_idx"]);
        EXPECT_EQ(made->total_tokens(), one["total_tokens"]);
        for (const Json& check : one["shape_checks"]) {
          EXPECT_EQ(made->validate_tensor_shape(to_shape(check["shape"])), check["valid"]) << check;
        }
      });
}

TEST(MetadataGoldenTest, CreatesAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"constructor_aliases_list", "a list is held by value"},
      {"unknown_attribute_rejected", "the compiler does it"},
  };
  golden::run_cases(
      golden::load("transfer_metadata.json")["transfer_metadata_api"], 5, inapplicable,
      [](const Json& one) {
        const std::string name = one["name"];
        if (name == "create_attention_ok") {
          const Result<TransferMetadata> made =
              TransferMetadata::create_attention_metadata(2, 1, 7);
          ASSERT_TRUE(made);
          EXPECT_EQ(made->seq_lens.size(), 1u);
          EXPECT_EQ(made->seq_lens[0], one["ok"]["seq_lens"][0]);
        } else if (name == "create_attention_zero") {
          const Result<TransferMetadata> made =
              TransferMetadata::create_attention_metadata(2, 1, 0);
          ASSERT_FALSE(made);
          expect_starts_with(made.error().message, one["error"]["message"]);
        } else if (name == "create_ffn_ok" || name == "create_ffn_copies_list") {
          std::vector<std::int64_t> lengths = {4, 5};
          const Result<TransferMetadata> made =
              TransferMetadata::create_ffn_metadata(2, 1, lengths);
          lengths.push_back(9);
          ASSERT_TRUE(made);
          const Json kept(std::vector<std::uint32_t>(made->seq_lens.begin(), made->seq_lens.end()));
          EXPECT_EQ(kept, name == "create_ffn_ok" ? one["ok"]["seq_lens"] : one["ok"]);
        } else if (name == "mutable_after_construction_no_revalidation") {
          TransferMetadata made = TransferMetadata::create_attention_metadata(2, 1, 7).value();
          made.layer_idx = 5;
          made.seq_lens = {};
          EXPECT_EQ(made.total_tokens(), one["ok"]["total_tokens"]);
          EXPECT_FALSE(made.is_valid());
        } else {
          ADD_FAILURE() << "a case without a test";
        }
      });
}

TEST(MetadataGoldenTest, ComputesShardsAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"scalar", "counts are a list here"},
  };
  golden::run_cases(
      golden::load("transfer_metadata.json")["dp_metadata"], 8, inapplicable, [](const Json& one) {
        const auto counts = one["num_tokens"].get<std::vector<std::int32_t>>();
        Result<DpMetadata> made = DpMetadata{counts, 0};
        if (one["max_tokens"].is_null()) {
          made = DpMetadata::create(counts);
        } else {
          made->max_tokens_across_dp = one["max_tokens"];
        }
        ASSERT_EQ(made.has_value(), !one.contains("error"));
        if (!made) {
          EXPECT_EQ(made.error().message,
                    "num_tokens_across_dp is empty, expected a count for each attention DP rank");
          return;
        }
        EXPECT_EQ(Json(made->num_tokens_across_dp), one["num_tokens_across_dp_cpu"]);
        EXPECT_EQ(made->max_tokens_across_dp, one["max_tokens_across_dp_cpu"]);
        for (const Json& shards : one["sp"]) {
          EXPECT_EQ(Json(made->sp_local_sizes(shards["sp_size"]).value()), shards["ok"]["inside"]);
          EXPECT_EQ(Json(made->cu_tokens_across_sp(shards["sp_size"]).value()),
                    shards["cu_tokens_across_sp"]["ok"]);
        }
        for (const Json& chunk : one["chunked"]) {
          EXPECT_EQ(Json(made->chunked_sizes(chunk["sp_size"], chunk["max_chunk_size_per_rank"],
                                             chunk["chunk_idx"])
                             .value()),
                    chunk["ok"]);
        }
      });
}

TEST(MetadataGoldenTest, LooksUpRowsPerAttentionRankAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"two_dimensional_flattened", "counts are a flat list here"},
  };
  golden::run_cases(
      golden::load("transfer_metadata.json")["num_tokens_for_attention_rank"], 13, inapplicable,
      [](const Json& one) {
        const auto counts = one["counts"].get<std::vector<std::int32_t>>();
        for (const auto& [rank, tokens] : one["tokens_by_attention_rank"].items()) {
          EXPECT_EQ(num_tokens_for_attention_rank(counts, std::stoll(rank), one["attention_size"],
                                                  one.value("fallback", std::int64_t{1})),
                    tokens)
              << "rank " << rank;
        }
      });
}

TEST(TransferMetadataTest, RefusesALengthThatIsNotPositive) {
  const std::vector<std::int64_t> lengths = {3, 0};
  const Result<TransferMetadata> metadata = TransferMetadata::create_ffn_metadata(1, 0, lengths);

  ASSERT_FALSE(metadata);
  EXPECT_EQ(metadata.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(metadata.error().message, "all sequence lengths must be positive, got [3, 0]");
}

TEST(TransferMetadataTest, RefusesALengthThatDoesNotFit) {
  const Result<TransferMetadata> metadata =
      TransferMetadata::create_attention_metadata(1, 0, std::int64_t{1} << 32);

  ASSERT_FALSE(metadata);
  EXPECT_EQ(metadata.error().message,
            "all sequence lengths must be at most 4294967295, got [4294967296]");
}

TEST(TransferMetadataTest, RefusesMorePeersThanItHolds) {
  const std::vector<std::int64_t> full(SeqLens::kPeersMax, 2);
  const std::vector<std::int64_t> too_many(SeqLens::kPeersMax + 1, 2);

  EXPECT_EQ(TransferMetadata::create_ffn_metadata(0, 0, full).value().total_tokens(), 128u);
  const Result<TransferMetadata> metadata = TransferMetadata::create_ffn_metadata(0, 0, too_many);
  ASSERT_FALSE(metadata);
  EXPECT_EQ(metadata.error().message, "seq_lens has 65 entries, expected at most 64");
}

TEST(TransferMetadataTest, TotalsDoNotWrap) {
  const std::vector<std::int64_t> lengths(SeqLens::kPeersMax, 0xffffffff);
  EXPECT_EQ(TransferMetadata::create_ffn_metadata(0, 0, lengths).value().total_tokens(),
            std::uint64_t{64} * 0xffffffff);
}

TEST(TransferMetadataTest, ComparesOnlyTheLengthsInUse) {
  SeqLens once;
  once.push_back(3);
  SeqLens twice;
  twice.push_back(3);
  twice.push_back(4);
  EXPECT_FALSE(once == twice);
  once.push_back(4);
  EXPECT_EQ(once, twice);
}

TEST(DpMetadataTest, RefusesAShardCountThatIsNone) {
  const DpMetadata metadata = DpMetadata::create({3, 5}).value();
  for (std::uint32_t sp_size : {0u, 65537u}) {
    const Result<std::vector<std::int32_t>> sizes = metadata.sp_local_sizes(sp_size);
    ASSERT_FALSE(sizes);
    EXPECT_EQ(sizes.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(sizes.error().message,
              "sp_size is " + std::to_string(sp_size) + ", expected 1 to 65536");
    EXPECT_FALSE(metadata.cu_tokens_across_sp(sp_size));
    EXPECT_FALSE(metadata.chunked_sizes(sp_size, 4, 0));
  }
}

TEST(DpMetadataTest, ShardsAndChunksOfExtremeCountsDoNotWrap) {
  constexpr std::int32_t kMax = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  const DpMetadata metadata = DpMetadata::create({kMax, kMin}).value();
  EXPECT_EQ(metadata.max_tokens_across_dp, kMax);
  EXPECT_EQ(metadata.sp_local_sizes(2).value(),
            (std::vector<std::int32_t>{1073741824, 1073741824, kMin / 2, kMin / 2}));
  EXPECT_EQ(metadata.chunked_sizes(1, kMax, std::numeric_limits<std::uint32_t>::max()).value(),
            (std::vector<std::int32_t>{1, 1}));
}

TEST(NumTokensTest, ClampsTheFallbackToWhatFits) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(num_tokens_for_attention_rank({}, 0, 2, kHuge), 0xffffffffu);
  EXPECT_EQ(num_tokens_for_attention_rank({}, 0, 2, -kHuge), 1u);
  const std::vector<std::int32_t> counts = {4, 5};
  EXPECT_EQ(num_tokens_for_attention_rank(counts, kHuge, 2), 1u);
  EXPECT_EQ(num_tokens_for_attention_rank(counts, 3, 4), 5u);
}

}  // namespace
}  // namespace afd
