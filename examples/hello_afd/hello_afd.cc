// The smallest use of libafd: one layer's rows go from an attention rank to an FFN rank and back.
//
//     attention thread                                      FFN thread
//     3 rows of hidden states       -- send_attn_output -->  doubles every value
//     prints what came back         <-- send_ffn_output --
//
// Both ranks are threads of this process. As two processes over shared memory each would run its
// half of this file with connector "P2pAFDConnector"; nothing else changes.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <afd/connector.h>
#include <afd/factory.h>

namespace {

constexpr std::uint32_t kNumTokens = 3;
constexpr std::uint32_t kMaxNumTokens = 16;
constexpr std::uint32_t kHiddenSize = 4;
constexpr std::uint32_t kLayer = 0;
constexpr std::uint32_t kStage = 0;

// Whoever waits longer than this for the other side gets an error that says for whom.
afd::Deadline soon() {
  return afd::Deadline::after(std::chrono::seconds(10));
}

// 1. Make a connector, the same on both sides but for the role, and let it meet the other rank.
afd::Result<std::unique_ptr<afd::ConnectorBase>> connect(afd::Role role) {
  afd::ConnectorParams params;
  params.config.connector = "InProcessAFDConnector";
  params.config.role = role;
  params.config.num_attention_ranks = 1;
  params.config.num_ffn_ranks = 1;
  params.limits = {.hidden_size = kHiddenSize,
                   .num_layers = 1,
                   .max_num_tokens = kMaxNumTokens,
                   .num_stages = 1,
                   .dtype = afd::kFloat32};

  afd::ConnectorFactory factory = afd::builtin_connectors();
  auto connector = factory.create_connector(params);
  if (!connector) {
    return connector;
  }
  if (auto ready = (*connector)->init_afd_connector(soon()); !ready) {
    return afd::fail(std::move(ready).error());
  }
  return connector;
}

afd::Result<void> attention_rank() {
  auto connected = connect(afd::Role::kAttention);
  if (!connected) {
    return afd::fail(std::move(connected).error());
  }
  afd::ConnectorBase& connector = **connected;

  // 2. Once a step: say how many tokens each attention rank has, so that both sides know where
  //    every row will land.
  auto counts = afd::DpMetadata::create({kNumTokens});
  if (!counts) {
    return afd::fail(std::move(counts).error());
  }
  afd::ControlPayload step;
  step.dp_metadata_list[kStage] = *std::move(counts);
  afd::ControlPlane* control = connector.control_plane();
  if (auto done = control->update_state_from_dp_metadata(step); !done) {
    return done;
  }
  if (auto done = control->send_dp_metadata_list(step, soon()); !done) {
    return done;
  }

  // 3. Once a layer: send this rank's rows, and receive the FFN's output for them.
  afd::Tensor hidden_states({kNumTokens, kHiddenSize}, afd::kFloat32);
  float value = 1;
  for (float& element : hidden_states.as<float>()) {
    element = value++;
  }
  auto metadata = afd::TransferMetadata::create_attention_metadata(kLayer, kStage, kNumTokens);
  if (!metadata) {
    return afd::fail(std::move(metadata).error());
  }
  auto sent = connector.send_attn_output(std::as_const(hidden_states).view(),
                                         {.metadata = *metadata}, {.deadline = soon()});
  if (!sent) {
    return sent;
  }
  afd::Tensor ffn_output({kNumTokens, kHiddenSize}, afd::kFloat32);
  auto received = connector.recv_ffn_output(ffn_output.view(), kStage, {.deadline = soon()});
  if (!received) {
    return afd::fail(std::move(received).error());
  }
  for (std::uint32_t row = 0; row < kNumTokens; ++row) {
    std::printf("row %u:", row);
    for (std::uint32_t column = 0; column < kHiddenSize; ++column) {
      std::printf(" %g", static_cast<double>(ffn_output.as<float>()[row * kHiddenSize + column]));
    }
    std::printf("\n");
  }

  // 4. Leave in order: the FFN rank sees the end of the job, not a lost peer.
  connector.close();
  return {};
}

afd::Result<void> ffn_rank() {
  auto connected = connect(afd::Role::kFfn);
  if (!connected) {
    return afd::fail(std::move(connected).error());
  }
  afd::ConnectorBase& connector = **connected;
  afd::ControlPlane* control = connector.control_plane();

  // Lent to the connector by a send until the next receive on the stage has returned (R4): so it
  // lives outside the loop.
  afd::Tensor output({kMaxNumTokens, kHiddenSize}, afd::kFloat32);

  while (true) {
    // 2. Wait for the next step, however long that takes.
    auto step = control->recv_dp_metadata_list(afd::Deadline::never());
    if (!step) {
      return afd::fail(std::move(step).error());
    }
    if (!step->has_value()) {
      return {};  // Attention closed: the job is done.
    }
    if (auto done = control->update_state_from_dp_metadata(**step); !done) {
      return done;
    }

    // 3. The rows stand in landing memory, those of all attention peers in one tensor.
    auto input = connector.recv_attn_output(kStage, {.deadline = soon()});
    if (!input) {
      return afd::fail(std::move(input).error());
    }
    const auto* rows = static_cast<const float*>(input->hidden_states.data);
    for (std::uint64_t i = 0; i < input->hidden_states.shape.num_elements(); ++i) {
      output.as<float>()[i] = 2 * rows[i];
    }
    afd::ConstTensorView result = std::as_const(output).view();
    result.shape = input->hidden_states.shape;  // The first rows of it.
    auto sent =
        connector.send_ffn_output({.routed_output = result}, input->context, {.deadline = soon()});
    if (!sent) {
      return sent;
    }
  }
}

// Prints the error and returns whether there was none.
bool report(const char* rank, const afd::Result<void>& result) {
  if (result) {
    return true;
  }
  std::fprintf(stderr, "%s: %s: %s\n", rank, std::string(to_string(result.error().code)).c_str(),
               result.error().message.c_str());
  return false;
}

}  // namespace

int main() {
  bool ffn_ok = false;
  std::thread ffn([&] { ffn_ok = report("ffn rank", ffn_rank()); });
  const bool attention_ok = report("attention rank", attention_rank());
  ffn.join();
  return attention_ok && ffn_ok ? 0 : 1;
}
