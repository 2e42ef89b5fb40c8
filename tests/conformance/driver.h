// Drives one side of a step and checks everything that arrives: each byte, shape, length and
// number.
//
//   StepPlan plan = ...;                        both sides know it
//   AttentionDriver attention(rank);            FfnDriver ffn(rank);
//   attention.begin(plan);                      ffn.begin(plan);
//   attention.send(layer, stage);               ffn.receive(layer, stage);
//   attention.receive(layer, stage);            ffn.send(layer, stage);
//
// Nothing here allocates once the driver is made, so that R11 can count around it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <afd/connector.h>
#include <afd/metadata.h>

#include "conformance/harness.h"
#include "conformance/pattern.h"

namespace afd::conformance {

/// One step as all ranks know it.
struct StepPlan {
  std::uint64_t step = 1;  ///< Names the contents; not the connector's own number.
  /// counts[stage][attention rank]; an empty stage is not part of the step.
  std::vector<std::vector<std::int32_t>> counts;

  ControlPayload payload() const;
  /// Rows that the attention rank transfers: at least 1.
  std::uint32_t rows(std::uint32_t stage_idx, std::uint32_t attention_rank) const;
  bool has_stage(std::uint32_t stage_idx) const {
    return stage_idx < counts.size() && !counts[stage_idx].empty();
  }
};

/// The same count everywhere.
StepPlan even_step(const Rank& rank, std::int32_t num_tokens, std::uint64_t step = 1);

/// Applies the step on this rank and sends or receives its payload; nothing where the connector has
/// no control plane.
void begin_step(Rank& rank, const StepPlan& plan);

/// A context for one attention rank's send.
TransferContext context_of(std::uint32_t layer_idx, std::uint32_t stage_idx,
                           std::uint32_t num_rows);

struct SendHow {
  enum class From : std::uint8_t {
    kOwnBuffer,    ///< the caller's memory
    kInPlace,      ///< attn_send_buffer / ffn_output_buffer, written beforehand
    kFromSource,   ///< the same, produced run by run
    kReceivedView  ///< FFN: the view that was received, sent back as it is (an echo)
  };
  From from = From::kOwnBuffer;
  bool router_logits = false;
};

struct RecvHow {
  enum class Into : std::uint8_t {
    kInPlace,    ///< a view
    kOwnBuffer,  ///< another tensor of the caller
    kSentTensor  ///< the tensor that was sent, as the reference does
  };
  Into into = Into::kInPlace;
  bool sink = false;
  bool router_logits = false;
  bool echoed = false;  ///< Attention: the FFN sends back what it received.
};

/// Checks what a RowSink is told: begin once, then every row once, within the tensor.
class SinkWatch {
 public:
  explicit SinkWatch(std::uint32_t num_rows_max) : seen_(num_rows_max, 0) {}
  RowSink sink();
  /// What is wrong, after the call returned `rows`; nothing if all is well.
  std::optional<std::string> verdict(ConstTensorView rows) const;
  void reset();
  std::uint32_t num_runs() const { return num_runs_; }
  std::uint32_t rows_seen() const { return rows_seen_; }
  /// Called on every run, on the receiving thread.
  void (*on_run)(void* argument) = nullptr;
  void* on_run_argument = nullptr;

 private:
  static void begin(void* self, ConstTensorView rows);
  static void arrived(void* self, RowRange range);
  std::vector<std::uint8_t> seen_;
  ConstTensorView announced_;
  std::uint32_t num_begins_ = 0;
  std::uint32_t num_runs_ = 0;
  std::uint32_t rows_seen_ = 0;
  bool out_of_range_ = false;
  bool before_begin_ = false;
};

class AttentionDriver {
 public:
  explicit AttentionDriver(Rank& rank);

  void begin(const StepPlan& plan);
  /// The plan, where the body applied it itself.
  void adopt(const StepPlan& plan) { plan_ = plan; }
  void send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how = {});
  /// Receives and checks. With a deadline that may expire, use try_receive.
  void receive(std::uint32_t layer_idx, std::uint32_t stage_idx, RecvHow how = {});

  /// The calls themselves, filled and checked the same way.
  Result<void> try_send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how,
                        Deadline deadline);
  Result<TensorView> try_receive(std::uint32_t stage_idx, RecvHow how, Deadline deadline);
  bool check_output(ConstTensorView output, std::uint32_t layer_idx, std::uint32_t stage_idx,
                    Place place = {});

  std::uint32_t rows(std::uint32_t stage_idx) const;
  RowKey key(RowKey::Part part, std::uint32_t layer_idx, std::uint32_t stage_idx) const;
  /// The caller's memory for a stage, with the rows of the step.
  TensorView hidden(std::uint32_t stage_idx);
  TensorView logits(std::uint32_t stage_idx);
  TensorView last_output(std::uint32_t stage_idx) const { return last_output_[stage_idx]; }

 private:
  Rank& rank_;
  StepPlan plan_;
  std::vector<TensorView> hidden_;
  std::vector<TensorView> logits_;
  std::vector<TensorView> output_;
  std::vector<TensorView> last_output_;
  SinkWatch watch_;
};

class FfnDriver {
 public:
  explicit FfnDriver(Rank& rank);

  void begin(const StepPlan& plan);
  /// The plan, where the body applied it itself; a payload that it received itself.
  void adopt(const StepPlan& plan) { plan_ = plan; }
  void take(const A2FTransferPayload& payload) {
    last_[payload.context.metadata.stage_idx] = payload;
  }
  void receive(std::uint32_t layer_idx, std::uint32_t stage_idx, RecvHow how = {});
  void send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how = {});

  Result<A2FTransferPayload> try_receive(std::uint32_t stage_idx, RecvHow how, Deadline deadline);
  Result<void> try_send(std::uint32_t layer_idx, std::uint32_t stage_idx, SendHow how,
                        Deadline deadline);
  /// Checks metadata, shapes and every byte.
  bool check_payload(const A2FTransferPayload& payload, std::uint32_t layer_idx,
                     std::uint32_t stage_idx, RecvHow how, Place place = {});

  /// Rows from this peer (by index into mapping().peers), at least 1.
  std::uint32_t peer_rows(std::uint32_t stage_idx, std::size_t peer) const;
  std::uint32_t total_rows(std::uint32_t stage_idx) const;
  const A2FTransferPayload& last(std::uint32_t stage_idx) const { return last_[stage_idx]; }
  /// The caller's memory for a stage's output.
  TensorView output(std::uint32_t stage_idx);
  /// Fills rows [first_row, first_row + rows.num_rows()) of the output of all peers.
  void fill_output(TensorView rows, std::uint32_t first_row, std::uint32_t layer_idx,
                   std::uint32_t stage_idx) const;

 private:
  struct Share {
    std::uint32_t num_rows = 0;   ///< At least 1.
    std::uint32_t first_row = 0;  ///< Within the attention rank's tensor.
    bool dummy = false;           ///< A < F, fewer rows than FFN ranks: content is free.
  };
  Share share(std::uint32_t stage_idx, std::size_t peer) const;

  Rank& rank_;
  StepPlan plan_;
  std::vector<TensorView> output_;
  std::vector<A2FTransferPayload> last_;
  SinkWatch watch_;
  std::uint32_t num_siblings_ = 1;
  std::uint32_t sibling_idx_ = 0;
};

}  // namespace afd::conformance
