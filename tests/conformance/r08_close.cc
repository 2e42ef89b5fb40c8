// R8: close() wakes blocked calls and leaves nothing: no thread, descriptor, segment, port or
// process. It comes from any thread, is repeatable, and init works again after it.
#include <atomic>
#include <string>
#include <thread>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"
#include "conformance/process_state.h"

namespace afd::conformance {
namespace {

// Blocks this rank in `call`, closes its connector from another thread, and expects the call to
// return as one on a closed connector does, well before its deadline.
template <typename Call>
void check_close_wakes(Rank& rank, Call call, std::string_view what, Place place = {}) {
  const Deadline deadline = rank.soon();
  std::optional<decltype(call(deadline))> result;
  rank.while_blocked([&] { result = call(deadline); }, [&] { rank.connector().close(); });
  rank.check(!deadline.expired(), std::string(what) + " went on until its deadline", place);
  rank.check_error(*result, ErrorCode::kFailedPrecondition, {}, what, place);
  rank.check(!rank.connector().is_initialized(), "is_initialized() after close", place);
}

// Goal: close wakes every call that can wait.
// Method: one job a call; the rank sleeps in it when another thread closes its connector.
void close_wakes_recv_ffn_output(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_ffn()) {
      FfnDriver ffn(rank);
      ffn.begin(plan);
      return;
    }
    AttentionDriver attention(rank);
    attention.begin(plan);
    attention.send(0, 0);
    check_close_wakes(
        rank, [&](Deadline deadline) { return attention.try_receive(0, {}, deadline); },
        "recv_ffn_output while close() comes");
  });
}

void close_wakes_recv_attn_output(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_attention()) {
      AttentionDriver attention(rank);
      attention.begin(plan);
      // One of two is not enough for the FFN rank.
      if (rank.role_rank() == 0 && rank.counts().num_attention_ranks == 2) {
        attention.send(0, 0);
      }
      return;
    }
    FfnDriver ffn(rank);
    ffn.begin(plan);
    check_close_wakes(
        rank, [&](Deadline deadline) { return ffn.try_receive(0, {}, deadline); },
        "recv_attn_output while close() comes");
  });
}

void close_wakes_the_control_receive(CaseRun& run) {
  run.job({.counts = {1, 1}}, [](Rank& rank) {
    if (rank.is_ffn()) {
      check_close_wakes(
          rank, [&](Deadline deadline) { return rank.control().recv_dp_metadata_list(deadline); },
          "recv_dp_metadata_list while close() comes");
    }
  });
}

void close_wakes_a_gather(CaseRun& run) {
  run.job({.counts = {2, 1}}, [](Rank& rank) {
    RoleGroup* group = rank.connector().role_group();
    if (rank.is_attention() && rank.role_rank() == 0 && group != nullptr) {
      check_close_wakes(
          rank, [&](Deadline deadline) { return group->all_gather("mine", deadline); },
          "all_gather while close() comes");
    }
  });
}

// Both a listening rank that waits for others, and one that waits for the listener.
void close_wakes_init(CaseRun& run) {
  for (const Role waiting : {Role::kFfn, Role::kAttention}) {
    run.job({.counts = {1, 1}, .init = false}, [waiting](Rank& rank) {
      if (rank.role() == waiting) {
        check_close_wakes(
            rank, [&](Deadline deadline) { return rank.connector().init_afd_connector(deadline); },
            "init while close() comes");
      }
      rank.barrier();
      // And then everything still works.
      rank.require(rank.connector().init_afd_connector(rank.soon()), "init after a broken off one");
    });
  }
}

