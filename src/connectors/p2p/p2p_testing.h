// For tests only: P2P jobs of connectors in one process over a transport that keeps what goes
// through it, and may alter or refuse it.
//
// Threads: a job is driven from one thread after init().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "connectors/p2p/p2p_state.h"
#include "session/session_test_support.h"
#include "transport/inproc/inproc_transport.h"

namespace afd::p2p::testing {

using PutParts = std::array<transport::PutPart, transport::kPartsMax>;

/// What the ranks' transports were asked for, in order.
struct Spy {
  struct Published {
    std::uint32_t world_rank = 0;  ///< who
    transport::LaneId lane;
    transport::TransferHeader header;
    PutParts parts;
  };
  struct Taken {
    std::uint32_t world_rank = 0;
    transport::LaneId lane;
  };

  std::mutex mutex;
  std::vector<Published> published;
  std::vector<Taken> taken;  ///< Headers that were looked at: where a receive meets a transfer.
  /// Changes what a receiver finds.
  std::function<void(transport::TransferHeader& header)> alter;
  /// Refuses a call of init: "create" or "attach".
  std::string refuse;
  /// To whom; none: to all.
  std::optional<std::uint32_t> refused_rank;

  bool refuses(std::string_view call, std::uint32_t world_rank) const {
    return refuse == call && refused_rank.value_or(world_rank) == world_rank;
  }
};

class SpyChannel final : public transport::Channel {
 public:
  SpyChannel(Spy& spy, std::uint32_t world_rank, transport::Channel* inner)
      : spy_(spy), world_rank_(world_rank), inner_(inner) {}
  transport::Channel* inner() const { return inner_; }

  std::byte* landing(transport::Direction direction, std::uint32_t stage_idx,
                     std::size_t part) noexcept override {
    return inner_->landing(direction, stage_idx, part);
  }
  void publish(transport::LaneId lane, const transport::TransferHeader& header,
               std::span<const transport::PutPart, transport::kPartsMax> parts,
               transport::ByteSource source) noexcept override {
    {
      const std::scoped_lock lock(spy_.mutex);
      spy_.published.push_back({world_rank_, lane, header, {}});
      std::copy(parts.begin(), parts.end(), spy_.published.back().parts.begin());
    }
    inner_->publish(lane, header, parts, source);
  }
  transport::LaneState poll(transport::LaneId lane) const noexcept override {
    return inner_->poll(lane);
  }
  transport::TransferHeader header(transport::LaneId lane) const noexcept override {
    transport::TransferHeader found = inner_->header(lane);
    const std::scoped_lock lock(spy_.mutex);
    spy_.taken.push_back({world_rank_, lane});
    if (spy_.alter) {
      spy_.alter(found);
    }
    return found;
  }
  Result<void> try_send_control(std::span<const std::byte> message) noexcept override {
    return inner_->try_send_control(message);
  }
  Result<std::span<const std::byte>> peek_control() noexcept override {
    return inner_->peek_control();
  }
  void pop_control() noexcept override { inner_->pop_control(); }

 private:
  Spy& spy_;
  const std::uint32_t world_rank_;
  transport::Channel* const inner_;
};

class SpyTransport final : public transport::Transport {
 public:
  SpyTransport(Spy& spy, std::uint32_t world_rank)
      : spy_(spy), world_rank_(world_rank), inner_(transport::make_inproc_transport()) {}

  Result<std::string> create(const transport::ChannelGeometry* geometry) override {
    if (spy_.refuses("create", world_rank_)) {
      return fail(ErrorCode::kUnavailable, "injected create");
    }
    return inner_->create(geometry);
  }
  transport::Channel* own_channel() noexcept override { return wrap(inner_->own_channel()); }
  Result<transport::Channel*> attach(std::uint32_t world_rank, std::string_view blob,
                                     const transport::ChannelGeometry* geometry) override {
    if (spy_.refuses("attach", world_rank_)) {
      return fail(ErrorCode::kUnavailable, "injected attach");
    }
    Result<transport::Channel*> attached = inner_->attach(world_rank, blob, geometry);
    return attached ? Result<transport::Channel*>(wrap(*attached)) : attached;
  }
  void set_doorbell(transport::Channel* channel, transport::Direction direction,
                    std::uint16_t peer_idx, std::uint32_t world_rank) noexcept override {
    inner_->set_doorbell(static_cast<SpyChannel*>(channel)->inner(), direction, peer_idx,
                         world_rank);
  }
  void seal() noexcept override { inner_->seal(); }
  bool wait(transport::Condition condition, Deadline deadline) noexcept override {
    return inner_->wait(condition, deadline);
  }
  void wake() noexcept override { inner_->wake(); }
  transport::WaitStats wait_stats() const noexcept override { return inner_->wait_stats(); }
  std::string describe_path(std::uint32_t world_rank) const override {
    return inner_->describe_path(world_rank);
  }

