#include <afd/topology.h>

#include <algorithm>
#include <limits>
#include <set>

#include <gtest/gtest.h>

#include "core/golden_testing.h"

namespace afd {
namespace {

using golden::Json;

constexpr const char* kPositiveFfn = "num_ffn_ranks must be positive, got 0";

std::int64_t attention_of(const Json& one) {
  return one["num_attention_ranks"];
}
std::int64_t ffn_of(const Json& one) {
  return one["num_ffn_ranks"];
}

/// The reference divides by zero there; here it is the message of the positivity check.
std::string expected_message(const Json& error) {
  return error["kind"] == "ZeroDivisionError" ? kPositiveFfn : error["message"].get<std::string>();
}

/// build_rank_mapping with the reference's rule in front.
Result<RankMapping> strict_mapping(const Json& one) {
  if (Result<void> strict = validate_strict_topology(attention_of(one), ffn_of(one)); !strict) {
    return fail(std::move(strict).error());
  }
  const Result<Role> role = parse_role(one["role"].get<std::string>());
  return build_rank_mapping(attention_of(one), ffn_of(one), role.value(), one["role_rank"]);
}

void expect_mapping(const Result<RankMapping>& built, const Json& wanted) {
  ASSERT_TRUE(built) << built.error().message;
  EXPECT_EQ(to_string(built->role), wanted["role"]);
  EXPECT_EQ(built->role_rank, wanted["role_rank"]);
  EXPECT_EQ(built->world_rank, wanted["world_rank"]);
  EXPECT_EQ(built->p2p_rank, wanted["p2p_rank"]);
  EXPECT_EQ(built->counts.num_attention_ranks, wanted["attention_size"]);
  EXPECT_EQ(built->counts.num_ffn_ranks, wanted["ffn_size"]);
  EXPECT_EQ(built->min_size, wanted["min_size"]);
  EXPECT_EQ(built->subgroup_ranks.size(), wanted["ratio"].get<std::size_t>() + 1);
  EXPECT_EQ(built->subgroup_index, wanted["subgroup_index"]);
  EXPECT_EQ(built->rank_in_subgroup, wanted["rank_in_subgroup"]);
  EXPECT_EQ(Json(built->subgroup_ranks), wanted["subgroup_ranks"]);
  EXPECT_EQ(Json(built->dp_metadata_destinations), wanted["dp_metadata_destinations"]);
  EXPECT_EQ(built->role == Role::kAttention && built->participates_in_dp_metadata_group,
            wanted["is_attention_top_min_size_rank"]);
  EXPECT_EQ(built->participates_in_dp_metadata_group, wanted["participates_in_dp_metadata_group"]);
}

TEST(TopologyGoldenTest, StrictRuleAcceptsAndRefusesAsTheReference) {
  golden::run_cases(
      golden::load("topology.json")["topology_validation"], 189, {}, [](const Json& one) {
        const Result<void> strict = validate_strict_topology(attention_of(one), ffn_of(one));
        ASSERT_EQ(strict.has_value(), one["valid"].get<bool>());
        if (!strict) {
          EXPECT_EQ(strict.error().code, ErrorCode::kInvalidArgument);
          EXPECT_EQ(strict.error().message, expected_message(one["error"]));
        }
      });
}

TEST(TopologyGoldenTest, MapsEveryRankAsTheReference) {
  golden::run_cases(golden::load("topology.json")["mapping"], 211, {},
                    [](const Json& one) { expect_mapping(strict_mapping(one), one["mapping"]); });
}

TEST(TopologyGoldenTest, RefusesMappingsAsTheReference) {
  const Json cases = golden::load("topology.json")["mapping_edge_cases"];
  std::size_t num_unknown_roles = 0;
  for (const Json& one : cases) {
    SCOPED_TRACE(one.dump());
    const std::string role_text = one["role"];
    if (one["error"]["message"] == "unknown AFD role '" + role_text + "'") {
      // A Role cannot hold them: whoever reads one from text refuses it, before any mapping.
      const Result<Role> role = parse_role(role_text);
      ASSERT_FALSE(role);
      EXPECT_EQ(role.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(role.error().message,
                "AFD role must be one of ('attention', 'ffn'), got '" + role_text + "'");
      ++num_unknown_roles;
      continue;
    }
    const Result<RankMapping> built = strict_mapping(one);
    ASSERT_FALSE(built);
    if (attention_of(one) == -1 && ffn_of(one) == -1) {
      // The reference judges the rank first and meets the counts later.
      EXPECT_EQ(built.error().message, "num_attention_ranks must be positive, got -1");
    } else if (one["error"]["kind"] == "IndexError") {
      EXPECT_EQ(built.error().message, "num_ffn_ranks must be positive, got -1");
    } else {
      EXPECT_EQ(built.error().message, expected_message(one["error"]));
    }
  }
  EXPECT_EQ(cases.size(), 18u);
  EXPECT_EQ(num_unknown_roles, 2u);
}

TEST(TopologyGoldenTest, ResolvesRoleRanksAsTheReference) {
  const golden::Inapplicable inapplicable = {
      {"unknown_role", "a Role is one of two values; parse_role refuses the text"},
      {"unknown_role_empty", "as above"},
      {"string_sizes_coerced", "sizes are integers here, not text"},
  };
  for (const char* text : {"decode", ""}) {
    EXPECT_FALSE(parse_role(text)) << text;
  }
  golden::run_cases(golden::load("topology.json")["role_rank"], 37, inapplicable,
                    [](const Json& one) {
                      const Role role = parse_role(one["role"].get<std::string>()).value();
                      const Result<std::uint32_t> role_rank = resolve_role_rank(
                          {.data_parallel_size = one["data_parallel_size"],
                           .data_parallel_rank = one["data_parallel_rank"],
                           .prefill_context_parallel_size = one["prefill_context_parallel_size"],
                           .pcp_rank = one["pcp_rank"],
                           .tensor_parallel_size = one["tensor_parallel_size"],
                           .tp_rank = one["tp_rank"]},
                          role, {one["num_attention_ranks"], one["num_ffn_ranks"]});
                      ASSERT_EQ(role_rank.has_value(), one.contains("role_rank"));
                      if (!role_rank) {
                        EXPECT_EQ(role_rank.error().message, one["error"]["message"]);
                        return;
                      }
                      EXPECT_EQ(*role_rank, one["role_rank"]);
                      const Result<RankMapping> built = strict_mapping(one);
                      if (one["mapping"].contains("ok")) {
                        expect_mapping(built, one["mapping"]["ok"]);
                      } else {
                        ASSERT_FALSE(built);
                        EXPECT_EQ(built.error().message, one["mapping"]["error"]["message"]);
                      }
                    });
}

TEST(TopologyGoldenTest, AgreesWithTheWorkedTables) {
  const Json tables = golden::load("topology.json")["worked_tables"];
  std::size_t num_members = 0;
  for (const auto& [layout, members] : tables.items()) {
    const std::int64_t num_attention_ranks = std::stoi(layout);
    const std::int64_t num_ffn_ranks = std::stoi(layout.substr(layout.find('A') + 1));
    for (const Json& member : members) {
      SCOPED_TRACE(layout + " " + member.dump());
      const std::string name = member["member"];
      const Role role = name[0] == 'A' ? Role::kAttention : Role::kFfn;
      const Result<RankMapping> built =
          build_rank_mapping(num_attention_ranks, num_ffn_ranks, role, std::stoi(name.substr(1)));
      ASSERT_TRUE(built);
      EXPECT_EQ(built->world_rank, member["world_rank"]);
      EXPECT_EQ(built->subgroup_index, member["subgroup"]);
      EXPECT_EQ(built->rank_in_subgroup, member["rank_in_subgroup"]);
      EXPECT_EQ(Json(built->subgroup_ranks), member["subgroup_world_ranks"]);
      EXPECT_EQ(Json(built->dp_metadata_destinations), member["sends_control_to"]);
      EXPECT_EQ(built->participates_in_dp_metadata_group, !member["p2p_rank"].is_null());
      if (built->participates_in_dp_metadata_group) {
        EXPECT_EQ(built->p2p_rank, member["p2p_rank"]);
      }
      if (role == Role::kFfn) {
        EXPECT_EQ(built->dp_metadata_source + num_ffn_ranks,
                  member["receives_control_from_p2p_rank"]);
      }
      ++num_members;
    }
  }
  EXPECT_EQ(tables.size(), 4u);
  EXPECT_EQ(num_members, 2u + 3u + 6u + 10u);
}

constexpr std::uint32_t kSizeMax = 24;

/// Calls check(A, F, attention ranks' mappings, FFN ranks' mappings) for every layout.
template <typename Check>
void for_every_layout(Check check) {
  for (std::uint32_t a = 1; a <= kSizeMax; ++a) {
    for (std::uint32_t f = 1; f <= kSizeMax; ++f) {
      SCOPED_TRACE(std::to_string(a) + "A" + std::to_string(f) + "F");
      std::vector<RankMapping> attention;
      std::vector<RankMapping> ffn;
      for (std::uint32_t rank = 0; rank < a; ++rank) {
        attention.push_back(build_rank_mapping(a, f, Role::kAttention, rank).value());
      }
      for (std::uint32_t rank = 0; rank < f; ++rank) {
        ffn.push_back(build_rank_mapping(a, f, Role::kFfn, rank).value());
      }
      check(a, f, attention, ffn);
    }
  }
}

bool has(const std::vector<std::uint32_t>& ranks, std::uint32_t rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

TEST(TopologyTest, EveryRankHasPeersAndTheRelationIsSymmetric) {
  for_every_layout([](std::uint32_t a, std::uint32_t f, const auto& attention, const auto& ffn) {
    for (std::uint32_t j = 0; j < a; ++j) {
      EXPECT_FALSE(attention[j].peers.empty());
      for (std::uint32_t k = 0; k < f; ++k) {
        EXPECT_EQ(has(attention[j].peers, k), has(ffn[k].peers, j)) << j << " " << k;
      }
    }
    for (std::uint32_t k = 0; k < f; ++k) {
      EXPECT_FALSE(ffn[k].peers.empty());
    }
  });
}

TEST(TopologyTest, TheLargerRoleIsDealtInConsecutiveBlocksThatDifferByAtMostOne) {
  for_every_layout([](std::uint32_t a, std::uint32_t f, const auto& attention, const auto& ffn) {
    const auto& hubs = a < f ? attention : ffn;
    std::uint32_t next = 0;
    std::size_t smallest = kSizeMax;
    std::size_t largest = 0;
    for (const RankMapping& hub : hubs) {
      for (std::uint32_t peer : hub.peers) {
        EXPECT_EQ(peer, next++);
      }
      smallest = std::min(smallest, hub.peers.size());
      largest = std::max(largest, hub.peers.size());
    }
    EXPECT_EQ(next, std::max(a, f));
    EXPECT_LE(largest - smallest, 1u);
  });
}

TEST(TopologyTest, FollowsTheFormulaAndTheReferenceWhereItHasOne) {
  for_every_layout([](std::uint32_t a, std::uint32_t f, const auto& attention, const auto& ffn) {
    for (std::uint32_t j = 0; j < a && a >= f; ++j) {
      EXPECT_EQ(attention[j].peers, (std::vector<std::uint32_t>{j * f / a}));
      if (a % f == 0) {
        EXPECT_EQ(attention[j].subgroup_index, j / (a / f));
        EXPECT_EQ(attention[j].rank_in_subgroup, 1 + j % (a / f));
      }
    }
    for (std::uint32_t k = 0; k < f && a < f; ++k) {
      EXPECT_EQ(ffn[k].peers, (std::vector<std::uint32_t>{k * a / f}));
    }
  });
}

TEST(TopologyTest, SubgroupsPartitionTheWorldAndKnowTheirMembersPlaces) {
  for_every_layout([](std::uint32_t a, std::uint32_t f, const auto& attention, const auto& ffn) {
    std::set<std::uint32_t> world;
    std::set<std::uint32_t> p2p;
    std::multiset<std::uint32_t> members;
    const auto check = [&](const RankMapping& mapping) {
      EXPECT_TRUE(world.insert(mapping.world_rank).second);
      EXPECT_TRUE(p2p.insert(mapping.p2p_rank).second);
      ASSERT_LT(mapping.rank_in_subgroup, mapping.subgroup_ranks.size());
      EXPECT_EQ(mapping.subgroup_ranks[mapping.rank_in_subgroup], mapping.world_rank);
      EXPECT_LT(mapping.subgroup_index, std::min(a, f));
      if (mapping.rank_in_subgroup == 0) {
        members.insert(mapping.subgroup_ranks.begin(), mapping.subgroup_ranks.end());
      }
    };
    std::for_each(attention.begin(), attention.end(), check);
    std::for_each(ffn.begin(), ffn.end(), check);
    EXPECT_EQ(world.size(), a + f);
    EXPECT_EQ(*world.rbegin(), a + f - 1);
    EXPECT_EQ(members, std::multiset<std::uint32_t>(world.begin(), world.end()));
  });
}

TEST(TopologyTest, EveryFfnRankHasOneControlSenderThatKnowsIt) {
  for_every_layout([](std::uint32_t a, std::uint32_t f, const auto& attention, const auto& ffn) {
    std::vector<std::uint32_t> num_senders(f, 0);
    for (std::uint32_t j = 0; j < a; ++j) {
      EXPECT_EQ(attention[j].participates_in_dp_metadata_group,
                !attention[j].dp_metadata_destinations.empty());
      for (std::uint32_t k : attention[j].dp_metadata_destinations) {
        ++num_senders[k];
        EXPECT_EQ(ffn[k].dp_metadata_source, j);
      }
    }
    EXPECT_EQ(num_senders, std::vector<std::uint32_t>(f, 1));
  });
}

TEST(TopologyTest, DealsRowsInBlocksThatDifferByAtMostOne) {
  for (std::uint32_t num_peers = 1; num_peers <= 9; ++num_peers) {
    for (std::uint32_t num_rows = 0; num_rows <= 40; ++num_rows) {
      std::uint32_t sum = 0;
      std::uint32_t last = std::numeric_limits<std::uint32_t>::max();
      for (std::uint32_t peer = 0; peer < num_peers; ++peer) {
        const std::uint32_t rows = rows_for_peer(num_rows, peer, num_peers);
        EXPECT_LE(rows, last);
        last = rows;
        sum += rows;
      }
      EXPECT_EQ(sum, num_rows);
      EXPECT_LE(rows_for_peer(num_rows, 0, num_peers) - last, 1u);
    }
  }
  EXPECT_EQ(rows_for_peer(7, 3, 3), 0u);
  EXPECT_EQ(rows_for_peer(7, 0, 0), 0u);
}

TEST(TopologyTest, RefusesCountsOutOfRange) {
  const auto message = [](std::int64_t a, std::int64_t f) {
    const Result<void> checked = validate_topology(a, f);
    return checked ? "" : checked.error().message;
  };
  EXPECT_EQ(message(1, 1), "");
  EXPECT_EQ(message(1, 65536), "");
  EXPECT_EQ(message(0, 0), "num_attention_ranks must be positive, got 0");
  EXPECT_EQ(message(1, 0), kPositiveFfn);
  EXPECT_EQ(message(1, -3), "num_ffn_ranks must be positive, got -3");
  EXPECT_EQ(message(65537, 1), "num_attention_ranks must be at most 65536, got 65537");
  EXPECT_EQ(message(1, std::numeric_limits<std::int64_t>::max()),
            "num_ffn_ranks must be at most 65536, got 9223372036854775807");
  EXPECT_FALSE(build_rank_mapping(1, std::numeric_limits<std::int64_t>::max(), Role::kFfn, 0));
}

TEST(TopologyTest, StrictRuleSurvivesExtremeNumbers) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(validate_strict_topology(kMax, -1));  // Then positivity catches it.
  EXPECT_TRUE(validate_strict_topology(kMin, kMin));
  EXPECT_FALSE(validate_strict_topology(kMin, -1));
  EXPECT_FALSE(validate_strict_topology(kMax, 2));
}

TEST(TopologyTest, RoleRankArithmeticDoesNotWrap) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const Result<std::uint32_t> role_rank = resolve_role_rank({.data_parallel_size = kHuge,
                                                             .data_parallel_rank = kHuge,
                                                             .prefill_context_parallel_size = 4,
                                                             .tensor_parallel_size = 4},
                                                            Role::kAttention, {4, 2});
  ASSERT_FALSE(role_rank);
  EXPECT_EQ(role_rank.error().message,
            "AFD role rank derived from distributed ranks is out of range: role='attention', "
            "dp_rank=4611686018427387904, pcp_rank=0, tp_rank=0, role_size=4");
}

}  // namespace
}  // namespace afd
