// R11: after warm-up a transfer allocates nothing, takes no lock, logs nothing, touches no new page
// and, while it spins, makes no system call.
//
// What holds whatever the machine does is counted over a thousand transfers whose receives find
// everything there, so that nobody has a reason to wait: the counts have to be 0. What a receive
// does while it spins is seen in a ping-pong of two ranks, in windows, beside a bare flag that goes
// to and fro in the same windows: a neighbour on the machine can spoil any one window, a system
// call a transfer spoils all.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

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

// How the rows of one transfer go over.
struct Way {
  bool in_place = false;  // sent from landing memory, received as a view
  bool streamed = false;  // with a RowSource and a RowSink
  bool router_logits = false;
};

// The four calls, with tensors and contexts made beforehand.
class Calls {
 public:
  // `num_rows` of every attention rank; an FFN rank has room for those of all.
  explicit Calls(Rank& rank, std::uint32_t num_rows)
      : rank_(rank),
        num_rows_(num_rows),
        contexts_(rank.limits().num_stages),
        num_peers_(static_cast<std::uint32_t>(rank.mapping().peers.size())) {
    const std::uint32_t num_rows_max =
        rank.is_attention() ? num_rows : num_rows * rank.counts().num_attention_ranks;
    for (std::uint32_t stage = 0; stage < rank.limits().num_stages; ++stage) {
      own_.push_back(
          rank.make_tensor({num_rows_max, rank.limits().hidden_size}, rank.limits().dtype));
      outputs_.push_back(
          rank.make_tensor({num_rows_max, rank.limits().hidden_size}, rank.limits().dtype));
      logits_.push_back(
          rank.make_tensor({num_rows, std::max(1u, rank.limits().num_experts)}, kFloat32));
    }
  }

  bool attention_send(std::uint32_t layer, std::uint32_t stage, Way way, QuietWatch& watch) {
    const TransferContext sent_context = context_of(layer, stage, num_rows_);
    SendAttnOptions options{.deadline = rank_.soon()};
    if (way.router_logits) {
      options.router_logits = logits_[stage];
    }
    // Rows that go to several peers have no one place to be written in.
    const bool in_place = (way.in_place || way.streamed) && num_peers_ == 1;
    watch.arm();
    ConstTensorView from = own_[stage];
    if (in_place && has_buffers_) {
      const Result<TensorView> buffer = rank_.connector().attn_send_buffer(stage, num_rows_);
      has_buffers_ = buffer.has_value();
      if (buffer) {
        from = *buffer;
        options.source = way.streamed ? source() : RowSource{};
      }
    }
    const Result<void> sent = rank_.connector().send_attn_output(from, sent_context, options);
    watch.disarm();
    return rank_.check_ok(sent, "send_attn_output");
  }

  bool attention_receive(std::uint32_t stage, Way way, QuietWatch& watch) {
    RecvFfnOptions options{.deadline = rank_.soon()};
    options.sink = way.streamed ? sink() : RowSink{};
    num_rows_told_ = 0;
    watch.arm();
    const Result<TensorView> received = rank_.connector().recv_ffn_output(
        way.in_place ? TensorView{} : outputs_[stage], stage, options);
    watch.disarm();
    return rank_.check_ok(received, "recv_ffn_output") && all_told(way, num_rows_);
  }

  bool ffn_receive(std::uint32_t stage, Way way, QuietWatch& watch) {
    RecvAttnOptions options{.deadline = rank_.soon()};
    if (way.router_logits) {
      options.routing_spec = ExpertRoutingSpec{rank_.limits().num_experts, kFloat32};
    }
    options.sink = way.streamed ? sink() : RowSink{};
    num_rows_told_ = 0;
    watch.arm();
    Result<A2FTransferPayload> received = rank_.connector().recv_attn_output(stage, options);
    watch.disarm();
    if (!rank_.check_ok(received, "recv_attn_output")) {
      return false;
    }
    contexts_[stage] = received->context;
    own_[stage].shape = received->hidden_states.shape;
    return all_told(way, static_cast<std::uint32_t>(received->hidden_states.shape[0]));
  }

