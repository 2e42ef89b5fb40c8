// The two role loops over connectors of each kind: with a control plane, and driven by what
// arrives. The connectors here are small fakes, one thread each; no built-in connector is without a
// control plane yet.
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "model/model_testing.h"
#include "runtime/attention_runner.h"
#include "runtime/ffn_compute.h"
#include "runtime/ffn_server.h"

namespace afd::runtime {
namespace {

constexpr std::uint32_t kWidth = 4;

/// What every fake leaves out.
class FakeConnector : public ConnectorBase {
 public:
  Result<void> init_afd_connector(Deadline) override { return {}; }
  bool is_initialized() const noexcept override { return true; }
  void close() noexcept override {}
  Result<void> send_attn_output(ConstTensorView, const TransferContext&,
                                const SendAttnOptions&) override {
    return fail(ErrorCode::kFailedPrecondition, "not an attention rank");
  }
  Result<TensorView> recv_ffn_output(TensorView, std::uint32_t, const RecvFfnOptions&) override {
    return fail(ErrorCode::kFailedPrecondition, "not an attention rank");
  }
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t, const RecvAttnOptions&) override {
    return fail(ErrorCode::kFailedPrecondition, "not an ffn rank");
  }
  Result<void> send_ffn_output(const F2ATransferPayload&, const TransferContext&,
                               const SendFfnOptions&) override {
    return fail(ErrorCode::kFailedPrecondition, "not an ffn rank");
  }
  Capabilities capabilities() const override { return {}; }
};

struct Transfer {
  std::uint32_t layer_idx = 0;
  std::uint32_t stage_idx = 0;
  std::uint32_t num_rows = 1;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

/// An FFN rank's end: hands out what it was given, keeps what is answered.
class FfnEnd : public FakeConnector {
 public:
  struct Answer {
    Transfer transfer;
    std::vector<float> rows;
    const void* states = nullptr;
  };

  void add(Transfer transfer) {
    tensors_.emplace_back(Shape{transfer.num_rows, kWidth}, kFloat32);
    const std::span<float> values = tensors_.back().as<float>();
    std::fill(values.begin(), values.end(), static_cast<float>(10 * transfer.stage_idx + 1));
    A2FTransferPayload payload;
    payload.hidden_states = tensors_.back().view();
    payload.context = {.metadata = {.layer_idx = transfer.layer_idx,
                                    .stage_idx = transfer.stage_idx,
                                    .seq_lens = {}},
                       .states = std::make_shared<TransferState>()};
    payload.context.metadata.seq_lens.push_back(transfer.num_rows);
    arriving.push_back(std::move(payload));
  }

  Result<void> send_ffn_output(const F2ATransferPayload& output, const TransferContext& context,
                               const SendFfnOptions&) override {
    const auto* values = static_cast<const float*>(output.routed_output.data);
    answers.push_back(
        {{context.metadata.layer_idx, context.metadata.stage_idx,
          static_cast<std::uint32_t>(output.routed_output.num_rows())},
         {values, values + output.routed_output.num_rows() * output.routed_output.shape[1]},
         context.states.get()});
    return {};
  }

  std::deque<Result<A2FTransferPayload>> arriving;
  std::vector<Answer> answers;

 private:
  std::deque<Tensor> tensors_;
};

/// Without a control plane: any stage's transfer comes next.
class DrivenByArrival final : public FfnEnd {
 public:
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t,
                                              const RecvAttnOptions& options) override {
    EXPECT_TRUE(options.deadline.is_never()) << "waiting for work has no limit";
    if (arriving.empty()) {
      return A2FTransferPayload{};  // every attention rank has left in order
    }
    Result<A2FTransferPayload> next = std::move(arriving.front());
    arriving.pop_front();
    return next;
  }
};

/// With one: payloads, and transfers in the order of each stage.
class DrivenBySteps final : public FfnEnd, private ControlPlane {
 public:
  ControlPlane* control_plane() noexcept override { return this; }
  Result<A2FTransferPayload> recv_attn_output(std::uint32_t ubatch_idx,
                                              const RecvAttnOptions& options) override {
    EXPECT_FALSE(options.deadline.is_never()) << "within a step a peer may be stuck";
    asked_stages.push_back(ubatch_idx);
    if (arriving.empty()) {
      return fail(ErrorCode::kDeadlineExceeded, "awaited attention rank 0");
    }
    Result<A2FTransferPayload> next = std::move(arriving.front());
    arriving.pop_front();
    return next;
  }

