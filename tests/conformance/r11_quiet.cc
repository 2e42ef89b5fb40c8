// R11: after warm-up a transfer allocates nothing, takes no lock, logs nothing, touches no new page
// and, while it spins, makes no system call.
//
// What holds whatever the machine does is counted over a thousand transfers whose receives find
// everything there, so that nobody has a reason to wait: the counts have to be 0. What a receive
// does while it spins is seen in a ping-pong of two ranks, in windows, beside a bare flag that goes
// to and fro in the same windows: a neighbour on the machine can spoil any one window, a system
// call a transfer spoils all.
#include <atomic>
#include <string>

#include <sched.h>

#include "conformance/cases.h"
#include "conformance/driver.h"
#include "conformance/harness.h"
#include "conformance/quiet.h"

namespace afd::conformance {
namespace {

constexpr std::uint32_t kWarmUp = 64;
constexpr std::uint32_t kTransfers = 1000;
constexpr std::uint32_t kThousands = 4;

// The four calls, with tensors and contexts made beforehand.
struct Calls {
  explicit Calls(Rank& rank, std::uint32_t num_rows, bool router_logits)
      : rank_(rank),
        hidden(rank.make_tensor({num_rows, rank.limits().hidden_size}, rank.limits().dtype)),
        output(rank.make_tensor({num_rows, rank.limits().hidden_size}, rank.limits().dtype)),
        logits(rank.make_tensor({num_rows, std::max(1u, rank.limits().num_experts)}, kFloat32)),
        router_logits_(router_logits) {}

  bool attention_send(std::uint32_t layer, bool in_place, QuietWatch& watch) {
    const TransferContext sent_context = context_of(layer, 0, rows());
    SendAttnOptions options{.deadline = rank_.soon()};
    if (router_logits_) {
      options.router_logits = logits;
    }
    watch.arm();
    ConstTensorView from = hidden;
    if (in_place) {
      const Result<TensorView> buffer = rank_.connector().attn_send_buffer(0, rows());
      if (buffer) {
        from = *buffer;
      }
    }
    const Result<void> sent = rank_.connector().send_attn_output(from, sent_context, options);
    watch.disarm();
    return rank_.check_ok(sent, "send_attn_output");
  }

  bool attention_receive(bool in_place, QuietWatch& watch) {
    const RecvFfnOptions options{.deadline = rank_.soon()};
    watch.arm();
    const Result<TensorView> received =
        rank_.connector().recv_ffn_output(in_place ? TensorView{} : output, 0, options);
    watch.disarm();
    return rank_.check_ok(received, "recv_ffn_output");
  }

  bool ffn_receive(QuietWatch& watch) {
    RecvAttnOptions options{.deadline = rank_.soon()};
    if (router_logits_) {
      options.routing_spec = ExpertRoutingSpec{rank_.limits().num_experts, kFloat32};
    }
    watch.arm();
    Result<A2FTransferPayload> received = rank_.connector().recv_attn_output(0, options);
    watch.disarm();
    if (!rank_.check_ok(received, "recv_attn_output")) {
      return false;
    }
    context = received->context;
    return true;
  }

  bool ffn_send(bool in_place, QuietWatch& watch) {
    const SendFfnOptions options{.deadline = rank_.soon()};
    watch.arm();
    ConstTensorView from = output;
    if (in_place) {
      const Result<TensorView> buffer = rank_.connector().ffn_output_buffer(context);
      if (buffer) {
        from = *buffer;
      }
    }
    const Result<void> sent =
        rank_.connector().send_ffn_output({.routed_output = from}, context, options);
    watch.disarm();
    return rank_.check_ok(sent, "send_ffn_output");
  }

  std::uint32_t rows() const { return static_cast<std::uint32_t>(hidden.shape[0]); }

