#include "runtime/attention_runner.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "runtime/step_agreement.h"

namespace afd::runtime {
namespace {

using std::chrono::nanoseconds;

nanoseconds since(std::int64_t begin_ns) {
  return nanoseconds(base::steady_ns() - begin_ns);
}

class AttentionLoop {
 public:
  AttentionLoop(const model::AttentionPart& part, ConnectorBase& connector, Generation& generation,
                const AttentionOptions& options, const GenerationEvents& events)
      : part_(part),
        config_(part.config()),
        connector_(connector),
        generation_(generation),
        options_(options),
        events_(events),
        stages_(options.num_stages_max) {}

  Result<RunStats> run() {
    stats_.begin_ns = base::steady_ns();
    stats_.end_ns = stats_.begin_ns;
    for (;;) {
      Result<bool> more = run_step();
      if (!more) {
        return fail(
            std::move(more).error().with_context("step " + std::to_string(stats_.num_steps)));
      }
      if (!*more) {
        return std::move(stats_);
      }
    }
  }

 private:
  /// One stage's rows and buffers. The hidden states stay untouched while they are borrowed (R4).
  struct Stage {
    RowRange rows;                    ///< Of the step; none: the stage sends a dummy row.
    std::uint32_t transfer_rows = 1;  ///< What the control payload announced.
    std::int64_t sent_ns = 0;
    bool under_way = false;  ///< Sent, output not received.
    std::uint32_t room = 0;  ///< Rows of the tensors below.
    Tensor residual;
    Tensor hidden;
    Tensor router_logits;
  };

  /// Returns whether another step may follow.
  Result<bool> run_step() {
    const std::int64_t begin_ns = base::steady_ns();
    const StepRows& step = generation_.plan_step();
    Result<std::vector<StepVote>> votes = exchange_votes(
        connector_.role_group(), options_.num_attention_ranks,
        {.num_tokens = step.size(), .done = generation_.done(), .drains = drains()}, deadline());
    if (!votes) {
      return fail(std::move(votes).error());
    }
    const StepPlan plan = plan_from_votes(*votes, options_.num_stages_max);
    if (plan.drains) {
      stats_.num_unserved_prompts += generation_.drop_waiting();
    }
    if (plan.all_done) {
      return false;
    }
    if (options_.num_attention_ranks > 1) {
      stats_.agreement.record(since(begin_ns));
    }
    if (Result<void> announced = announce(plan); !announced) {
      return fail(std::move(announced).error());
    }
    for (std::uint32_t stage_idx = 0; stage_idx < plan.num_stages; ++stage_idx) {
      begin_stage(step, plan, stage_idx);
    }
    for (std::uint32_t layer_idx = 0; layer_idx < config_.num_hidden_layers; ++layer_idx) {
      for (std::uint32_t stage_idx = 0; stage_idx < plan.num_stages; ++stage_idx) {
        if (Result<void> ran = run_layer(step, layer_idx, stage_idx); !ran) {
          return fail(std::move(ran).error());
        }
      }
    }
    for (std::uint32_t stage_idx = 0; stage_idx < plan.num_stages; ++stage_idx) {
      Stage& stage = stages_[stage_idx];
      if (Result<void> received = receive(stage_idx); !received) {
        return fail(std::move(received).error());
      }
      if (Result<void> chosen =
              generation_.choose(stage.rows, stage.residual.as<float>().data(), choose_scratch_);
          !chosen) {
        return fail(std::move(chosen).error());
      }
    }
    StepRecord record{.num_rows = step.size(),
                      .num_prompt_rows = step.num_prompt_rows,
                      .num_tokens = static_cast<std::uint32_t>(step.samples.size()),
                      .begin_ns = begin_ns};
    generation_.finish_step(events_);
    record.end_ns = base::steady_ns();
    record_step(stats_, record);
    return true;
  }

  bool drains() const {
    // Nothing else is read because of it.
    return options_.drains != nullptr && options_.drains->load(std::memory_order_relaxed);
  }

  Result<void> announce(const StepPlan& plan) {
    ControlPlane* const control = connector_.control_plane();
    if (control == nullptr) {
      return {};
    }
    const ControlPayload payload = make_control_payload(plan);
    if (Result<void> updated = control->update_state_from_dp_metadata(payload); !updated) {
      return updated;
    }
    return control->send_dp_metadata_list(payload, deadline());
  }

  void begin_stage(const StepRows& step, const StepPlan& plan, std::uint32_t stage_idx) {
    Stage& stage = stages_[stage_idx];
    stage.rows = stage_rows(step.size(), stage_idx, plan.num_stages);
    stage.transfer_rows = plan.transfer_rows(options_.role_rank, stage_idx);
    make_room(stage);
    if (stage.rows.num_rows == 0) {
      std::ranges::fill(stage.hidden.as<float>().first(config_.hidden_size), 0.0f);
      if (stage.router_logits.shape().rank() != 0) {
        std::ranges::fill(stage.router_logits.as<float>().first(config_.n_routed_experts), 0.0f);
      }
    } else {
      part_.embed(std::span(step.token_ids).subspan(stage.rows.first_row, stage.rows.num_rows),
                  stage.residual.as<float>().data());
    }
  }