  std::deque<Result<std::optional<ControlPayload>>> payloads;
  std::vector<std::uint32_t> asked_stages;
  std::vector<std::size_t> applied_stages;  ///< Number of stages, by step.

 private:
  Result<void> update_state_from_dp_metadata(const ControlPayload& payload) override {
    applied_stages.push_back(payload.dp_metadata_list.size());
    return {};
  }
  Result<void> send_dp_metadata_list(const ControlPayload&, Deadline) override { return {}; }
  Result<std::optional<ControlPayload>> recv_dp_metadata_list(Deadline deadline) override {
    EXPECT_TRUE(deadline.is_never()) << "waiting for work has no limit";
    if (payloads.empty()) {
      return std::optional<ControlPayload>();
    }
    Result<std::optional<ControlPayload>> next = std::move(payloads.front());
    payloads.pop_front();
    return next;
  }
};

/// Adds 100 and the layer to every value.
class AddsTheLayer final : public FfnCompute {
 public:
  std::vector<std::uint32_t> served_layers() const override { return {1, 3}; }
  std::optional<ExpertRoutingSpec> routing_spec() const override { return std::nullopt; }
  Result<F2ATransferPayload> forward(std::uint32_t layer_idx, const A2FTransferPayload& input,
                                     TensorView output) override {
    if (layer_idx == fails_on) {
      return fail(ErrorCode::kInternal, "no such expert");
    }
    const auto* from = static_cast<const float*>(input.hidden_states.data);
    auto* to = static_cast<float*>(output.data);
    for (std::uint64_t i = 0; i < input.hidden_states.num_rows() * kWidth; ++i) {
      to[i] = from[i] + 100.0f + static_cast<float>(layer_idx);
    }
    return F2ATransferPayload{.routed_output = output, .shared_output = {}};
  }

  std::uint32_t fails_on = 99;
};

void expect_answers(const FfnEnd& end, const std::vector<Transfer>& wanted) {
  ASSERT_EQ(end.answers.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const FfnEnd::Answer& answer = end.answers[i];
    EXPECT_EQ(answer.transfer, wanted[i]) << i;
    EXPECT_NE(answer.states, nullptr) << "the context has to come back as it was received";
    const float value =
        static_cast<float>(10 * wanted[i].stage_idx + 1 + 100 + wanted[i].layer_idx);
    EXPECT_EQ(answer.rows, std::vector<float>(std::size_t{wanted[i].num_rows} * kWidth, value))
        << i;
  }
}

TEST(FfnServerDrivenByArrival, AnswersWhateverComesUntilTheJobIsDone) {
  const std::vector<Transfer> transfers = {{3, 1, 2}, {0, 0, 5}, {3, 0, 1}, {3, 1, 7}};
  DrivenByArrival end;
  for (const Transfer& transfer : transfers) {
    end.add(transfer);
  }
  AddsTheLayer compute;
  const Result<RunStats> stats = run_ffn_server(compute, end, {});
  ASSERT_TRUE(stats) << stats.error().message;
  expect_answers(end, transfers);
  EXPECT_EQ(stats->hops.send.num_samples(), transfers.size());
  EXPECT_EQ(stats->hops.turnaround.num_samples(), transfers.size());
  EXPECT_EQ(stats->hops.wait.num_samples(), transfers.size() - 1)
      << "neither waiting for the first nor for the end of the job is part of the run";
}

TEST(FfnServerDrivenByArrival, IsDoneAtOnceWhereNothingComes) {
  DrivenByArrival end;
  AddsTheLayer compute;
  const Result<RunStats> stats = run_ffn_server(compute, end, {});
  ASSERT_TRUE(stats) << stats.error().message;
  EXPECT_EQ(stats->run_seconds(), 0.0);
}

TEST(FfnServerDrivenByArrival, APeersLossAndAClosedConnectorAreNoEndOfTheJob) {
  for (const ErrorCode code :
       {ErrorCode::kPeerLost, ErrorCode::kFailedPrecondition, ErrorCode::kProtocolMismatch}) {
    DrivenByArrival end;
    end.add({1, 0, 1});
    end.arriving.push_back(fail(code, "attention rank 1 lost"));
    AddsTheLayer compute;
    const Result<RunStats> stats = run_ffn_server(compute, end, {});
    ASSERT_FALSE(stats);
    EXPECT_EQ(stats.error().code, code);
    EXPECT_NE(stats.error().message.find("attention rank 1 lost"), std::string::npos);
    EXPECT_EQ(end.answers.size(), 1u);
  }
}

TEST(FfnServerDrivenByArrival, AComputeThatFailsIsNamedByLayerAndStage) {
  DrivenByArrival end;
  end.add({2, 1, 1});
  AddsTheLayer compute;
  compute.fails_on = 2;
  const Result<RunStats> stats = run_ffn_server(compute, end, {});
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().message, "layer 2, stage 1: no such expert");
  EXPECT_TRUE(end.answers.empty());
}