// Goal: what close leaves is what was there before init, every time.
// Method: ten rounds of init, transfers and close on one port; descriptors, threads, shared
// mappings and names in /dev/shm are compared with those before the first round.
void nothing_is_left(CaseRun& run) {
  run.job({.counts = run.fan_in(), .init = false}, [](Rank& rank) {
    // In threads mode all ranks see one process: then one of them looks, while the others wait.
    const bool looks = rank.mode() == Mode::kForked || rank.world_rank() == 0;
    rank.barrier();
    const auto descriptors = open_descriptors();
    const std::size_t threads = num_threads();
    const auto mappings = shared_mappings();
    rank.barrier();
    const std::uint16_t port = rank.params().config.port;
    std::set<std::string> names;  // of the mapped segments, while the job ran
    for (std::uint64_t round = 0; round < 10; ++round) {
      rank.require(rank.connector().init_afd_connector(rank.soon()), "init");
      rank.require(rank.connector().init_afd_connector(rank.soon()), "init of an initialised one");
      rank.check(rank.connector().is_initialized(), "is_initialized() is false after init");
      StepPlan plan = even_step(rank, 3, round);
      for (const std::string& mapping : shared_mappings()) {
        if (mapping.rfind("/dev/shm/", 0) == 0) {
          names.insert(mapping.substr(9, mapping.find(' ') == std::string::npos
                                             ? std::string::npos
                                             : mapping.find(' ') - 9));
        }
      }
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        attention.send(0, 0);
        attention.receive(0, 0);
        attention.send(1, 0);  // left under way
      } else {
        FfnDriver ffn(rank);
        ffn.begin(plan);
        ffn.receive(0, 0);
        ffn.send(0, 0);
      }
      rank.barrier();
      rank.connector().close();
      rank.check(!rank.connector().is_initialized(), "is_initialized() after close");
      rank.connector().close();
      rank.barrier();
      if (looks) {
        rank.check(added(descriptors, open_descriptors()).empty(),
                   "close() left descriptors: " + added(descriptors, open_descriptors()));
        rank.check(added(mappings, shared_mappings()).empty(),
                   "close() left mappings: " + added(mappings, shared_mappings()));
        // A thread that was joined may still be listed for a moment.
        const auto until = Board::Clock::now() + rank.patience();
        while (num_threads() > threads && Board::Clock::now() < until) {
          std::this_thread::yield();
        }
        rank.check(num_threads() <= threads,
                   "close() left a thread: " + std::to_string(num_threads()) + " run, before " +
                       std::to_string(threads));
        const std::set<std::string> present = shared_memory_names();
        for (const std::string& name : names) {
          rank.check(present.count(name) == 0, "close() left /dev/shm/" + name);
        }
        rank.check(!is_listening(rank.params().config.host, port),
                   "somebody still listens on the port after close()");
      }
      rank.barrier();
    }
  });
}

// Goal: an init that fails leaves nothing either.
// Method: it fails for want of a peer and for a difference; the same is compared as above.
void a_failed_init_leaves_nothing(CaseRun& run) {
  for (const bool mismatch : {false, true}) {
    JobSpec spec{.counts = {1, 1}, .init = false};
    if (mismatch) {
      spec.adjust = [](ConnectorParams& params) {
        params.must_match.emplace_back("model_hash", std::string(to_string(params.config.role)));
      };
    }
    run.job(spec, [mismatch](Rank& rank) {
      const bool looks = rank.mode() == Mode::kForked || rank.world_rank() == 0;
      rank.barrier();
      const auto descriptors = open_descriptors();
      const auto mappings = shared_mappings();
      const std::size_t threads = num_threads();
      const std::set<std::string> names = shared_memory_names();
      rank.barrier();
      if (mismatch) {
        // Who listens may wait on for a rank that fits, which never comes.
        const Deadline deadline =
            rank.is_ffn() ? Deadline::after(std::chrono::milliseconds(500)) : rank.soon();
        rank.check(!rank.connector().init_afd_connector(deadline), "init with a difference");
      } else if (rank.is_ffn()) {
        rank.check_error(
            rank.connector().init_afd_connector(Deadline::after(std::chrono::milliseconds(50))),
            ErrorCode::kDeadlineExceeded, {"attention rank 0"}, "init alone");
      }
      rank.barrier();
      if (looks) {
        rank.check(added(descriptors, open_descriptors()).empty(),
                   "a failed init left descriptors: " + added(descriptors, open_descriptors()));
        rank.check(added(mappings, shared_mappings()).empty(),
                   "a failed init left mappings: " + added(mappings, shared_mappings()));
        const auto until = Board::Clock::now() + rank.patience();
        while (num_threads() > threads && Board::Clock::now() < until) {
          std::this_thread::yield();
        }
        rank.check(num_threads() <= threads, "a failed init left a thread");
        // Other programs come and go in /dev/shm: what stays is ours.
        std::string left = added(names, shared_memory_names());
        while (!left.empty() && Board::Clock::now() < until) {
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          left = added(names, shared_memory_names());
        }
        rank.check(left.empty(), "a failed init left in /dev/shm: " + left);
        rank.check(!is_listening(rank.params().config.host, rank.params().config.port),
                   "a failed init still listens");
      }
      rank.barrier();
    });
  }
}