 private:
  transport::Channel* wrap(transport::Channel* inner) {
    if (inner == nullptr) {
      return nullptr;
    }
    std::unique_ptr<SpyChannel>& channel = channels_[inner];
    if (channel == nullptr) {
      channel = std::make_unique<SpyChannel>(spy_, world_rank_, inner);
    }
    return channel.get();
  }

  Spy& spy_;
  const std::uint32_t world_rank_;
  std::unique_ptr<transport::Transport> inner_;
  std::map<transport::Channel*, std::unique_ptr<SpyChannel>> channels_;
};

/// A maker of transports captures nothing: each thread says first whose spy it makes.
inline thread_local std::pair<Spy*, std::uint32_t> maker_of_this_thread;

inline std::unique_ptr<transport::Transport> make_spy_transport(const ConnectorParams&,
                                                                std::uint32_t) {
  return std::make_unique<SpyTransport>(*maker_of_this_thread.first, maker_of_this_thread.second);
}

/// All ranks of a job, by world rank.
class SpyJob {
 public:
  SpyJob(RankCounts counts, TransferLimits limits) : counts_(counts) {
    const std::uint16_t port = session::testing::free_port();
    for (std::uint32_t rank = 0; rank < counts.num_ffn_ranks + counts.num_attention_ranks; ++rank) {
      const bool is_ffn = rank < counts.num_ffn_ranks;
      ConnectorParams params;
      params.config.port = port;
      params.config.role = is_ffn ? Role::kFfn : Role::kAttention;
      params.config.num_attention_ranks = counts.num_attention_ranks;
      params.config.num_ffn_ranks = counts.num_ffn_ranks;
      params.role_rank = is_ffn ? rank : rank - counts.num_ffn_ranks;
      params.limits = limits;
      P2pLayout layout = P2pLayout::create(params).value();
      ranks_.push_back(std::make_unique<P2pConnector>("SpyAFDConnector", params, std::move(layout),
                                                      &make_spy_transport, Capabilities{}));
    }
  }

  /// All ranks meet. @return by world rank
  std::vector<Result<void>> init() {
    std::vector<Result<void>> results(ranks_.size());
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back([this, rank, &results] {
        maker_of_this_thread = {&spy, rank};
        results[rank] = ranks_[rank]->init_afd_connector(session::testing::soon());
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return results;
  }
  void init_or_fail() {
    for (const Result<void>& result : init()) {
      ASSERT_TRUE(result) << result.error().message;
    }
  }

  ConnectorBase& operator[](std::uint32_t world_rank) { return *ranks_[world_rank]; }
  ConnectorBase& ffn(std::uint32_t role_rank) { return *ranks_[role_rank]; }
  ConnectorBase& attention(std::uint32_t role_rank) {
    return *ranks_[counts_.num_ffn_ranks + role_rank];
  }
  std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(ranks_.size()); }

  /// Every rank applies the counts, by stage and attention rank.
  void begin_step(const std::vector<std::vector<std::int32_t>>& counts) {
    ControlPayload payload;
    for (std::size_t stage = 0; stage < counts.size(); ++stage) {
      payload.dp_metadata_list[static_cast<std::int64_t>(stage)] =
          DpMetadata::create(counts[stage]).value();
    }
    for (const auto& rank : ranks_) {
      const Result<void> updated = rank->control_plane()->update_state_from_dp_metadata(payload);
      ASSERT_TRUE(updated) << updated.error().message;
    }
  }

  /// Senders borrow their tensors: here they live as long as the job.
  ConstTensorView make_tensor(Shape shape, DType dtype) {
    return tensors_.emplace_back(shape, dtype).view();
  }

  Spy spy;

 private:
  const RankCounts counts_;
  std::deque<Tensor> tensors_;
  std::vector<std::unique_ptr<P2pConnector>> ranks_;
};

inline TransferContext context_of(std::uint32_t layer_idx, std::uint32_t stage_idx,
                                  std::uint32_t num_rows) {
  return {.metadata =
              TransferMetadata::create_attention_metadata(layer_idx, stage_idx, num_rows).value(),
          .states = nullptr};
}

}  // namespace afd::p2p::testing
