#include "conformance/reference_hub.h"

namespace afd::conformance {

Hub::Hub(RankCounts ranks, const TransferLimits& limits)
    : counts(ranks),
      presence(num_ranks()),
      control(ranks.num_ffn_ranks),
      num_stages_(limits.num_stages) {
  const std::size_t num_lanes =
      std::size_t{2} * ranks.num_attention_ranks * ranks.num_ffn_ranks * limits.num_stages;
  mailboxes_ = std::make_unique<Mailbox[]>(num_lanes);
  for (std::size_t lane = 0; lane < num_lanes; ++lane) {
    mailboxes_[lane].rows.resize(std::size_t{limits.max_num_tokens} * limits.hidden_size *
                                 limits.dtype.size_bytes());
    mailboxes_[lane].logits.resize(std::size_t{limits.max_num_tokens} * limits.num_experts *
                                   sizeof(float));
  }
}

Mailbox& Hub::mailbox(bool to_ffn, std::uint32_t attention_rank, std::uint32_t ffn_rank,
                      std::uint32_t stage_idx) {
  const std::size_t pair = std::size_t{attention_rank} * counts.num_ffn_ranks + ffn_rank;
  return mailboxes_[(pair * num_stages_ + stage_idx) * 2 + (to_ffn ? 0 : 1)];
}

void Hub::notify() {
  // Pairs with the increment in the connector's wait(): both orders are sequentially consistent, so
  // either the waiter sees what was published or this sees the waiter.
  if (num_sleepers.load(std::memory_order_seq_cst) > 0) {
    std::scoped_lock lock(mutex);
    changed.notify_all();
  }
}

std::string Hub::rank_name(std::uint32_t world_rank) const {
  return world_rank < counts.num_ffn_ranks
             ? "ffn rank " + std::to_string(world_rank)
             : "attention rank " + std::to_string(world_rank - counts.num_ffn_ranks);
}

namespace {

std::mutex ports_mutex;
std::map<std::uint16_t, std::weak_ptr<Hub>>& ports() {
  static std::map<std::uint16_t, std::weak_ptr<Hub>> map;
  return map;
}

}  // namespace

std::shared_ptr<Hub> hub_of(std::uint16_t port, RankCounts counts, const TransferLimits& limits) {
  std::scoped_lock lock(ports_mutex);
  std::shared_ptr<Hub> hub = ports()[port].lock();
  if (hub == nullptr) {
    hub = std::make_shared<Hub>(counts, limits);
    ports()[port] = hub;
  }
  return hub;
}

void forget(std::uint16_t port, const std::shared_ptr<Hub>& hub) {
  std::scoped_lock lock(ports_mutex);
  const auto found = ports().find(port);
  if (found != ports().end() && found->second.lock() == hub) {
    ports().erase(found);
  }
}

}  // namespace afd::conformance
