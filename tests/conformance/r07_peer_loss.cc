// R7: a peer's death reaches every blocked or later call that needs it as PeerLost, naming the
// rank, within 1 s on one host.
//
// Forked, the victim is killed with SIGKILL; in threads, where the connector offers it, it abandons
// its end. Survivors are asleep in the call when it happens.
#include <string>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"

namespace afd::conformance {
namespace {

constexpr std::uint64_t kBoundNs = 1'000'000'000;  // the rule's second
constexpr std::size_t kReady = 0;                  // counts ranks that got where they are to be
constexpr std::size_t kJudged = 1;                 // counts survivors that have seen enough

// Kills `victim` once all ranks of the job are where they are to be and those that are to be
// blocked sleep.
std::function<void(JobControl&)> kill_when_blocked(std::uint32_t victim, std::uint32_t num_ranks,
                                                   std::vector<std::uint32_t> blocked) {
  return [victim, num_ranks, blocked = std::move(blocked)](JobControl& control) {
    if (!control.board().await(kReady, num_ranks, Board::Clock::now() + 2 * control.patience())) {
      control.kill(victim);  // the job has failed: let it end
      return;
    }
    for (std::uint32_t rank : blocked) {
      control.wait_asleep(rank);
    }
    control.kill(victim);
  };
}

// The call failed as R7 says, and in time.
template <typename T>
void check_lost(Rank& rank, const Result<T>& result, std::string_view victim, std::string_view what,
                Place place = {}) {
  const std::uint64_t now = monotonic_ns();
  rank.check_error(result, ErrorCode::kPeerLost, {victim}, what, place);
  const std::uint64_t killed = rank.board().read(kKilledAtWord);
  rank.check(killed != 0, std::string(what) + " returned before the kill", place);
  if (killed != 0 && now - killed >= kBoundNs) {
    rank.miss_bound(std::string(what) + " returned " + std::to_string((now - killed) / 1'000'000) +
                        " ms after the kill, expected below 1000",
                    place);
  }
}

// Every later call that needs the victim fails the same way, and a send too.
void check_later_attention_calls(Rank& rank, AttentionDriver& attention, std::string_view victim) {
  rank.check_error(attention.try_receive(0, {}, rank.soon()), ErrorCode::kPeerLost, {victim},
                   "a later recv_ffn_output");
  rank.check_error(attention.try_send(0, 1, {}, rank.soon()), ErrorCode::kPeerLost, {victim},
                   "a later send_attn_output");
}

// Goal: the death of an FFN rank reaches the attention ranks that wait for its output.
// Method: two attention ranks sleep in recv_ffn_output when it is killed; afterwards the views that
// they hold are still whole.
void a_dead_ffn_rank_reaches_recv_ffn_output(CaseRun& run) {
  JobSpec spec{.counts = {2, 1}, .victim = 0};
  spec.limits.num_stages = 3;
  spec.controller = kill_when_blocked(0, 3, {1, 2});
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      ffn.receive(0, 2);
      ffn.send(0, 2);
      rank.board().add(kReady, 1);
      rank.die_here();
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    attention.send(0, 2);
    attention.receive(0, 2);
    attention.send(0, 0);
    rank.board().add(kReady, 1);
    check_lost(rank, attention.try_receive(0, {}, rank.soon()), "ffn rank 0", "recv_ffn_output");
    check_later_attention_calls(rank, attention, "ffn rank 0");
    attention.check_output(attention.last_output(2), 0, 2);
  });
}

