// World rank 0's end of the star: compares what hellos say, relays. Who has not said hello yet is
// in the lobby.
//
// Threads: as Link.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <afd/result.h>

#include "session/address.h"
#include "session/connection.h"
#include "session/event_loop.h"
#include "session/link.h"
#include "session/lobby.h"
#include "session/session.h"

namespace afd::session {

class Hub final : public Link {
 public:
  /// @return as listen_at()
  static Result<std::unique_ptr<Hub>> listen(EventLoop& loop, const Address& address,
                                             const JoinOptions& options,
                                             const Credentials& credentials, LinkEvents& events);

  std::uint16_t port() const { return lobby_.port(); }

  void start() override;
  Error give_up(Error error) override;
  void arrive(std::uint32_t round) override;
  void contribute(std::uint32_t round, std::string_view contribution) override;
  void query(Query query) override;
  void leave(const Goodbye& goodbye) noexcept override;

 private:
  // A rank other than this one, by world rank.
  struct Peer {
    std::unique_ptr<Connection> connection;  // null: has not arrived, or is gone
    std::vector<std::string> addresses;
    std::string blob;
    std::optional<Goodbye> goodbye;
    std::string fault;  // why it is lost, once it is
    bool departed() const { return goodbye || !fault.empty(); }
  };

  // One kind of collective: whose turn has come in the current round.
  struct Round {
    std::uint32_t number = 0;
    std::vector<bool> arrived;
    std::uint32_t num_arrived = 0;
    std::vector<std::uint32_t> askers;  // world ranks that want to know who is missing
  };
  struct Gathering {
    Round round;
    std::vector<std::string> contributions;  // by role_rank
  };

  Hub(EventLoop& loop, base::Fd listener, const JoinOptions& options,
      const Credentials& credentials, LinkEvents& events);

  void admit(Lobby::StrangerId stranger, const FrameBuffer::Frame& frame);
  void take_in(Lobby::StrangerId stranger, std::uint32_t world_rank, Hello hello);
  void refuse_for(Lobby::StrangerId stranger, HelloIdentity identity, const std::string& problem);
  void tell_refusals();
  std::optional<std::uint32_t> world_rank_of(HelloIdentity identity) const;
  std::string version_difference(HelloIdentity identity, std::uint16_t version) const;
  std::string differences(const Hello& hello) const;
  void fail_join(const Error& error);
  void tell_failure(Lobby::StrangerId stranger, HelloIdentity identity);
  void end_join_if_all_are_told();
  void tell_who_is_missing();
  void begin();

  void on_peer_readable(std::uint32_t world_rank);
  void collect(std::uint32_t world_rank, Connection::ReadUntil until);
  void collect_all();
  void handle(std::uint32_t world_rank, const FrameBuffer::Frame& frame);
  void apply_departures();
  Gone departure_of(std::uint32_t world_rank) const;  // of one that departed
  void depart(const Gone& gone);
  void broadcast(const SharedFrame& frame);

  bool arrive_in(Round& round, std::uint32_t idx, std::uint32_t number);
  bool arrive_from(std::uint32_t world_rank, std::uint32_t number);
  bool contribute_from(std::uint32_t world_rank, std::uint32_t number, std::string contribution);
  std::uint32_t first_rank_of(bool is_ffn) const {
    return is_ffn ? 0 : options_.counts.num_ffn_ranks;
  }
  void query_from(std::uint32_t world_rank, Query query);
  void tell_askers(Collective what, const Round& round, std::uint32_t first_rank);

  std::uint32_t num_ranks() const { return static_cast<std::uint32_t>(peers_.size()); }
  std::string name(std::uint32_t world_rank) const;
  std::string name(HelloIdentity identity) const;

  const JoinOptions& options_;
  LinkEvents& events_;
  Lobby lobby_;
  LoopTimer tell_again_;
  Deadline tell_not_before_ = Deadline::now();  // the next list of who is missing
  bool tells_later_ = false;                    // tell_again_ runs
  std::vector<Peer> peers_;
  // Whose end has been seen and not been told, in the order in which the kernel reported it.
  std::vector<std::uint32_t> departing_;
  // Why ranks that came were refused: by the rank that they said to be, until it comes rightly. One
  // that this job does not have stands beyond its ranks, the last one only.
  std::map<std::uint32_t, std::string> refusals_;
  enum class Phase { kJoining, kJoined, kFailed } phase_ = Phase::kJoining;
  // Of the join. Ranks that are about to connect are told, too, before the session hears of it.
  std::optional<Error> failure_;
  std::vector<bool> told_;  // by world rank
  LoopTimer stragglers_;
  bool lost_any_ = false;
  Round barrier_;
  Gathering attention_gather_;
  Gathering ffn_gather_;
};

}  // namespace afd::session
