// Ranks of a job as an orchestrator starts them: `afd rank`, one process each, without a launcher.
#pragma once

#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fault/port.h"
#include "tests/support/program.h"

namespace afd::testing {

/// `afd rank --role ROLE --role-rank N --port PORT --json ARGS...`
inline std::vector<std::string> rank_command(const std::string& role, int role_rank,
                                             const std::string& port,
                                             const std::vector<std::string>& args) {
  std::vector<std::string> command = {AFD_BINARY, "rank",        "--role",
                                      role,       "--role-rank", std::to_string(role_rank),
                                      "--port",   port,          "--json"};
  command.insert(command.end(), args.begin(), args.end());
  return command;
}

/// All ranks of one job.
class BareRanks {
 public:
  struct Rank {
    std::string name;  ///< "ffn rank 1": as every message calls it.
    std::unique_ptr<Program> program;
  };

  BareRanks(int num_attention_ranks, int num_ffn_ranks, std::vector<std::string> args) {
    args.insert(args.end(), {"--attention-ranks", std::to_string(num_attention_ranks),
                             "--ffn-ranks", std::to_string(num_ffn_ranks)});
    const std::string port = free_port();
    const auto start = [&](const std::string& role, int num_ranks) {
      for (int role_rank = 0; role_rank < num_ranks; ++role_rank) {
        ranks_.push_back({role + " rank " + std::to_string(role_rank),
                          std::make_unique<Program>(rank_command(role, role_rank, port, args))});
      }
    };
    start("ffn", num_ffn_ranks);
    start("attention", num_attention_ranks);
  }

  std::vector<Rank>& all() { return ranks_; }
  Program& operator[](const std::string& name) {
    for (Rank& rank : ranks_) {
      if (rank.name == name) {
        return *rank.program;
      }
    }
    ADD_FAILURE() << "no " << name;
    return *ranks_.front().program;
  }

  /// Until every rank says that all have met.
  void await_all_there() {
    for (Rank& rank : ranks_) {
      ASSERT_TRUE(
          rank.program->await_stderr(rank.name + ": all ranks are there", std::chrono::seconds(20)))
          << rank.name;
    }
  }

  /// Names of those that have ended by now.
  std::string ended() const {
    std::string names;
    for (const Rank& rank : ranks_) {
      names += rank.program->has_ended() ? rank.name + "\n" : "";
    }
    return names;
  }

 private:
  std::vector<Rank> ranks_;
};

}  // namespace afd::testing