// Goal: the death of an attention rank reaches the FFN rank that waits for its rows, and the other
// attention rank whose output now never comes.
// Method: rank 0 has sent and sleeps in recv_ffn_output, the FFN rank in recv_attn_output.
void a_dead_attention_rank_reaches_recv_attn_output(CaseRun& run) {
  JobSpec spec{.counts = {2, 1}, .victim = 2};
  spec.controller = kill_when_blocked(2, 3, {0, 1});
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      rank.board().add(kReady, 1);
      check_lost(rank, ffn.try_receive(0, {}, rank.soon()), "attention rank 1", "recv_attn_output");
      rank.check_error(ffn.try_receive(1, {}, rank.soon()), ErrorCode::kPeerLost,
                       {"attention rank 1"}, "a later recv_attn_output");
      rank.check_error(rank.control().recv_dp_metadata_list(rank.soon()), ErrorCode::kPeerLost,
                       {"attention rank 1"}, "a later recv_dp_metadata_list");
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    if (rank.role_rank() == 1) {
      rank.board().add(kReady, 1);
      rank.die_here();
    }
    attention.send(0, 0);
    rank.board().add(kReady, 1);
    check_lost(rank, attention.try_receive(0, {}, rank.soon()), "attention rank 1",
               "recv_ffn_output of another attention rank");
    check_later_attention_calls(rank, attention, "attention rank 1");
  });
}

// Goal: the death of the control sender reaches the FFN ranks that wait for a step.
// Method: both FFN ranks sleep in recv_dp_metadata_list.
void a_dead_attention_rank_reaches_the_control_receive(CaseRun& run) {
  JobSpec spec{.counts = {1, 2}, .victim = 2};
  spec.controller = kill_when_blocked(2, 3, {0, 1});
  run.job(spec, [](Rank& rank) {
    if (rank.is_attention()) {
      rank.board().add(kReady, 1);
      rank.die_here();
    }
    rank.board().add(kReady, 1);
    check_lost(rank, rank.control().recv_dp_metadata_list(rank.soon()), "attention rank 0",
               "recv_dp_metadata_list");
  });
}

// Goal: a death reaches those who wait for the victim in a gather.
// Method: two of three attention ranks sleep in all_gather.
void a_dead_attention_rank_reaches_a_gather(CaseRun& run) {
  JobSpec spec{.counts = {3, 1}, .victim = 3};
  spec.controller = kill_when_blocked(3, 4, {1, 2});
  run.job(spec, [](Rank& rank) {
    RoleGroup* group = rank.connector().role_group();
    if (rank.is_ffn()) {
      rank.board().add(kReady, 1);
      return;
    }
    if (rank.role_rank() == 2) {
      rank.board().add(kReady, 1);
      rank.die_here();
    }
    rank.board().add(kReady, 1);
    if (group != nullptr) {
      check_lost(rank, group->all_gather("mine", rank.soon()), "attention rank 2", "all_gather");
    } else {
      rank.await(kKilledWord);
    }
  });
}

// Goal: in a job of two subgroups the ranks that need the victim hear of it, by its name.
// Method: an FFN rank dies while every attention rank sleeps in recv_ffn_output.
void a_death_reaches_its_subgroup(CaseRun& run) {
  JobSpec spec{.counts = {4, 2}, .victim = 1};
  spec.controller = kill_when_blocked(1, 6, {4, 5});
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      if (rank.role_rank() == 1) {
        rank.board().add(kReady, 1);
        rank.die_here();
      }
      rank.board().add(kReady, 1);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    if (rank.role_rank() < 2) {
      rank.board().add(kReady, 1);
      return;
    }
    attention.send(0, 0);
    rank.board().add(kReady, 1);
    check_lost(rank, attention.try_receive(0, {}, rank.soon()), "ffn rank 1", "recv_ffn_output");
  });
}

// Goal: where an attention rank serves two FFN ranks, the death of either ends its receive.
// Method: FFN rank 1 answers, FFN rank 2 is killed.
void a_death_among_several_ffn_ranks(CaseRun& run) {
  JobSpec spec{.counts = {1, 3}, .victim = 2};
  spec.controller = kill_when_blocked(2, 4, {3});
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 7);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      ffn.receive(0, 0);
      if (rank.role_rank() == 2) {
        rank.board().add(kReady, 1);
        rank.die_here();
      }
      ffn.send(0, 0);
      rank.board().add(kReady, 1);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    attention.send(0, 0);
    rank.board().add(kReady, 1);
    check_lost(rank, attention.try_receive(0, {}, rank.soon()), "ffn rank 2", "recv_ffn_output");
  });
}