  bool ffn_send(std::uint32_t stage, Way way, QuietWatch& watch) {
    SendFfnOptions options{.deadline = rank_.soon()};
    watch.arm();
    ConstTensorView from = own_[stage];
    if ((way.in_place || way.streamed) && has_buffers_) {
      const Result<TensorView> buffer = rank_.connector().ffn_output_buffer(contexts_[stage]);
      has_buffers_ = buffer.has_value();
      if (buffer) {
        from = *buffer;
        options.source = way.streamed ? source() : RowSource{};
      }
    }
    const Result<void> sent =
        rank_.connector().send_ffn_output({.routed_output = from}, contexts_[stage], options);
    watch.disarm();
    return rank_.check_ok(sent, "send_ffn_output");
  }

 private:
  RowSource source() {
    return {this, [](void*, TensorView rows, RowRange) {
              auto* const bytes = static_cast<std::byte*>(rows.data);
              std::fill(bytes, bytes + rows.size_bytes(), std::byte{0x3c});
            }};
  }
  RowSink sink() {
    return {this, [](void*, ConstTensorView) {},
            [](void* self, RowRange range) {
              static_cast<Calls*>(self)->num_rows_told_ += range.num_rows;
            }};
  }
  bool all_told(Way way, std::uint32_t num_rows) {
    return !way.streamed || rank_.check_equal(num_rows_told_, num_rows, "rows told to the sink");
  }

  Rank& rank_;
  const std::uint32_t num_rows_;
  std::vector<TensorView> own_;  // by stage, like the next three
  std::vector<TensorView> outputs_;
  std::vector<TensorView> logits_;
  std::vector<TransferContext> contexts_;
  const std::uint32_t num_peers_;
  // Until a call says that it has none, during the warm-up: an error may allocate.
  bool has_buffers_ = true;
  std::uint32_t num_rows_told_ = 0;
};

constexpr std::uint32_t kStagesMax = 2;
constexpr std::size_t kSentWord = 8;  // + stage: transfers sent, of all ranks
constexpr std::size_t kAnsweredWord = kSentWord + kStagesMax;  // + stage
constexpr std::size_t kFirstThousandWord = 16;  // + thousand: ranks that had a quiet one
constexpr std::size_t kToldWord = kFirstThousandWord + kThousands;

// A thousand transfers of each stage, each call made when what it needs is there.
QuietCounts count_a_thousand(Rank& rank, Calls& calls, std::uint32_t thousand,
                             const std::vector<Way>& ways, RankCounts ranks) {
  QuietWatch watch;
  const std::uint32_t num_stages = rank.limits().num_stages;
  for (std::uint32_t i = 0; i < kWarmUp + kTransfers; ++i) {
    const std::uint32_t layer = thousand * (kWarmUp + kTransfers) + i;
    if (i == kWarmUp) {
      watch.reset();
    }
    const Way way = ways[layer % ways.size()];
    const std::uint64_t all_sent = std::uint64_t{ranks.num_attention_ranks} * (layer + 1);
    const std::uint64_t all_answered = std::uint64_t{ranks.num_ffn_ranks} * (layer + 1);
    for (std::uint32_t stage = 0; stage < num_stages; ++stage) {
      if (rank.is_attention()) {
        rank.require_that(calls.attention_send(layer, stage, way, watch), "send");
        rank.board().add(kSentWord + stage, 1);
      } else {
        rank.await(kSentWord + stage, all_sent);
        rank.require_that(calls.ffn_receive(stage, way, watch), "receive");
        rank.require_that(calls.ffn_send(stage, way, watch), "send");
        rank.board().add(kAnsweredWord + stage, 1);
      }
    }
    for (std::uint32_t stage = 0; stage < num_stages && rank.is_attention(); ++stage) {
      rank.await(kAnsweredWord + stage, all_answered);
      rank.require_that(calls.attention_receive(stage, way, watch), "receive");
    }
  }
  return watch.counts();
}

