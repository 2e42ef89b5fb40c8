#include "runtime/ffn_server.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace afd::runtime {
namespace {

using std::chrono::nanoseconds;

nanoseconds since(std::int64_t begin_ns) {
  return nanoseconds(base::steady_ns() - begin_ns);
}

class FfnLoop {
 public:
  FfnLoop(FfnCompute& compute, ConnectorBase& connector, const FfnServerOptions& options)
      : compute_(compute),
        connector_(connector),
        options_(options),
        layers_(compute.served_layers()),
        routing_spec_(compute.routing_spec()),
        in_place_(connector.capabilities().in_place_buffers) {}

  Result<RunStats> run() {
    ControlPlane* const control = connector_.control_plane();
    Result<void> served = control != nullptr ? serve_steps(*control) : serve_transfers();
    if (!served) {
      return fail(std::move(served).error());
    }
    return std::move(stats_);
  }

 private:
  Result<void> serve_steps(ControlPlane& control) {
    for (;;) {
      const std::int64_t asked_ns = base::steady_ns();
      Result<std::optional<ControlPayload>> payload =
          control.recv_dp_metadata_list(Deadline::never());
      if (!payload) {
        return fail(std::move(payload).error().with_context("waiting for step " +
                                                            std::to_string(stats_.num_steps)));
      }
      if (!payload->has_value()) {
        return {};
      }
      const std::int64_t begin_ns = base::steady_ns();
      if (stats_.num_steps == 0) {
        stats_.begin_ns = begin_ns;
      } else {
        stats_.agreement.record(nanoseconds(begin_ns - asked_ns));
      }
      if (Result<void> ran = run_step(control, **payload); !ran) {
        return fail(
            std::move(ran).error().with_context("step " + std::to_string(stats_.num_steps)));
      }
      record_step(stats_, {.begin_ns = begin_ns, .end_ns = base::steady_ns()});
    }
  }

  Result<void> run_step(ControlPlane& control, const ControlPayload& payload) {
    if (Result<void> updated = control.update_state_from_dp_metadata(payload); !updated) {
      return updated;
    }
    for (const std::uint32_t layer_idx : layers_) {
      for (const auto& [stage_idx, counts] : payload.dp_metadata_list) {
        const auto ubatch_idx = static_cast<std::uint32_t>(stage_idx);
        Result<A2FTransferPayload> input =
            receive(ubatch_idx, routing_spec_, Deadline::after(options_.hop_timeout));
        if (!input) {
          return fail(std::move(input).error());
        }
        const std::uint32_t got = input->context.metadata.layer_idx;
        if (got != layer_idx) {
          return fail(ErrorCode::kProtocolMismatch,
                      "stage " + std::to_string(ubatch_idx) + ": received layer " +
                          std::to_string(got) + ", expected layer " + std::to_string(layer_idx));
        }
        if (Result<void> answered = answer(*input); !answered) {
          return answered;
        }
      }
    }
    return {};
  }

  Result<void> serve_transfers() {
    for (;;) {
      const std::int64_t asked_ns = base::steady_ns();
      Result<A2FTransferPayload> input = connector_.recv_attn_output(
          0, {.routing_spec = routing_spec_, .deadline = Deadline::never()});
      if (!input) {
        return fail(std::move(input).error().with_context(
            "waiting for transfer " + std::to_string(stats_.hops.send.num_samples())));
      }
      if (input->hidden_states.empty()) {
        return {};  // the contract's end of the job where there is no control plane
      }
      // Waiting for the first is not part of the run, nor is waiting for the end.
      if (stats_.begin_ns == 0) {
        stats_.begin_ns = base::steady_ns();
      } else {
        stats_.hops.wait.record(since(asked_ns));
      }
      if (Result<void> answered = answer(*input); !answered) {
        return answered;
      }
      stats_.end_ns = base::steady_ns();
    }
  }

  Result<A2FTransferPayload> receive(std::uint32_t ubatch_idx,
                                     const std::optional<ExpertRoutingSpec>& routing_spec,
                                     Deadline deadline) {
    const std::int64_t begin_ns = base::steady_ns();
    Result<A2FTransferPayload> input = connector_.recv_attn_output(
        ubatch_idx, {.routing_spec = routing_spec, .deadline = deadline});
    if (input) {
      stats_.hops.wait.record(since(begin_ns));
    }
    return input;
  }

  Result<void> answer(const A2FTransferPayload& input) {
    const TransferMetadata& metadata = input.context.metadata;
    const std::int64_t begin_ns = base::steady_ns();
    Result<F2ATransferPayload> payload = compute(input);
    if (!payload) {
      return fail(
          std::move(payload).error().with_context("layer " + std::to_string(metadata.layer_idx) +
                                                  ", stage " + std::to_string(metadata.stage_idx)));
    }
    const std::int64_t computed_ns = base::steady_ns();
    stats_.hops.turnaround.record(nanoseconds(computed_ns - begin_ns));
    if (Result<void> sent = connector_.send_ffn_output(
            *payload, input.context, {.deadline = Deadline::after(options_.hop_timeout)});
        !sent) {
      return sent;
    }
    stats_.hops.send.record(since(computed_ns));
    return {};
  }

  Result<F2ATransferPayload> compute(const A2FTransferPayload& input) {
    const ViewGuard::Use use(options_.views);
    if (!use) {
      return fail(ErrorCode::kFailedPrecondition, "the connector was closed");
    }
    return compute_.forward(input.context.metadata.layer_idx, input, output_of(input));
  }

  /// Where the answer's rows go: into the landing memory if they can.
  TensorView output_of(const A2FTransferPayload& input) {
    if (in_place_) {
      if (Result<TensorView> landing = connector_.ffn_output_buffer(input.context); landing) {
        return *landing;
      }
    }
    return own_output(input);
  }

  /// Rows that are sent from here stay untouched until the stage's next receive (R4), so each stage
  /// has its own.
  TensorView own_output(const A2FTransferPayload& input) {
    const std::uint32_t stage_idx = input.context.metadata.stage_idx;
    const Shape shape = input.hidden_states.shape;
    if (own_.size() <= stage_idx) {
      own_.resize(stage_idx + 1);
    }
    Tensor& own = own_[stage_idx];
    if (own.shape().rank() == 0 || own.shape()[0] < shape[0]) {
      own = Tensor(shape, input.hidden_states.dtype);
    }
    TensorView view = own.view();
    view.shape = shape;
    return view;
  }

  FfnCompute& compute_;
  ConnectorBase& connector_;
  const FfnServerOptions options_;
  const std::vector<std::uint32_t> layers_;
  const std::optional<ExpertRoutingSpec> routing_spec_;
  const bool in_place_;
  std::vector<Tensor> own_;
  RunStats stats_;
};

}  // namespace

Result<RunStats> run_ffn_server(FfnCompute& compute, ConnectorBase& connector,
                                const FfnServerOptions& options) {
  return FfnLoop(compute, connector, options).run();
}

}  // namespace afd::runtime