// Goal: the death of an FFN rank reaches an attention rank that waits for room in its control
// queue. Method: nothing is taken; the attention rank fills the queue and goes on waiting.
void a_dead_ffn_rank_reaches_a_full_control_queue(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}, .victim = 0};
  spec.controller = kill_when_blocked(0, 2, {1});
  run.job(spec, [](Rank& rank) {
    if (rank.is_ffn()) {
      rank.board().add(kReady, 1);
      rank.die_here();
    }
    const ControlPayload payload = even_step(rank, 2).payload();
    constexpr int kMany = 10'000;
    for (int number = 0; number < kMany; ++number) {
      const auto sent = rank.control().send_dp_metadata_list(
          payload, Deadline::after(std::chrono::milliseconds(20)));
      if (!sent) {
        rank.check_error(sent, ErrorCode::kDeadlineExceeded, {}, "a send into a full queue");
        break;
      }
    }
    rank.board().add(kReady, 1);
    check_lost(rank, rank.control().send_dp_metadata_list(payload, rank.soon()), "ffn rank 0",
               "send_dp_metadata_list");
  });
}

// Goal: a sender that dies in the middle of its rows leaves no half transfer behind.
// Method: it is killed while its producer has not produced the last run; the receiver, which has
// seen the first rows, gets PeerLost. A victim that is a thread stays there until that has
// happened.
void a_death_in_the_middle_of_a_transfer(CaseRun& run) {
  JobSpec spec{.counts = {2, 1}, .victim = 2};
  spec.limits.hidden_size = 4096;
  spec.limits.max_num_tokens = 64;
  spec.controller = kill_when_blocked(2, 3, {0});
  run.job(spec, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 64);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      if (rank.role_rank() == 0) {
        attention.send(0, 0);
        rank.board().add(kReady, 1);
        check_lost(rank, attention.try_receive(0, {}, rank.soon()), "attention rank 1",
                   "recv_ffn_output");
        rank.board().add(kJudged, 1);
        return;
      }
      const TensorView buffer =
          rank.require(rank.connector().attn_send_buffer(0, 64), "attn_send_buffer");
      const auto produce = [](void* argument, TensorView, RowRange range) {
        if (range.first_row + range.num_rows == 64) {
          auto& self = *static_cast<Rank*>(argument);
          self.board().add(kReady, 1);
          if (self.mode() == Mode::kForked) {
            self.die_here();
          }
          // Nothing may be thrown through the connector.
          self.board().await(kJudged, 2, Board::Clock::now() + 2 * self.patience());
        }
      };
      (void)rank.connector().send_attn_output(buffer, context_of(0, 0, 64),
                                              {.source = {&rank, produce}});
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.await(kReady, 2);
    rank.board().add(kReady, 1);
    check_lost(rank, ffn.try_receive(0, {.sink = true}, rank.soon()), "attention rank 1",
               "recv_attn_output of a part");
    rank.check_error(ffn.try_receive(0, {}, rank.soon()), ErrorCode::kPeerLost,
                     {"attention rank 1"}, "a later recv_attn_output");
    rank.board().add(kJudged, 1);
  });
}

