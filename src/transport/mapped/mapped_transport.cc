#include "transport/mapped/mapped_transport.h"

#include <atomic>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "transport/mapped/mapped_channel.h"

namespace afd::transport {
namespace {

class MappedTransport final : public Transport {
 public:
  MappedTransport(std::unique_ptr<WindowProvider> provider, WaitPolicy policy)
      : provider_(std::move(provider)), waiter_(policy) {}

  Result<std::string> create(const ChannelGeometry* geometry) override {
    AFD_CHECK(own_.memory == nullptr);
    std::string blob;
    Result<Window> made = make_window(*provider_, geometry, &blob);
    if (!made) {
      return fail(std::move(made).error());
    }
    own_ = *std::move(made);
    doorbell_.store(&own_.doorbell(), std::memory_order_release);
    if (geometry != nullptr) {
      own_channel_.emplace(own_.memory->data(), *geometry, own_.layout);
    }
    return blob;
  }

  Channel* own_channel() noexcept override { return own_channel_ ? &*own_channel_ : nullptr; }

  Result<Channel*> attach(std::uint32_t world_rank, std::string_view blob,
                          const ChannelGeometry* geometry) override {
    Result<Window> found = find_window(*provider_, blob, geometry);
    if (!found) {
      return fail(std::move(found).error());
    }
    Peer& peer = peers_[world_rank];
    peer.channel.reset();
    peer.window = *std::move(found);
    if (geometry == nullptr) {
      return nullptr;
    }
    peer.channel.emplace(peer.window.memory->data(), *geometry, peer.window.layout);
    return &*peer.channel;
  }

  void set_doorbell(Channel* channel, Direction direction, std::uint16_t peer_idx,
                    std::uint32_t world_rank) noexcept override {
    const auto peer = peers_.find(world_rank);
    AFD_CHECK(channel != nullptr && peer != peers_.end(), world_rank);
    static_cast<MappedChannel*>(channel)->set_doorbell(direction, peer_idx,
                                                       {&peer->second.window.doorbell()});
  }

  void seal() noexcept override {
    if (own_.memory != nullptr) {
      own_.memory->seal();
    }
  }

  bool wait(Condition condition, Deadline deadline) noexcept override {
    return waiter_.wait(*doorbell_.load(std::memory_order_acquire), condition, deadline);
  }
  void wake() noexcept override { waiter_.wake(*doorbell_.load(std::memory_order_acquire)); }
  WaitStats wait_stats() const noexcept override { return waiter_.stats(); }
  std::string describe_path(std::uint32_t) const override {
    return std::string(provider_->path_name());
  }

 private:
  struct Peer {
    Window window;
    std::optional<MappedChannel> channel;
  };

  const std::unique_ptr<WindowProvider> provider_;
  Waiter waiter_;
  Doorbell private_doorbell_;  // Before create(), so that wake() works at any time.
  // Stored with release by create(), loaded with acquire by whoever waits or wakes.
  std::atomic<Doorbell*> doorbell_{&private_doorbell_};
  Window own_;
  std::optional<MappedChannel> own_channel_;
  std::map<std::uint32_t, Peer> peers_;  // by world rank
};

}  // namespace

std::unique_ptr<Transport> make_mapped_transport(std::unique_ptr<WindowProvider> provider,
                                                 WaitPolicy policy) {
  return std::make_unique<MappedTransport>(std::move(provider), policy);
}

}  // namespace afd::transport