ControlPayload payload_of(std::int64_t num_stages) {
  ControlPayload payload;
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    payload.dp_metadata_list[stage] = DpMetadata::create({1}).value();
  }
  return payload;
}

TEST(FfnServerDrivenBySteps, AnswersEveryServedLayerAndStageOfEachStep) {
  const std::vector<Transfer> transfers = {{1, 0}, {1, 1}, {3, 0}, {3, 1}, {1, 0}, {3, 0}};
  DrivenBySteps end;
  end.payloads.emplace_back(payload_of(2));
  end.payloads.emplace_back(payload_of(1));
  for (const Transfer& transfer : transfers) {
    end.add(transfer);
  }
  AddsTheLayer compute;
  const Result<RunStats> stats = run_ffn_server(compute, end, {});
  ASSERT_TRUE(stats) << stats.error().message;
  expect_answers(end, transfers);
  EXPECT_EQ(end.asked_stages, (std::vector<std::uint32_t>{0, 1, 0, 1, 0, 0}));
  EXPECT_EQ(end.applied_stages, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(stats->num_steps, 2u);
}

TEST(FfnServerDrivenBySteps, AnotherLayerThanTheNextIsAMismatch) {
  DrivenBySteps end;
  end.payloads.emplace_back(payload_of(1));
  end.add({1, 0});
  end.add({2, 0});
  AddsTheLayer compute;
  const Result<RunStats> stats = run_ffn_server(compute, end, {});
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().code, ErrorCode::kProtocolMismatch);
  EXPECT_EQ(stats.error().message, "step 0: stage 0: received layer 2, expected layer 3");
  EXPECT_EQ(end.answers.size(), 1u);
}

TEST(FfnServerDrivenBySteps, ErrorsNameTheStep) {
  DrivenBySteps end;
  end.payloads.emplace_back(payload_of(1));
  AddsTheLayer compute;
  Result<RunStats> stats = run_ffn_server(compute, end, {});
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(stats.error().message, "step 0: awaited attention rank 0");

  DrivenBySteps lost;
  lost.payloads.emplace_back(fail(ErrorCode::kPeerLost, "attention rank 0 lost"));
  stats = run_ffn_server(compute, lost, {});
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(stats.error().message, "waiting for step 0: attention rank 0 lost");
}

/// An attention rank's end, and the FFN of a real model behind it.
class AttentionEnd final : public FakeConnector, private ControlPlane {
 public:
  AttentionEnd(const model::FfnPart& ffn, bool has_control_plane)
      : compute_(ffn, /*gate_on_attention=*/false), has_control_plane_(has_control_plane) {}

  ControlPlane* control_plane() noexcept override { return has_control_plane_ ? this : nullptr; }

  Result<void> send_attn_output(ConstTensorView hidden_states, const TransferContext& context,
                                const SendAttnOptions&) override {
    const TransferMetadata& metadata = context.metadata;
    EXPECT_TRUE(metadata.validate_tensor_shape(hidden_states.shape));
    sent.push_back({metadata.layer_idx, metadata.stage_idx,
                    static_cast<std::uint32_t>(hidden_states.num_rows())});
    Tensor& output = outputs_[metadata.stage_idx];
    output = Tensor(hidden_states.shape, kFloat32);
    A2FTransferPayload payload;
    payload.hidden_states = hidden_states;
    payload.context = context;
    const Result<F2ATransferPayload> computed =
        compute_.forward(metadata.layer_idx, payload, output.view());
    return computed ? Result<void>() : Result<void>(fail(computed.error()));
  }
  Result<TensorView> recv_ffn_output(TensorView, std::uint32_t ubatch_idx,
                                     const RecvFfnOptions&) override {
    if (sent.size() == fail_after) {
      return fail(ErrorCode::kPeerLost, "ffn rank 0 lost");
    }
    return outputs_[ubatch_idx].view();
  }