// Goal: close may come at any time, from several threads, or not at all before the destructor.
// Method: on a new connector, on an initialised one from four threads, and by destroying.
void close_is_repeatable(CaseRun& run) {
  run.job({.counts = {1, 1}, .init = false}, [](Rank& rank) {
    rank.connector().close();
    rank.connector().close();
    for (int round = 0; round < 3; ++round) {
      rank.require(rank.connector().init_afd_connector(rank.soon()), "init");
      rank.barrier();
      if (round == 2) {
        rank.replace_connector(rank.make_connector());  // destroys the open one
        break;
      }
      std::vector<std::thread> closers;
      for (int i = 0; i < 4; ++i) {
        closers.emplace_back([&] { rank.connector().close(); });
      }
      for (std::thread& closer : closers) {
        closer.join();
      }
      rank.barrier();
    }
  });
}

// Goal: leaving in order ends the FFN ranks' wait for steps as "the job is done".
// Method: the FFN ranks sleep in recv_dp_metadata_list when the attention ranks close. A payload
// that was sent before comes first.
void leaving_in_order_ends_the_job(CaseRun& run) {
  run.job({.counts = run.fan_in()}, [](Rank& rank) {
    const StepPlan plan = even_step(rank, 2);
    if (rank.is_attention()) {
      if (rank.role_rank() == 0) {
        rank.require(rank.control().send_dp_metadata_list(plan.payload(), rank.soon()), "send");
      }
      rank.barrier();
      rank.connector().close();
      return;
    }
    rank.barrier();
    const auto first = rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "receive");
    rank.check(first == plan.payload(), "the payload sent before the goodbye is missing");
    const auto second =
        rank.require(rank.control().recv_dp_metadata_list(rank.soon()), "the last receive");
    rank.check(!second.has_value(), "a payload that nobody sent");
  });
}

// Goal: a call that needs a rank which has left returns as PeerLost, naming it.
// Method: the FFN rank leaves while the attention rank waits for its output, and the other way
// round.
void a_rank_that_left_is_named(CaseRun& run) {
  for (const Role leaving : {Role::kFfn, Role::kAttention}) {
    run.job({.counts = {1, 1}}, [leaving](Rank& rank) {
      const StepPlan plan = even_step(rank, 2);
      if (rank.is_attention()) {
        AttentionDriver attention(rank);
        attention.begin(plan);
        rank.barrier();
        if (leaving == Role::kAttention) {
          rank.connector().close();
        } else {
          attention.send(0, 0);
          rank.post(0);
          rank.check_error(attention.try_receive(0, {}, rank.soon()), ErrorCode::kPeerLost,
                           {"ffn rank 0"}, "recv_ffn_output from a rank that left");
        }
        return;
      }
      FfnDriver ffn(rank);
      ffn.begin(plan);
      rank.barrier();
      if (leaving == Role::kFfn) {
        rank.await(0);
        rank.connector().close();
      } else {
        rank.check_error(ffn.try_receive(0, {}, rank.soon()), ErrorCode::kPeerLost,
                         {"attention rank 0"}, "recv_attn_output from a rank that left");
      }
    });
  }
}