// Goal: a rank that dies while others still arrive ends their init, by its name.
// Method: attention rank 1 joins and is killed; the FFN rank learns from on_waiting that it had
// come. Attention rank 0 never comes.
void a_death_during_init_ends_it(CaseRun& run) {
  JobSpec spec{.counts = {2, 1}, .init = false, .victim = 2};
  spec.controller = [](JobControl& control) {
    // The FFN rank posts kReady when only attention rank 0 is missing.
    if (control.board().await(kReady, 1, Board::Clock::now() + 2 * control.patience())) {
      control.wait_asleep(0);
      control.kill(2);
    }
  };
  run.job(spec, [](Rank& rank) {
    if (rank.is_attention() && rank.role_rank() == 0) {
      return;
    }
    if (rank.is_attention()) {
      (void)rank.connector().init_afd_connector(Deadline::never());
      rank.die_here();
    }
    ConnectorParams params = rank.params();
    params.on_waiting = [&rank](std::string_view missing) {
      if (missing.find("attention rank 0") != std::string_view::npos &&
          missing.find("attention rank 1") == std::string_view::npos) {
        rank.post(kReady);
      }
    };
    rank.replace_connector(rank.make_connector(params));
    check_lost(rank, rank.connector().init_afd_connector(rank.soon()), "attention rank 1", "init");
    rank.check(!rank.connector().is_initialized(), "is_initialized() after an init that failed");
  });
}

// Goal: a rank that left is no loss to a receive that has all of its rows, whoever else is awaited.
// Method: of two attention ranks one sends and closes. The FFN rank hears of that on another stage
// before it looks at this one for the first time; then the other rank's rows come.
void rows_of_a_rank_that_left_are_taken_with_the_others(CaseRun& run) {
  run.job({.counts = {2, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 3);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      rank.barrier();  // the FFN rank has the step
      if (rank.role_rank() == 0) {
        attention.send(5, 0);
        rank.connector().close();
      }
      rank.barrier();
      rank.barrier();
      if (rank.role_rank() == 1) {
        attention.send(5, 0);
      }
      rank.barrier();
      rank.barrier();
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    rank.barrier();
    rank.barrier();
    rank.check_error(ffn.try_receive(1, {}, rank.soon()), ErrorCode::kPeerLost,
                     {"attention rank 0"}, "a receive that needs the rank that left");
    const auto in_vain = ffn.try_receive(0, {}, Deadline::now());
    rank.check_error(in_vain, ErrorCode::kDeadlineExceeded, {"attention rank 1", "stage 0"},
                     "a receive of the rows of a rank that left, and of another's");
    rank.check(in_vain || in_vain.error().message.find("attention rank 0") == std::string::npos,
               "the message names attention rank 0, whose rows had come");
    rank.barrier();
    rank.barrier();
    ffn.receive(5, 0);
    rank.barrier();
  });
}

}  // namespace

std::vector<Case> r7_peer_loss_cases() {
  const Needs kills{.kills = true};
  return {
      {"R7ADeadFfnRankReachesRecvFfnOutput",
       a_dead_ffn_rank_reaches_recv_ffn_output,
       {.kills = true, .num_stages = 3}},
      {"R7ADeadAttentionRankReachesRecvAttnOutput",
       a_dead_attention_rank_reaches_recv_attn_output,
       {.kills = true, .num_stages = 2}},
      {"R7ADeadAttentionRankReachesTheControlReceive",
       a_dead_attention_rank_reaches_the_control_receive,
       {.any_ratio = true, .kills = true}},
      {"R7ADeadAttentionRankReachesAGather", a_dead_attention_rank_reaches_a_gather, kills},
      {"R7ADeathReachesItsSubgroup", a_death_reaches_its_subgroup, kills},
      {"R7ADeathAmongSeveralFfnRanks",
       a_death_among_several_ffn_ranks,
       {.any_ratio = true, .kills = true}},
      {"R7ADeadFfnRankReachesAFullControlQueue", a_dead_ffn_rank_reaches_a_full_control_queue,
       kills},
      {"R7ADeathInTheMiddleOfATransfer",
       a_death_in_the_middle_of_a_transfer,
       {.in_place_buffers = true, .progressive_rows = true, .kills = true}},
      {"R7ADeathDuringInitEndsIt", a_death_during_init_ends_it, kills},
      {"R7RowsOfARankThatLeftAreTakenWithTheOthers",
       rows_of_a_rank_that_left_are_taken_with_the_others,
       {.num_stages = 2}},
  };
}

}  // namespace afd::conformance