  /// Buffers grow to the largest stage seen, at least doubling, at most to max_num_tokens.
  void make_room(Stage& stage) const {
    if (stage.transfer_rows <= stage.room) {
      return;
    }
    stage.room = std::max(stage.transfer_rows,
                          std::min(options_.max_num_tokens, std::max(8u, 2 * stage.room)));
    stage.residual = Tensor({stage.room, config_.hidden_size}, kFloat32);
    stage.hidden = Tensor({stage.room, config_.hidden_size}, kFloat32);
    if (options_.gate_on_attention && config_.n_routed_experts > 0) {
      stage.router_logits = Tensor({stage.room, config_.n_routed_experts}, kFloat32);
    }
  }

  /// Takes in the last layer's output, runs this layer's attention and sends the result.
  Result<void> run_layer(const StepRows& step, std::uint32_t layer_idx, std::uint32_t stage_idx) {
    if (Result<void> received = receive(stage_idx); !received) {
      return received;
    }
    Stage& stage = stages_[stage_idx];
    const std::size_t num_rows = stage.rows.num_rows;
    float* const hidden = stage.hidden.as<float>().data();
    if (num_rows > 0) {
      part_.attention(layer_idx, std::span(step.rows).subspan(stage.rows.first_row, num_rows),
                      stage.residual.as<float>().data(), hidden, scratch_);
    }
    const bool dense_here = options_.gate_on_attention && !config_.is_moe_layer(layer_idx);
    if (dense_here) {
      if (num_rows > 0) {
        dense_output_.resize(num_rows * config_.hidden_size);
        part_.dense_mlp(layer_idx, hidden, num_rows, dense_output_.data(), scratch_);
        part_.add(stage.residual.as<float>().data(), dense_output_.data(), num_rows);
      }
      return {};
    }
    SendAttnOptions send{.deadline = deadline()};
    if (options_.gate_on_attention) {
      if (num_rows > 0) {
        part_.router_logits(layer_idx, hidden, num_rows, stage.router_logits.as<float>().data(),
                            scratch_);
      }
      send.router_logits = leading_rows(stage.router_logits, stage.transfer_rows);
    }
    TransferContext context;
    context.metadata.layer_idx = layer_idx;
    context.metadata.stage_idx = stage_idx;
    context.metadata.seq_lens.push_back(stage.transfer_rows);
    stage.sent_ns = base::steady_ns();
    if (Result<void> sent = connector_.send_attn_output(
            leading_rows(stage.hidden, stage.transfer_rows), context, send);
        !sent) {
      return sent;
    }
    stats_.hops.send.record(since(stage.sent_ns));
    stage.under_way = true;
    return {};
  }

  /// Adds the output of the stage's last send to its residual, if there was one.
  Result<void> receive(std::uint32_t stage_idx) {
    Stage& stage = stages_[stage_idx];
    if (!stage.under_way) {
      return {};
    }
    const std::int64_t begin_ns = base::steady_ns();
    Result<TensorView> output = connector_.recv_ffn_output({}, stage_idx, {.deadline = deadline()});
    if (!output) {
      return fail(std::move(output).error());
    }
    stage.under_way = false;
    stats_.hops.wait.record(since(begin_ns));
    stats_.hops.turnaround.record(since(stage.sent_ns));
    if (stage.rows.num_rows > 0) {
      const ViewGuard::Use use(options_.views);
      if (!use) {
        return fail(ErrorCode::kFailedPrecondition, "the connector was closed");
      }
      part_.add(stage.residual.as<float>().data(), static_cast<const float*>(output->data),
                stage.rows.num_rows);
    }
    return {};
  }

  static ConstTensorView leading_rows(const Tensor& tensor, std::uint32_t num_rows) {
    ConstTensorView view = tensor.view();
    view.shape = {num_rows, view.shape[1]};
    return view;
  }

  Deadline deadline() const { return Deadline::after(options_.hop_timeout); }

  const model::AttentionPart& part_;
  const model::ModelConfig& config_;
  ConnectorBase& connector_;
  Generation& generation_;
  const AttentionOptions options_;
  const GenerationEvents& events_;
  std::vector<Stage> stages_;
  std::vector<float> dense_output_;
  model::Scratch scratch_;
  ChooseScratch choose_scratch_;
  RunStats stats_;
};

}  // namespace

Result<RunStats> run_attention(const model::AttentionPart& part, ConnectorBase& connector,
                               Generation& generation, const AttentionOptions& options,
                               const GenerationEvents& events) {
  return AttentionLoop(part, connector, generation, options, events).run();
}

}  // namespace afd::runtime
