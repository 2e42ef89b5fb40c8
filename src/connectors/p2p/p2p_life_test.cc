// How jobs of P2P connectors begin and end where not all goes together: who leaves alone, who dies
// between the join and the first barrier, who closes while it waits.
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "connectors/p2p/p2p_abandon.h"
#include "connectors/p2p/p2p_connector.h"
#include "session/session_frame.h"
#include "session/session_test_support.h"

namespace afd::p2p {
namespace {

using ::testing::HasSubstr;
using namespace session::testing;  // NOLINT: the session tests' helpers

constexpr std::uint32_t kWidth = 8;

#define EXPECT_LOST(result, text)                                       \
  do {                                                                  \
    const auto& failing = (result);                                     \
    ASSERT_FALSE(failing);                                              \
    EXPECT_EQ(failing.error().code, ErrorCode::kPeerLost);              \
    EXPECT_THAT(std::string(failing.error().message), HasSubstr(text)); \
  } while (false)

ConnectorParams params_of(const ConnectorClass& type, RankCounts counts, Role role,
                          std::uint32_t role_rank, std::uint16_t port) {
  ConnectorParams params;
  params.config.connector = std::string(type.name());
  params.config.port = port;
  params.config.num_attention_ranks = counts.num_attention_ranks;
  params.config.num_ffn_ranks = counts.num_ffn_ranks;
  params.config.role = role;
  params.role_rank = role_rank;
  params.limits = {.hidden_size = kWidth, .num_layers = 2, .max_num_tokens = 4, .num_stages = 1};
  return params;
}

/// All ranks of a job as threads of this process, initialised.
struct Job {
  Job(const ConnectorClass& type, RankCounts counts) {
    const std::uint16_t port = free_port();
    const auto make = [&](Role role, std::uint32_t role_rank) {
      return *type.create(params_of(type, counts, role, role_rank, port));
    };
    for (std::uint32_t rank = 0; rank < counts.num_attention_ranks; ++rank) {
      attention.push_back(make(Role::kAttention, rank));
    }
    for (std::uint32_t rank = 0; rank < counts.num_ffn_ranks; ++rank) {
      ffn.push_back(make(Role::kFfn, rank));
    }
    std::vector<std::thread> threads;
    for (auto* ranks : {&attention, &ffn}) {
      for (const auto& rank : *ranks) {
        threads.emplace_back([&rank] {
          const Result<void> met = rank->init_afd_connector(soon());
          EXPECT_TRUE(met) << met.error().message;
        });
      }
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  ControlPayload payload() const {
    ControlPayload payload;
    payload.dp_metadata_list[0] =
        DpMetadata::create(std::vector<std::int32_t>(attention.size(), 1)).value();
    return payload;
  }
  Result<std::optional<ControlPayload>> next_step(std::size_t ffn_rank,
                                                  Deadline deadline = soon()) {
    return ffn[ffn_rank]->control_plane()->recv_dp_metadata_list(deadline);
  }

  std::vector<std::unique_ptr<ConnectorBase>> attention;
  std::vector<std::unique_ptr<ConnectorBase>> ffn;
};

class P2pLifeTest : public ::testing::TestWithParam<const ConnectorClass*> {};

// --- leaving ---

// Goal: when world rank 0 leaves, whoever waits for others hears of it: nobody would tell it of
// their end any more.
TEST_P(P2pLifeTest, TheRelaysLeavingEndsTheWaitsForOthers) {
  constexpr std::string_view kRelayLeft =
      "ffn rank 0 has left the job, and it relays the news of all others";
  Job job(*GetParam(), {.num_attention_ranks = 2, .num_ffn_ranks = 2});
  ConnectorBase& attention = *job.attention[1];  // its peer is ffn rank 1
  ASSERT_TRUE(attention.control_plane()->update_state_from_dp_metadata(job.payload()));
  Tensor rows({1, kWidth}, kFloat32);
  const TransferContext context{
      .metadata = TransferMetadata::create_attention_metadata(0, 0, 1).value(), .states = {}};
  ASSERT_TRUE(attention.send_attn_output(rows.view(), context, {}));

  const auto receive = [&] {
    return attention.recv_ffn_output(rows.view(), 0, {.deadline = soon()});
  };
  auto output = std::async(std::launch::async, receive);
  auto step = std::async(std::launch::async, [&] { return job.next_step(1); });
  std::this_thread::sleep_for(milliseconds(20));  // mostly they are blocked then
  job.ffn[0]->close();

  EXPECT_LOST(output.get(), std::string(kRelayLeft));
  EXPECT_LOST(step.get(), std::string(kRelayLeft));
  EXPECT_LOST(receive(), std::string(kRelayLeft));
  EXPECT_LOST(job.next_step(1), std::string(kRelayLeft));
  EXPECT_LOST(attention.control_plane()->send_dp_metadata_list(job.payload(), soon()),
              std::string(kRelayLeft));
}

TEST_P(P2pLifeTest, TheJobIsDoneWhenAllAttentionRanksHaveLeftWhoeverTellsIt) {
  Job job(*GetParam(), {.num_attention_ranks = 2, .num_ffn_ranks = 2});
  std::vector<std::future<Result<std::optional<ControlPayload>>>> steps;
  for (std::size_t rank : {0u, 1u}) {
    steps.push_back(std::async(std::launch::async, [&job, rank] {
      auto step = job.next_step(rank);
      job.ffn[rank]->close();  // rank 0's goodbye comes right behind the news that it relays
      return step;
    }));
  }
  job.attention[0]->close();
  job.attention[1]->close();
  for (auto& step : steps) {
    const auto result = step.get();
    ASSERT_TRUE(result) << result.error().message;
    EXPECT_FALSE(result->has_value());
  }
}

TEST_P(P2pLifeTest, ASenderThatLeavesAloneIsNamed) {
  Job job(*GetParam(), {.num_attention_ranks = 2, .num_ffn_ranks = 1});
  set_leaving_together_for_tests(*job.ffn[0], milliseconds(200));
  ASSERT_TRUE(job.attention[0]->control_plane()->send_dp_metadata_list(job.payload(), soon()));
  job.attention[0]->close();
  const auto sent_before = job.next_step(0);
  ASSERT_TRUE(sent_before) << sent_before.error().message;
  EXPECT_EQ(*sent_before, job.payload());
  EXPECT_LOST(job.next_step(0),
              "attention rank 0 has left the job, other attention ranks have not");
  // Not too late: the job is done after all.
  job.attention[1]->close();
  EXPECT_TRUE(eventually([&] {
    const auto step = job.next_step(0);
    return step && !step->has_value();
  }));
}

// Goal: an FFN rank that looks for steps now and then hears of it as well.
TEST_P(P2pLifeTest, ASenderThatLeftAloneIsNamedToShortReceivesToo) {
  Job job(*GetParam(), {.num_attention_ranks = 2, .num_ffn_ranks = 1});
  set_leaving_together_for_tests(*job.ffn[0], milliseconds(200));
  job.attention[0]->close();
  EXPECT_TRUE(eventually([&] {
    const auto step = job.next_step(0, Deadline::after(milliseconds(10)));
    return !step && step.error().code == ErrorCode::kPeerLost;
  }));
}

// Goal: ranks that end a job together on a busy machine need not do it in the same second.
TEST_P(P2pLifeTest, ASenderMayLeaveSecondsBeforeTheOthers) {
  Job job(*GetParam(), {.num_attention_ranks = 2, .num_ffn_ranks = 1});
  job.attention[0]->close();
  const auto none = job.next_step(0, Deadline::after(milliseconds(1200)));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kDeadlineExceeded) << none.error().message;
  job.attention[1]->close();
  const auto step = job.next_step(0);
  ASSERT_TRUE(step) << step.error().message;
  EXPECT_FALSE(step->has_value());
}

TEST_P(P2pLifeTest, StepsGoOnWhileOnlyAnotherRankThanTheirSenderHasLeft) {
  Job job(*GetParam(), {.num_attention_ranks = 2, .num_ffn_ranks = 1});
  set_leaving_together_for_tests(*job.ffn[0], milliseconds(100));
  job.attention[1]->close();
  const auto none = job.next_step(0, Deadline::after(milliseconds(400)));  // beyond any grace
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kDeadlineExceeded) << none.error().message;
  ASSERT_TRUE(job.attention[0]->control_plane()->send_dp_metadata_list(job.payload(), soon()));
  const auto step = job.next_step(0);
  ASSERT_TRUE(step) << step.error().message;
  EXPECT_EQ(*step, job.payload());
}

// --- beginning ---

enum class Cut {
  kBeforeStart,  ///< The hub has joined, the member has not.
  kAfterStart,   ///< Both have.
  kNever,
  kWithheld,  ///< Never, but the member does not hear that the hub has joined.
};

/// Accepts one connection and passes bytes between it and `hub_port` until `cut`, where it ends
/// both at once: to each side the other has died.
void pass_on(const base::Fd& listener, std::uint16_t hub_port, Cut cut) {
  const base::Fd member(::accept(listener.get(), nullptr, nullptr));
  const base::Fd hub = connect_raw(hub_port);
  session::FrameBuffer frames(~std::uint32_t{0});
  std::string bytes(std::size_t{64} << 10, '\0');
  const auto receive = [&](const base::Fd& from) {
    const ssize_t count = ::recv(from.get(), bytes.data(), bytes.size(), 0);
    return std::string_view(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  };
  while (true) {
    pollfd ready[] = {{.fd = member.get(), .events = POLLIN, .revents = 0},
                      {.fd = hub.get(), .events = POLLIN, .revents = 0}};
    ASSERT_GT(::poll(ready, 2, 60'000), 0);
    if (ready[0].revents != 0) {
      const std::string_view said = receive(member);
      if (said.empty()) {
        return;
      }
      send_raw(hub, said);
    }
    if (ready[1].revents != 0) {
      const std::string_view said = receive(hub);
      if (said.empty()) {
        return;
      }
      frames.append(said);
      while (true) {
        const auto frame = frames.next();
        ASSERT_TRUE(frame) << frame.error().message;
        if (!*frame) {
          break;
        }
        const bool starts = (*frame)->header.type == session::FrameType::kStart;
        if (starts && cut == Cut::kBeforeStart) {
          return;
        }
        if (starts && cut == Cut::kWithheld) {
          continue;
        }
        send_raw(member, session::encode_header((*frame)->header) + std::string((*frame)->payload));
        if (starts && cut == Cut::kAfterStart) {
          return;
        }
      }
    }
  }
}

// Goal: a rank that dies after the join and before all have mapped each other's memory ends init on
// the others, whose session's thread tells of it while they take everything down.
TEST_P(P2pLifeTest, ADeathBetweenTheJoinAndTheFirstBarrierEndsInit) {
  constexpr RankCounts k1A1F{.num_attention_ranks = 1, .num_ffn_ranks = 1};
  const std::uint16_t hub_port = free_port();
  const std::uint16_t member_port = free_port();
  const base::Fd listener = listen_raw(member_port);
  const auto ffn = *GetParam()->create(params_of(*GetParam(), k1A1F, Role::kFfn, 0, hub_port));
  const auto attention =
      *GetParam()->create(params_of(*GetParam(), k1A1F, Role::kAttention, 0, member_port));
  const auto run = [&](Cut cut, const std::function<void(Result<void>, Result<void>)>& check) {
    std::thread proxy([&] { pass_on(listener, hub_port, cut); });
    auto ffn_init = std::async(std::launch::async, [&] { return ffn->init_afd_connector(soon()); });
    const Result<void> attention_init = attention->init_afd_connector(soon());
    check(ffn_init.get(), attention_init);
    ffn->close();
    attention->close();
    proxy.join();
  };
  for (int round = 0; round < 40; ++round) {
    run(round % 2 == 0 ? Cut::kBeforeStart : Cut::kAfterStart,
        [&](const Result<void>& ffn_init, const Result<void>& attention_init) {
          EXPECT_LOST(ffn_init, "attention rank 0 lost: its connection ended");
          EXPECT_LOST(attention_init, "ffn rank 0 lost: its connection ended");
          EXPECT_FALSE(ffn->is_initialized());
          EXPECT_FALSE(attention->is_initialized());
        });
  }
  run(Cut::kNever, [](const Result<void>& ffn_init, const Result<void>& attention_init) {
    EXPECT_TRUE(ffn_init) << ffn_init.error().message;
    EXPECT_TRUE(attention_init) << attention_init.error().message;
  });
}

// Goal: a rank whose time is up just when all have met is no rank that left in order.
TEST_P(P2pLifeTest, AJoinThatRunsOutOfTimeWhenAllHaveMetTellsTheOthersWhy) {
  constexpr RankCounts k1A1F{.num_attention_ranks = 1, .num_ffn_ranks = 1};
  const std::uint16_t hub_port = free_port();
  const std::uint16_t member_port = free_port();
  const base::Fd listener = listen_raw(member_port);
  const auto ffn = *GetParam()->create(params_of(*GetParam(), k1A1F, Role::kFfn, 0, hub_port));
  const auto attention =
      *GetParam()->create(params_of(*GetParam(), k1A1F, Role::kAttention, 0, member_port));
  std::thread proxy([&] { pass_on(listener, hub_port, Cut::kWithheld); });
  auto ffn_init = std::async(std::launch::async, [&] { return ffn->init_afd_connector(soon()); });
  const Result<void> attention_init =
      attention->init_afd_connector(Deadline::after(milliseconds(500)));
  ASSERT_FALSE(attention_init);
  EXPECT_EQ(attention_init.error().code, ErrorCode::kDeadlineExceeded)
      << attention_init.error().message;
  EXPECT_LOST(ffn_init.get(), "attention rank 0 gave up: ");
  proxy.join();
}

TEST_P(P2pLifeTest, ClosingFromOnWaitingEndsInit) {
  std::unique_ptr<ConnectorBase> connector;
  ConnectorParams params = params_of(*GetParam(), {.num_attention_ranks = 1, .num_ffn_ranks = 1},
                                     Role::kFfn, 0, free_port());
  params.on_waiting = [&](std::string_view) { connector->close(); };
  connector = *GetParam()->create(params);
  const Result<void> closed = connector->init_afd_connector(soon());
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, ErrorCode::kFailedPrecondition) << closed.error().message;
  EXPECT_FALSE(connector->is_initialized());
  const Result<void> again = connector->init_afd_connector(Deadline::now());
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kDeadlineExceeded) << again.error().message;
  connector->close();
}

INSTANTIATE_TEST_SUITE_P(P2p, P2pLifeTest,
                         ::testing::Values(in_process_connector_class(), p2p_shm_connector_class()),
                         [](const auto& type) { return std::string(type.param->name()); });

}  // namespace
}  // namespace afd::p2p