// A network's own calls are no breach.
void allow_network_calls(const ConnectorUnderTest& connector, QuietCounts& counts) {
  if (connector.capabilities.network_calls) {
    counts.system_calls = 0;
  }
}

// Counts thousands until all ranks had one that is `quiet`, at most kThousands.
// @param ranks  how many take part
// @return whether they had; `sum` is of all that were counted
bool find_a_quiet_thousand(Rank& rank, Calls& calls, const std::vector<Way>& ways, RankCounts ranks,
                           QuietCounts& sum,
                           const std::function<bool(const QuietCounts& counts)>& quiet) {
  const bool counts_calls = count_system_calls_of_this_thread();
  if (!counts_calls || !quiet_counters_work()) {
    rank.skip(std::string("this build or machine does not count ") +
              (quiet_counters_work() ? "system calls" : "allocations and system calls"));
  }
  bool found = false;
  for (std::uint32_t thousand = 0; thousand < kThousands && !found; ++thousand) {
    const QuietCounts counts = count_a_thousand(rank, calls, thousand, ways, ranks);
    sum += counts;
    // All ranks go the same number of rounds.
    rank.board().add(kFirstThousandWord + thousand, quiet(counts) ? 1 : 0);
    rank.barrier();
    found = rank.board().read(kFirstThousandWord + thousand) ==
            ranks.num_attention_ranks + ranks.num_ffn_ranks;
  }
  return found;
}

// The ways that the connector can, taken in turn.
std::vector<Way> ways_of(const Capabilities& can, bool router_logits) {
  std::vector<Way> ways = {{.router_logits = router_logits}};
  if (can.in_place_buffers) {
    ways.push_back({.in_place = true, .router_logits = router_logits});
  }
  if (can.progressive_rows) {
    ways.push_back({.streamed = true, .router_logits = router_logits});
    ways.push_back({.in_place = true, .streamed = true, .router_logits = router_logits});
  }
  return ways;
}

// Goal: no allocation, lock, system call or page fault in a thousand transfers of any shape.
// Method: calls that are made when what they need is there: rows of 4 KiB, one piece and several,
// every way in turn. Faults alone may come from the machine (a page that the kernel moves): of four
// thousands one must be free of them.
void a_thousand_transfers_are_quiet(CaseRun& run) {
  struct Shape {
    RankCounts counts;
    std::uint32_t num_stages;
    std::uint32_t num_rows;
  };
  const Capabilities& can = run.connector().capabilities;
  std::vector<Shape> shapes = {{{1, 1}, 1, 2}};
  if (can.num_stages_max >= kStagesMax) {
    shapes.push_back({{1, 1}, kStagesMax, 16});
    if (can.any_ratio) {
      shapes.push_back({{2, 1}, kStagesMax, 16});
      shapes.push_back({{1, 2}, kStagesMax, 32});
    }
  }
  const std::vector<Way> ways = ways_of(can, can.router_logits);
  for (const Shape& shape : shapes) {
    JobSpec spec{.counts = shape.counts, .compute_gate_on_attention = can.router_logits};
    spec.limits.hidden_size = 1024;
    spec.limits.num_stages = shape.num_stages;
    spec.limits.max_num_tokens = shape.num_rows;
    spec.limits.num_layers = kThousands * (kWarmUp + kTransfers);
    run.job(spec, [&](Rank& rank) {
      begin_step(rank, even_step(rank, static_cast<std::int32_t>(shape.num_rows)));
      Calls calls(rank, shape.num_rows);
      QuietCounts sum;
      const bool fault_free =
          find_a_quiet_thousand(rank, calls, ways, shape.counts, sum,
                                [](const QuietCounts& counts) { return counts.minor_faults == 0; });
      const std::string where = std::to_string(shape.counts.num_attention_ranks) + "A" +
                                std::to_string(shape.counts.num_ffn_ranks) + "F, " +
                                std::to_string(shape.num_stages) + " stages: ";
      rank.check(fault_free || is_instrumented(),
                 where + "every thousand of transfers had minor faults: " + to_string(sum));
      sum.minor_faults = 0;
      allow_network_calls(run.connector(), sum);
      rank.check(sum.zero(), where + "transfers that need not wait: " + to_string(sum));
    });
  }
}