// Goal: close in the middle of transfers ends them with an error, never with wrong data or a crash.
// Method: both ranks exchange as fast as they can; after a varying number of layers one of them
// closes from another thread.
void close_in_the_middle_of_transfers(CaseRun& run) {
  for (std::uint32_t round = 0; round < 6; ++round) {
    JobSpec spec{.counts = {1, 1}};
    spec.limits.num_layers = 1u << 30;
    spec.limits.hidden_size = 512;
    run.job(spec, [round](Rank& rank) {
      const StepPlan plan = even_step(rank, 8);
      const bool closes = rank.is_attention() == (round % 2 == 0);
      std::atomic<std::uint32_t> num_done{0};
      std::thread closer([&] {
        const std::uint32_t target = 1 + round * 37;
        const auto until = Board::Clock::now() + rank.patience();
        while (closes && num_done.load() < target && Board::Clock::now() < until) {
          std::this_thread::yield();
        }
        if (closes) {
          rank.connector().close();
        }
      });
      std::optional<Error> end;
      AttentionDriver attention(rank);
      FfnDriver ffn(rank);
      try {
        rank.is_attention() ? attention.begin(plan) : ffn.begin(plan);
      } catch (const RankStopped&) {
        closer.join();
        throw;
      }
      const auto keep = [&](const auto& result) {
        if (!result) {
          end = result.error();
        }
        return !end.has_value();
      };
      bool right = true;
      for (std::uint32_t layer = 0; right; ++layer, ++num_done) {
        if (rank.is_attention()) {
          if (!keep(attention.try_send(layer, 0, {}, rank.soon()))) {
            break;
          }
          const auto output =
              attention.try_receive(0, {.into = RecvHow::Into::kOwnBuffer}, rank.soon());
          if (!keep(output)) {
            break;
          }
          right = attention.check_output(*output, layer, 0);
        } else {
          // In place: the view may not be read once another thread has closed. So only the number.
          const auto payload = ffn.try_receive(0, {}, rank.soon());
          if (!keep(payload)) {
            break;
          }
          right = rank.check_equal(payload->context.metadata.layer_idx, layer, "the layer");
          if (!keep(ffn.try_send(layer, 0, {}, rank.soon()))) {
            break;
          }
        }
      }
      closer.join();
      if (closes) {
        rank.check(end && end->code == ErrorCode::kFailedPrecondition,
                   "a transfer while close() comes ended with " +
                       (end ? Rank::describe(*end) : std::string("nothing")));
      } else {
        rank.check(end && end->code == ErrorCode::kPeerLost,
                   "a transfer with a rank that left ended with " +
                       (end ? Rank::describe(*end) : std::string("nothing")));
      }
    });
  }
}

}  // namespace

std::vector<Case> r8_close_cases() {
  return {
      {"R8CloseWakesRecvFfnOutput", close_wakes_recv_ffn_output, {}},
      {"R8CloseWakesRecvAttnOutput", close_wakes_recv_attn_output, {}},
      {"R8CloseWakesTheControlReceive", close_wakes_the_control_receive, {}},
      {"R8CloseWakesAGather", close_wakes_a_gather, {}},
      {"R8CloseWakesInit", close_wakes_init, {}},
      {"R8NothingIsLeft", nothing_is_left, {}},
      {"R8AFailedInitLeavesNothing", a_failed_init_leaves_nothing, {}},
      {"R8CloseIsRepeatable", close_is_repeatable, {}},
      {"R8LeavingInOrderEndsTheJob", leaving_in_order_ends_the_job, {}},
      {"R8ARankThatLeftIsNamed", a_rank_that_left_is_named, {}},
      {"R8CloseInTheMiddleOfTransfers", close_in_the_middle_of_transfers, {}},
  };
}

}  // namespace afd::conformance
