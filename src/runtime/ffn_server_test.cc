#include "runtime/ffn_server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace afd::runtime {
namespace {

constexpr std::chrono::milliseconds kIdle{30};

/// Gives a number of transfers, the first and the news of the end after an idle time, and has no
/// control plane.
class Arrivals : public ConnectorBase {
 public:
  explicit Arrivals(std::uint32_t num_transfers) : num_left_(num_transfers) {}

  /// From now on a transfer says that it has `num_rows`, and its answer has a place to go.
  void land(std::uint64_t num_rows) { num_landing_rows_ = num_rows; }

  Result<void> init_afd_connector(Deadline) override { return {}; }
  bool is_initialized() const noexcept override { return true; }
  void close() noexcept override {}
  Capabilities capabilities() const override {
    Capabilities capabilities;
    capabilities.in_place_buffers = num_landing_rows_ > 0;
    return capabilities;
  }
  Result<TensorView> ffn_output_buffer(const TransferContext&) override { return rows_.view(); }
  Result<void> send_attn_output(ConstTensorView, const TransferContext&,
                                const SendAttnOptions&) override {
    return fail(ErrorCode::kFailedPrecondition, "an FFN rank");
  }
  Result<TensorView> recv_ffn_output(TensorView, std::uint32_t, const RecvFfnOptions&) override {
    return fail(ErrorCode::kFailedPrecondition, "an FFN rank");
  }
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t, const RecvAttnOptions&) override {
    if (std::exchange(first_, false) || num_left_ == 0) {
      std::this_thread::sleep_for(kIdle);
    }
    A2FTransferPayload payload;
    if (num_left_ > 0) {
      --num_left_;
      payload.hidden_states = rows_.view();
      if (num_landing_rows_ > 0) {
        payload.hidden_states.shape = {num_landing_rows_, 4};
      }
      payload.context.metadata.seq_lens.push_back(1);
    }
    return payload;
  }
  Result<void> send_ffn_output(const F2ATransferPayload&, const TransferContext&,
                               const SendFfnOptions&) override {
    return {};
  }

 private:
  std::uint32_t num_left_;
  bool first_ = true;
  std::uint64_t num_landing_rows_ = 0;
  Tensor rows_{Shape{1, 4}, kFloat32};
};

class Echo : public FfnCompute {
 public:
  std::vector<std::uint32_t> served_layers() const override { return {0}; }
  std::optional<ExpertRoutingSpec> routing_spec() const override { return std::nullopt; }
  Result<F2ATransferPayload> forward(std::uint32_t, const A2FTransferPayload& input,
                                     TensorView) override {
    return F2ATransferPayload{.routed_output = input.hidden_states, .shared_output = {}};
  }
};

RunStats serve(std::uint32_t num_transfers) {
  Arrivals connector(num_transfers);
  Echo compute;
  Result<RunStats> stats = run_ffn_server(compute, connector, {});
  EXPECT_TRUE(stats) << stats.error().message;
  return *std::move(stats);
}

TEST(FfnServerTest, WaitingForTheFirstTransferAndForTheEndIsNotPartOfTheRun) {
  for (const std::uint32_t num_transfers : {1u, 2u, 5u}) {
    const RunStats stats = serve(num_transfers);
    EXPECT_EQ(stats.hops.send.num_samples(), num_transfers);
    EXPECT_EQ(stats.hops.wait.num_samples(), num_transfers - 1);
    EXPECT_GE(stats.waiting_fraction(), 0.0);
    EXPECT_LE(stats.waiting_fraction(), 1.0);
  }
}

TEST(FfnServerTest, ARunWithoutATransferHasNoTime) {
  const RunStats stats = serve(0);
  EXPECT_EQ(stats.run_seconds(), 0.0);
  EXPECT_EQ(stats.waiting_fraction(), 0.0);
}

TEST(FfnServerTest, AnAnswerThatIsMadeInPlaceTakesNoMemoryOfItsOwn) {
  Arrivals connector(1);
  connector.land(std::uint64_t{1} << 44);  // More than any machine has.
  Echo compute;
  const Result<RunStats> stats = run_ffn_server(compute, connector, {});
  ASSERT_TRUE(stats) << stats.error().message;
  EXPECT_EQ(stats->hops.send.num_samples(), 1u);
}

}  // namespace
}  // namespace afd::runtime
