// Receiving one stage's transfer from all peers, whoever comes first.
//
// The loop: look at the peers' states, take what the lanes have, and only then judge those states
// (a peer that published everything and left is no loss). Otherwise wait until a lane moves, a
// peer's state changes, close(), or the deadline.
#pragma once

#include <bit>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "connectors/p2p/p2p_state.h"

namespace afd::p2p {

/// A handler gets `rows(peer, first_row, num_rows)` with rows counted within that peer's share, on
/// the receiving thread, ascending per peer.
template <typename Handler>
std::optional<Error> P2pConnector::take_ready_rows(transport::Direction direction,
                                                   std::uint32_t stage_idx, StageState& stage,
                                                   bool progressive, Handler& handler) {
  Incoming& incoming = stage.incoming;
  for (std::uint64_t left = incoming.pending; left != 0; left &= left - 1) {
    const auto peer = static_cast<std::size_t>(std::countr_zero(left));
    const std::uint64_t bit = std::uint64_t{1} << peer;
    const transport::LaneId id = lane(direction, stage_idx, peer);
    const transport::LaneState state = channel(peer).poll(id);
    if (state.sequence == incoming.sequence[peer]) {
      continue;
    }
    // On every look: a peer that begins another transfer on an open lane writes over this one.
    if (state.sequence != incoming.sequence[peer] + 1) {
      return out_of_turn(stage_idx, peer, state.sequence, incoming.sequence[peer] + 1);
    }
    if ((incoming.header_checked & bit) == 0) {
      if (std::optional<Error> error =
              check_header(channel(peer).header(id), stage_idx, stage, peer)) {
        return error;
      }
      incoming.header_checked |= bit;
    }
    const std::uint32_t share = stage.layout.peers[peer].num_rows;
    const std::uint32_t done = incoming.rows_done[peer];
    std::uint32_t ready = share;
    if (!state.complete) {
      if (!progressive) {
        continue;
      }
      ready = static_cast<std::uint32_t>(state.bytes_ready / layout_.row_bytes());
      ready = ready < share ? ready : share;
    }
    if (ready > done) {
      handler.rows(peer, done, ready - done);
      incoming.rows_done[peer] = ready;
    }
    if (state.complete) {
      incoming.sequence[peer] = state.sequence;
      incoming.pending &= ~bit;
    }
  }
  return std::nullopt;
}

/// The last look of a receive, once all rows are there: at a peer whose rows came first, and which
/// began another transfer before the others' had come, or while its header was read.
inline std::optional<Error> P2pConnector::check_lanes_rest(transport::Direction direction,
                                                           std::uint32_t stage_idx,
                                                           const StageState& stage) const {
  for (std::size_t peer = 0; peer < num_peers(); ++peer) {
    const std::uint32_t found = channel(peer).poll(lane(direction, stage_idx, peer)).sequence;
    const std::uint32_t taken = stage.incoming.sequence[peer];
    if (found != taken) {
      return out_of_turn(stage_idx, peer, found, taken);
    }
  }
  return std::nullopt;
}

/// Before receive_rows(): tells a new target what it is, and hands it what a call with another one
/// had taken before it ran out of time. The rows still stand in the landing memory.
template <typename Handler>
void P2pConnector::resume_rows(StageState& stage, const RowTarget& target, ConstTensorView rows,
                               Handler& handler) {
  Incoming& incoming = stage.incoming;
  if (incoming.announced && incoming.target == target) {
    return;
  }
  incoming.announced = true;
  incoming.target = target;
  if (target.sink.begin != nullptr) {
    target.sink.begin(target.sink.argument, rows);
  }
  for (std::size_t peer = 0; incoming.started && peer < num_peers(); ++peer) {
    if (incoming.rows_done[peer] > 0) {
      handler.rows(peer, 0, incoming.rows_done[peer]);
    }
  }
}

template <typename Handler>
Result<void> P2pConnector::receive_rows(transport::Direction direction, std::uint32_t stage_idx,
                                        StageState& stage, bool progressive, Deadline deadline,
                                        Handler& handler) {
  Incoming& incoming = stage.incoming;
  if (!incoming.started) {
    incoming.started = true;
    incoming.pending = all_peers();
    incoming.header_checked = 0;
    incoming.rows_done.fill(0);
  }

  struct Watch {
    const P2pConnector* self;
    transport::Direction direction;
    std::uint32_t stage_idx;
    const StageState* stage;
    bool progressive;
    std::uint32_t peer_events;
  } watch{this, direction, stage_idx, &stage, progressive, 0};
  const transport::Condition something_happened{
      &watch, [](void* argument) {
        const Watch& w = *static_cast<const Watch*>(argument);
        const P2pConnector& self = *w.self;
        const Incoming& in = w.stage->incoming;
        for (std::uint64_t left = in.pending; left != 0; left &= left - 1) {
          const auto peer = static_cast<std::size_t>(std::countr_zero(left));
          const transport::LaneState state =
              self.channel(peer).poll(self.lane(w.direction, w.stage_idx, peer));
          if (state.sequence != in.sequence[peer] &&
              (state.complete || state.sequence != in.sequence[peer] + 1 ||
               (w.progressive && in.rows_done[peer] < w.stage->layout.peers[peer].num_rows &&
                state.bytes_ready >=
                    (in.rows_done[peer] + std::uint64_t{1}) * self.layout_.row_bytes()))) {
            return true;
          }
        }
        return self.stopping_.load(std::memory_order_acquire) ||
               self.peer_events_.load(std::memory_order_acquire) != w.peer_events;
      }};

  std::optional<Deadline> drained_by;  // set once a peer has left whose rows may be under way
  for (;;) {
    if (stopping_.load(std::memory_order_acquire)) {
      return fail(not_ready());
    }
    watch.peer_events = peer_events_.load(std::memory_order_acquire);
    std::optional<Error> lost;
    const std::uint64_t needed = incoming.pending;
    // Before the lanes are looked at: what a peer that left had published has to be in them.
    bool drained = true;
    if (watch.peer_events != 0) {
      lost = liveness_error(needed);
      drained = !lost || has_drained(needed);
    }
    if (std::optional<Error> error =
            take_ready_rows(direction, stage_idx, stage, progressive, handler)) {
      return fail(*std::move(error));
    }
    if (incoming.pending == 0) {
      if (std::optional<Error> error = check_lanes_rest(direction, stage_idx, stage)) {
        return fail(*std::move(error));
      }
      incoming.started = false;
      incoming.announced = false;
      return {};
    }
    if (lost && incoming.pending != needed) {
      continue;  // perhaps it is one whose rows have all been taken just now, and nobody is lost
    }
    if (lost && !drained) {
      if (!drained_by) {
        drained_by = Deadline::after(kDrained);
      }
      if (!drained_by->expired()) {
        transport_->wait(something_happened, Deadline::after(kDrainLook));
        continue;
      }
    }
    if (lost) {
      return fail(std::move(*lost).with_context("stage " + std::to_string(stage_idx)));
    }
    if (!transport_->wait(something_happened, deadline) && deadline.expired()) {
      // Nothing came: then nothing is open, and the next call may have other options.
      incoming.started = incoming.header_checked != 0;
      return fail(deadline_error(stage_idx, stage));
    }
  }
}

}  // namespace afd::p2p
