// The contract over a mailbox: one attention rank and one FFN rank, threads of one process.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <afd/connector.h>
#include <afd/factory.h>

#include "mailbox.h"

namespace mailbox {

afd::Capabilities mailbox_capabilities();

class MailboxConnector final : public afd::ConnectorBase, private afd::ControlPlane {
 public:
  explicit MailboxConnector(afd::ConnectorParams params);
  ~MailboxConnector() override { close(); }

  afd::Result<void> init_afd_connector(afd::Deadline deadline) override;
  bool is_initialized() const noexcept override { return open_.load(); }
  void close() noexcept override;

  afd::Result<void> send_attn_output(afd::ConstTensorView hidden_states,
                                     const afd::TransferContext& context,
                                     const afd::SendAttnOptions& options) override;
  afd::Result<afd::TensorView> recv_ffn_output(afd::TensorView ref_tensor, std::uint32_t ubatch_idx,
                                               const afd::RecvFfnOptions& options) override;
  afd::Result<afd::A2FTransferPayload> recv_attn_output(
      std::uint32_t ubatch_idx, const afd::RecvAttnOptions& options) override;
  afd::Result<void> send_ffn_output(const afd::F2ATransferPayload& output,
                                    const afd::TransferContext& context,
                                    const afd::SendFfnOptions& options) override;
  afd::ControlPlane* control_plane() noexcept override { return this; }
  afd::Capabilities capabilities() const override { return mailbox_capabilities(); }

 private:
  /// One stage goes round: idle -> (send, or receive on the FFN side) -> open -> idle.
  struct Stage {
    bool active = false;         ///< Part of this step.
    std::uint32_t num_rows = 0;  ///< As the control payload announced.
    std::optional<std::uint32_t> layer_idx;
    std::uint32_t received = 0;  ///< Transfers taken since init.
    std::atomic<bool> open{false};
  };

  /// Counts a call in for its duration, so that close() can wait until all are out.
  class Call {
   public:
    explicit Call(MailboxConnector& self);
    ~Call() { self_.num_calls_.fetch_sub(1); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    bool entered() const { return entered_; }

   private:
    MailboxConnector& self_;
    bool entered_;
  };

  afd::Result<void> update_state_from_dp_metadata(const afd::ControlPayload& payload) override;
  afd::Result<void> send_dp_metadata_list(const afd::ControlPayload& payload,
                                          afd::Deadline deadline) override;
  afd::Result<std::optional<afd::ControlPayload>> recv_dp_metadata_list(
      afd::Deadline deadline) override;

  // What every data call checks first; nothing is the good answer.
  std::optional<afd::Error> check_role(afd::Role wanted, std::string_view call) const;
  std::optional<afd::Error> check_rows(afd::ConstTensorView tensor, const Stage& stage,
                                       std::string_view what) const;
  std::optional<afd::Error> peer_left() const;
  afd::Result<Stage*> find_stage(std::uint32_t stage_idx);

  /// Waits for the peer's next transfer on a stage and checks its header (R1).
  afd::Result<Header> await_transfer(Direction direction, std::uint32_t stage_idx, Stage& stage,
                                     afd::Deadline deadline);
  void put(Direction direction, std::uint32_t stage_idx, const Stage& stage,
           afd::ConstTensorView rows);
  afd::TensorView landing(Direction direction, std::uint32_t stage_idx, const Stage& stage);

  const afd::ConnectorParams params_;
  const afd::Role role_;

  std::mutex lifecycle_;  ///< Held through init and close.
  std::atomic<bool> stopping_{false};
  std::atomic<bool> open_{false};
  std::atomic<int> num_calls_{0};
  std::shared_ptr<Mailbox> box_;  ///< Both ranks' connectors own it. Changes only while not open.

  std::uint64_t step_ = 0;
  std::vector<Stage> stages_;
};

}  // namespace mailbox