// Goal: what holds for a job of which nobody left holds for one that ranks have left whom a
// transfer does not need.
// Method: of two subgroups one closes. The other hears of it (its gathers fail) and goes on. When
// the news arrives is up to the machine, so one thousand of four has to be quiet.
void a_leave_that_concerns_nobody_keeps_it_quiet(CaseRun& run) {
  JobSpec spec{.counts = {2, 2}};
  spec.limits.num_layers = kThousands * (kWarmUp + kTransfers);
  run.job(spec, [&run](Rank& rank) {
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
    Calls calls(rank, 8);
    const bool quiet =
        find_a_quiet_thousand(rank, calls, {{}}, {1, 1}, sum, [&](QuietCounts counts) {
          allow_network_calls(run.connector(), counts);
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
// counted, in blocks of fifty windows. A block with nine silent windows of ten is proof: a
// neighbour who disturbs costs a few. Without one it is a failure only if the machine was calm for
// three blocks on end: a connector whose spin adapts may need the first two to learn that nobody
// else wants the processors. On a machine that is never calm there is no result.
void spinning_makes_no_system_call(CaseRun& run) {
  JobSpec spec{.counts = {1, 1}};
  spec.limits.num_layers = 1u << 30;
  run.job(spec, [](Rank& rank) {
    constexpr std::uint32_t kWindows = 3000;
    constexpr std::uint32_t kLayers = 10;
    constexpr std::uint32_t kBlock = 50;
    constexpr std::uint32_t kLookEvery = 5;     // windows
    constexpr std::uint32_t kCalmBlock = 48;    // windows of a block
    constexpr std::uint32_t kSilentBlock = 45;  // windows of a block
    const auto until = Board::Clock::now() + std::chrono::seconds(8);
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    if (CPU_COUNT(&allowed) < 2) {
      rank.skip("two ranks that spin need two cores, this process may use " +
                std::to_string(CPU_COUNT(&allowed)));
      return;
    }
    begin_step(rank, even_step(rank, 1));
    Calls calls(rank, 1);
    if (!count_system_calls_of_this_thread()) {
      rank.skip("this build or machine does not count system calls");
      return;
    }
    QuietWatch watch;
    std::uint64_t turn = 0;
    std::uint32_t layer = 0;
    std::uint32_t num_calm = 0;
    std::uint32_t num_silent = 0;
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
          rank.require_that(calls.attention_send(layer, 0, {}, watch), "send");
          rank.require_that(calls.attention_receive(0, {.in_place = true}, watch), "receive");
        } else {
          rank.require_that(calls.ffn_receive(0, {}, watch), "receive");
          rank.require_that(calls.ffn_send(0, {}, watch), "send");
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
      num_calm += all_calm ? 1 : 0;
      num_silent += all_silent ? 1 : 0;
      if ((window + 1) % kBlock == 0) {
        if (num_silent >= kSilentBlock) {
          return;
        }
        num_calm_blocks = num_calm >= kCalmBlock ? num_calm_blocks + 1 : 0;
        if (num_calm_blocks == 3) {
          rank.fail("on a calm machine " + std::to_string(num_silent) + " of " +
                    std::to_string(kBlock) + " windows of " + std::to_string(kLayers) +
                    " transfers were without system calls: " + to_string(total));
          return;
        }
        num_calm = 0;
        num_silent = 0;
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
      {"R11SpinningMakesNoSystemCall", spinning_makes_no_system_call, {.no_network_calls = true}},
  };
}

}  // namespace afd::conformance
