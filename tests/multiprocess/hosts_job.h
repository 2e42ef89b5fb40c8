// One job over hosts: an `afd rank` for each rank, started where it belongs.
//
// Threads: one at a time.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "afd_run.h"
#include "tests/support/network.h"
#include "tests/support/program.h"

namespace afd::testing {

/// A rank of a job.
struct RankPlace {
  std::string role;
  int role_rank = 0;
  std::uint32_t host = 0;
  /// Where it meets the others; empty: where FFN rank 0 listens.
  std::string meeting_host{};
  std::uint16_t meeting_port = 0;

  std::string name() const { return role + " rank " + std::to_string(role_rank); }
};

/// Starts jobs of one model, with a secret of their own.
class HostsJob {
 public:
  static constexpr std::uint16_t kPort = 1239;

  /// @param network  outlives this
  HostsJob(const Network& network, std::string model)
      : network_(network),
        model_(std::move(model)),
        secret_(write_secret("secret", "what the ranks of this test share\n")) {}

  const TempFolder& folder() const { return folder_; }

  /// @param ranks  FFN rank 0 is one of them
  /// @param more   flags of all
  /// @param num_started  the first so many are; the others follow with start_one() and replace()
  void start(std::vector<RankPlace> ranks, const std::vector<std::string>& more,
             std::size_t num_started = 1000) {
    places_ = std::move(ranks);
    programs_.clear();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      programs_.push_back(i < num_started ? start_one(places_[i], more) : nullptr);
    }
  }

  /// One rank of the job that was started last, beside the others or in the place of one.
  std::unique_ptr<Program> start_one(const RankPlace& place,
                                     const std::vector<std::string>& more) const {
    const auto count = [this](const char* role) {
      return std::to_string(std::ranges::count(places_, std::string(role), &RankPlace::role));
    };
    const auto listener = std::ranges::find_if(
        places_, [](const RankPlace& of) { return of.role == "ffn" && of.role_rank == 0; });
    const bool direct = place.meeting_host.empty();
    std::vector<std::string> args = {AFD_BINARY,
                                     "rank",
                                     "--json",
                                     "--model",
                                     model_,
                                     "--host",
                                     direct ? network_.address(listener->host) : place.meeting_host,
                                     "--port",
                                     std::to_string(direct ? kPort : place.meeting_port),
                                     "--secret-file",
                                     secret_,
                                     "--attention-ranks",
                                     count("attention"),
                                     "--ffn-ranks",
                                     count("ffn"),
                                     "--role",
                                     place.role,
                                     "--role-rank",
                                     std::to_string(place.role_rank)};
    for (std::size_t i = 0; i < more.size(); ++i) {
      // A flag that is there already takes the other value.
      const auto there = std::ranges::find(args, more[i]);
      if (there != args.end() && more[i].starts_with("--") && i + 1 < more.size()) {
        *(there + 1) = more[++i];
      } else {
        args.push_back(more[i]);
      }
    }
    return std::make_unique<Program>(network_.command(place.host, args));
  }

  /// The rank's program from now on, in the place of the one before.
  void replace(std::size_t idx, std::unique_ptr<Program> program) {
    programs_[idx] = std::move(program);
  }
  std::string write_secret(const std::string& name, const std::string& text) const {
    const std::string path = folder_.write(name, text);
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    return path;
  }

  const std::vector<RankPlace>& places() const { return places_; }
  Program& program(std::size_t idx) { return *programs_[idx]; }
  std::size_t size() const { return programs_.size(); }

  /// Until every rank says that all have met. @return whether they did in time
  bool await_meeting(std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    return std::ranges::all_of(programs_, [&](const auto& program) {
      return program->await_stderr("all ranks are there", limit);
    });
  }

  /// What await_hashes() saw of a rank's end.
  const Ended& ended(std::size_t idx) const { return ended_[idx]; }

  /// Waits until every rank has ended with 0. @return the hashes of all outputs, in order of the
  /// prompts; fewer where something failed the test
  std::vector<std::string> await_hashes(std::chrono::milliseconds limit) {
    std::map<std::size_t, std::string> by_prompt;
    ended_.clear();
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      ended_.push_back(programs_[i]->wait(limit));
      const Ended& ended = ended_.back();
      EXPECT_EQ(ended.exit_code, 0) << places_[i].name() << ": " << describe(ended);
      const Json report = Json::parse(ended.out, nullptr, /*allow_exceptions=*/false);
      if (!report.is_object()) {
        ADD_FAILURE() << places_[i].name() << ": " << describe(ended);
        continue;
      }
      for (const Json& output : report.at("outputs")) {
        by_prompt[output.at("prompt_idx")] = output.at("logits_sha256");
      }
    }
    std::vector<std::string> hashes;
    for (const auto& [idx, hash] : by_prompt) {
      hashes.push_back(hash);
    }
    return hashes;
  }

 private:
  const Network& network_;
  std::string model_;
  TempFolder folder_;
  std::string secret_;
  std::vector<RankPlace> places_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<Ended> ended_;
};

}  // namespace afd::testing