  Rank& rank_;
  TensorView hidden;
  TensorView output;
  TensorView logits;
  TransferContext context;
  bool router_logits_;
};

constexpr std::size_t kTurnWord = 0;
constexpr std::size_t kFirstThousandWord = 1;  // how many of the two ranks had a quiet thousand
constexpr std::size_t kToldWord = kFirstThousandWord + kThousands;

// A thousand transfers of two ranks that take turns, so that every call finds what it needs; own
// and in-place buffers alternate. `turn` goes on from one thousand to the next.
QuietCounts count_a_thousand(Rank& rank, Calls& calls, std::uint32_t thousand,
                             std::uint64_t& turn) {
  QuietWatch watch;
  for (std::uint32_t i = 0; i < kWarmUp + kTransfers; ++i) {
    const std::uint32_t layer = thousand * (kWarmUp + kTransfers) + i;
    if (i == kWarmUp) {
      watch.reset();
    }
    const bool in_place = layer % 2 == 0 && rank.capabilities().in_place_buffers;
    // One board word counts the calls made; each rank waits for its turn, unwatched.
    const auto my_turn = [&](std::uint64_t offset) { rank.await(kTurnWord, turn + offset); };
    if (rank.is_attention()) {
      my_turn(0);
      rank.require_that(calls.attention_send(layer, in_place, watch), "send");
      rank.post(kTurnWord, turn + 1);
      my_turn(2);
      rank.require_that(calls.attention_receive(layer % 2 == 0, watch), "receive");
      rank.post(kTurnWord, turn + 3);
    } else {
      my_turn(1);
      rank.require_that(calls.ffn_receive(watch), "receive");
      rank.require_that(calls.ffn_send(in_place, watch), "send");
      rank.post(kTurnWord, turn + 2);
    }
    turn += 3;
  }
  return watch.counts();
}

// Counts thousands until both ranks had one that is `quiet`, at most kThousands.
// @return whether they had; `sum` is of all that were counted
bool find_a_quiet_thousand(Rank& rank, bool router_logits, QuietCounts& sum,
                           bool (*quiet)(const QuietCounts& counts)) {
  Calls calls(rank, 8, router_logits);
  const bool counts_calls = count_system_calls_of_this_thread();
  if (!counts_calls || !quiet_counters_work()) {
    rank.skip(std::string("this build or machine does not count ") +
              (quiet_counters_work() ? "system calls" : "allocations and system calls"));
  }
  std::uint64_t turn = 0;
  bool found = false;
  for (std::uint32_t thousand = 0; thousand < kThousands && !found; ++thousand) {
    const QuietCounts counts = count_a_thousand(rank, calls, thousand, turn);
    sum += counts;
    // Both ranks go the same number of rounds.
    rank.board().add(kFirstThousandWord + thousand, quiet(counts) ? 1 : 0);
    rank.barrier();
    found = rank.board().read(kFirstThousandWord + thousand) == 2;
  }
  return found;
}

// Goal: no allocation, lock, system call or page fault in a thousand transfers.
// Method: two ranks that take turns. Faults alone may come from the machine (a page that the kernel
// moves): of four thousands one must be free of them.
void a_thousand_transfers_are_quiet(CaseRun& run) {
  const bool logits = run.connector().capabilities.router_logits;
  JobSpec spec{.counts = {1, 1}, .compute_gate_on_attention = logits};
  spec.limits.hidden_size = 1024;
  spec.limits.num_layers = kThousands * (kWarmUp + kTransfers);
  run.job(spec, [logits](Rank& rank) {
    begin_step(rank, even_step(rank, 8));
    QuietCounts sum;
    const bool fault_free = find_a_quiet_thousand(
        rank, logits, sum, [](const QuietCounts& counts) { return counts.minor_faults == 0; });
    rank.check(fault_free || is_instrumented(),
               "every thousand of transfers had minor faults: " + to_string(sum));
    sum.minor_faults = 0;
    rank.check(sum.zero(), "transfers that need not wait: " + to_string(sum));
  });
}

// Goal: what holds for a job of which nobody left holds for one that ranks have left whom a
// transfer does not need.
// Method: of two subgroups one closes. The other hears of it (its gathers fail) and goes on. When
// the news arrives is up to the machine, so one thousand of four has to be quiet.
void a_leave_that_concerns_nobody_keeps_it_quiet(CaseRun& run) {
  JobSpec spec{.counts = {2, 2}};
  spec.limits.num_layers = kThousands * (kWarmUp + kTransfers);
  run.job(spec, [](Rank& rank) {
    begin_step(rank, even_step(rank, 8));
    rank.barrier();
    if (rank.role_rank() == 1) {
      if (rank.is_attention()) {
        rank.await(kToldWord);  // the FFN ranks go first
      }
      rank.connector().close();
      return;
    }
    if (RoleGroup* group = rank.connector().role_group()) {
      rank.check_error(group->all_gather("mine", rank.soon()), ErrorCode::kPeerLost, {},
                       "a gather of a role of which one has left");
    }
    rank.post(kToldWord);
    QuietCounts sum;
    const bool quiet = find_a_quiet_thousand(rank, false, sum, [](const QuietCounts& counts) {
      return counts.zero() || (is_instrumented() && counts.system_calls == 0);
    });
    rank.check(quiet, "after a leave every thousand of transfers had some: " + to_string(sum));
  });
}

// A flag that two ranks pass to and fro on the board, as fast as the machine can.
// @return false  when one of `num_turns` took more than `bound`: the window was disturbed
bool bare_ping_pong(Rank& rank, std::size_t word, std::uint64_t& turn, std::uint32_t num_turns) {
  constexpr std::uint64_t kBoundNs = 20'000;
  bool quiet = true;
  for (std::uint32_t i = 0; i < num_turns; ++i) {
    const std::uint64_t start = monotonic_ns();
    std::uint64_t now = start;
    if (!rank.is_attention()) {
      while (rank.board().read(word) < turn + 1 && now - start < 10'000'000'000) {
        now = monotonic_ns();
      }
      rank.board().store(word, turn + 2);
    } else {
      rank.board().store(word, turn + 1);
      while (rank.board().read(word) < turn + 2 && now - start < 10'000'000'000) {
        now = monotonic_ns();
      }
    }
    turn += 2;
    quiet &= monotonic_ns() - start < kBoundNs;
  }
  return quiet;
}

// Whether nobody else wants this thread's processor: a yield that meets a stranger who computes is
// back after his time slice, milliseconds later. (The ping-pong does not see him: a thread that was
// just woken goes first for a while.)
bool yields_come_back_at_once() {
  constexpr std::uint64_t kBoundNs = 200'000;
  bool at_once = true;
  for (int i = 0; i < 3; ++i) {
    const std::uint64_t start = monotonic_ns();
    sched_yield();
    at_once &= monotonic_ns() - start < kBoundNs;
  }
  return at_once;
}

// Goal: a receive that spins makes no system call, and neither does the send that ends the spin.
// Method: windows of ten transfers to and fro between two ranks on two cores, with system calls
// counted. One window without any is proof. Without one it is a failure only if the machine was
// calm for three blocks of windows on end: a connector whose spin adapts may need the first two to
// learn that nobody else wants the processors. On a machine that is never calm there is no result.
void spinning_makes_no_system_call(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.num_layers = 1u << 30;
  run.job(spec, [](Rank& rank) {
    constexpr std::uint32_t kWindows = 3000;
    constexpr std::uint32_t kLayers = 10;
    constexpr std::uint32_t kBlock = 50;
    constexpr std::uint32_t kLookEvery = 5;   // windows
    constexpr std::uint32_t kCalmBlock = 48;  // windows of a block
    const auto until = Board::Clock::now() + std::chrono::seconds(8);
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    if (CPU_COUNT(&allowed) < 2) {
      rank.skip("two ranks that spin need two cores, this process may use " +
                std::to_string(CPU_COUNT(&allowed)));
      return;
    }
    begin_step(rank, even_step(rank, 1));
    Calls calls(rank, 1, false);
    if (!count_system_calls_of_this_thread()) {
      rank.skip("this build or machine does not count system calls");
      return;
    }
    QuietWatch watch;
    std::uint64_t turn = 0;
    std::uint32_t layer = 0;
    std::uint32_t num_calm = 0;
    std::uint32_t num_calm_blocks = 0;  // on end
    QuietCounts total;
    for (std::uint32_t window = 0; window < kWindows; ++window) {
      rank.barrier();
      // Not before every window, and not in the first block, which may bring the proof: where
      // strangers compute, each look gives them a slice.
      bool calm = window >= kBlock && (window % kLookEvery != 0 || yields_come_back_at_once());
      calm &= bare_ping_pong(rank, 0, turn, kLayers);
      watch.reset();
      for (std::uint32_t i = 0; i < kLayers; ++i, ++layer) {
        if (rank.is_attention()) {
          rank.require_that(calls.attention_send(layer, false, watch), "send");
          rank.require_that(calls.attention_receive(true, watch), "receive");
        } else {
          rank.require_that(calls.ffn_receive(watch), "receive");
          rank.require_that(calls.ffn_send(false, watch), "send");
        }
      }
      total += watch.counts();
      // Word 2: how many ranks had a window without a system call; word 3: with a calm machine.
      const bool silent = watch.counts().system_calls == 0;
      rank.board().add(2, silent ? 1 : 0);
      rank.board().add(3, calm ? 1 : 0);
      rank.board().add(4, Board::Clock::now() > until ? 1 : 0);
      rank.barrier();
      const bool all_silent = rank.board().read(2) == 2;
      const bool all_calm = rank.board().read(3) == 2;
      const bool late = rank.board().read(4) != 0;
      rank.barrier();
      if (rank.is_attention()) {
        rank.board().store(2, 0);
        rank.board().store(3, 0);
      }
      if (all_silent) {
        return;
      }
      num_calm += all_calm ? 1 : 0;
      if ((window + 1) % kBlock == 0) {
        num_calm_blocks = num_calm >= kCalmBlock ? num_calm_blocks + 1 : 0;
        num_calm = 0;
      }
      if (num_calm_blocks == 3) {
        rank.fail("on a calm machine no window of " + std::to_string(kLayers) +
                  " transfers was without system calls: " + to_string(total));
        return;
      }
      if (late) {
        break;
      }
    }
    rank.skip("the machine was never calm for long: nothing can be said about spinning");
  });
}

}  // namespace

std::vector<Case> r11_quiet_cases() {
  return {
      {"R11AThousandTransfersAreQuiet", a_thousand_transfers_are_quiet, {}},
      {"R11ALeaveThatConcernsNobodyKeepsItQuiet",
       a_leave_that_concerns_nobody_keeps_it_quiet,
       {.any_ratio = true}},
      {"R11SpinningMakesNoSystemCall", spinning_makes_no_system_call, {}},
  };
}

}  // namespace afd::conformance