  std::vector<Transfer> sent;
  std::vector<ControlPayload> announced;
  std::size_t fail_after = 0;

 private:
  Result<void> update_state_from_dp_metadata(const ControlPayload& payload) override {
    announced.push_back(payload);
    return {};
  }
  Result<void> send_dp_metadata_list(const ControlPayload& payload, Deadline) override {
    EXPECT_EQ(payload, announced.back()) << "sent is what was applied";
    ++num_sent_;
    EXPECT_EQ(num_sent_, announced.size());
    return {};
  }
  Result<std::optional<ControlPayload>> recv_dp_metadata_list(Deadline) override {
    return fail(ErrorCode::kFailedPrecondition, "not an ffn rank");
  }

  ModelFfnCompute compute_;
  const bool has_control_plane_;
  std::map<std::uint32_t, Tensor> outputs_;
  std::size_t num_sent_ = 0;
};

class AttentionRunner : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint32_t kNumTokens = 5;

  void SetUp() override {
    Result<model::TestModel> loaded =
        model::TestModel::load(std::string(AFD_MODELS) + "/variants/v3");
    ASSERT_TRUE(loaded) << loaded.error().message;
    model_.emplace(*std::move(loaded));
  }

  Result<RunStats> run(AttentionEnd& end) {
    std::vector<Request> requests;
    for (std::uint32_t idx = 0; idx < prompts_.size(); ++idx) {
      requests.push_back({.request_idx = idx,
                          .prompt_ids = prompts_[idx],
                          .max_new_tokens = kNumTokens,
                          .sampling = {}});
    }
    Generation generation(*model_->attention, {.limits = {.num_seqs_max = 2, .num_tokens_max = 8}},
                          std::move(requests));
    GenerationEvents events;
    events.on_finished = [this](const Output& output) {
      outputs_[output.request_idx] = output.token_ids;
    };
    return run_attention(*model_->attention, end, generation,
                         {.num_stages_max = 2, .max_num_tokens = 4}, events);
  }

  const std::vector<std::vector<std::int32_t>> prompts_ = {{1, 2, 3}, {7, 5, 11, 13}};
  std::optional<model::TestModel> model_;
  std::map<std::uint32_t, std::vector<std::int32_t>> outputs_;
};

TEST_P(AttentionRunner, SendsEveryLayerAndStageOfEachStepInOrderAndGetsTheModelsTokens) {
  AttentionEnd end(*model_->ffn, GetParam());
  const Result<RunStats> stats = run(end);
  ASSERT_TRUE(stats) << stats.error().message;
  for (std::uint32_t idx = 0; idx < prompts_.size(); ++idx) {
    EXPECT_EQ(outputs_[idx], model::greedy(*model_, prompts_[idx], kNumTokens)) << idx;
  }
  // The prompts are seven rows, in two stages; each later step has a row of each sequence.
  std::vector<Transfer> wanted;
  for (std::uint64_t step = 0; step < stats->num_steps; ++step) {
    for (std::uint32_t layer = 0; layer < model_->config().num_hidden_layers; ++layer) {
      wanted.push_back({layer, 0, step == 0 ? 4u : 1u});
      wanted.push_back({layer, 1, step == 0 ? 3u : 1u});
    }
  }
  EXPECT_EQ(end.sent, wanted);
  EXPECT_EQ(stats->num_steps, kNumTokens);
  EXPECT_EQ(end.announced.size(), GetParam() ? stats->num_steps : 0u);
}

TEST_P(AttentionRunner, APeersLossNamesTheStep) {
  AttentionEnd end(*model_->ffn, GetParam());
  end.fail_after = 2 * model_->config().num_hidden_layers + 2;  // the second step's first layer
  const Result<RunStats> stats = run(end);
  ASSERT_FALSE(stats);
  EXPECT_EQ(stats.error().code, ErrorCode::kPeerLost);
  EXPECT_EQ(stats.error().message, "step 1: ffn rank 0 lost");
  EXPECT_TRUE(outputs_.empty());
}

INSTANTIATE_TEST_SUITE_P(All, AttentionRunner, ::testing::Bool(), [](const auto& test) {
  return test.param ? "WithAControlPlane" : "DrivenByArrival";
});

}  // namespace
}  // namespace afd::runtime
