// Test support: the ranks of one job in one process, or their parts in forked ones.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "transport/inproc/inproc_transport.h"
#include "transport/shm/shm_transport.h"

namespace afd::transport {

enum class Kind { kInproc, kShm };

inline std::unique_ptr<Transport> make_transport(Kind kind, WaitPolicy wait = {}) {
  return kind == Kind::kInproc ? make_inproc_transport({wait}) : make_shm_transport({wait});
}

inline std::string kind_name(const ::testing::TestParamInfo<Kind>& info) {
  return info.param == Kind::kInproc ? "Inproc" : "Shm";
}

/// One FFN rank (world rank 0) and its attention peers (1, 2, ...), all attached to each other.
struct Group {
  std::unique_ptr<Transport> ffn;
  std::vector<std::unique_ptr<Transport>> attention;
  std::vector<Channel*> to_ffn;  ///< by peer

  Channel& ffn_channel() const { return *ffn->own_channel(); }
};

/// The message of an error, for assertions that ought to hold.
template <typename T>
std::string why(const Result<T>& result) {
  return result ? "" : result.error().message;
}

inline Group connect(Kind kind, const ChannelGeometry& geometry, WaitPolicy wait = {}) {
  Group group;
  group.ffn = make_transport(kind, wait);
  const Result<std::string> ffn_blob = group.ffn->create(&geometry);
  EXPECT_TRUE(ffn_blob) << why(ffn_blob);
  for (std::uint16_t peer = 0; peer < geometry.num_peers; ++peer) {
    group.attention.push_back(make_transport(kind, wait));
    Transport& attention = *group.attention.back();
    const Result<std::string> blob = attention.create(nullptr);
    EXPECT_TRUE(blob) << why(blob);
    const Result<Channel*> channel = attention.attach(0, *ffn_blob, &geometry);
    EXPECT_TRUE(channel) << why(channel);
    attention.set_doorbell(*channel, Direction::kA2f, peer, 0);
    group.to_ffn.push_back(*channel);
    const Result<Channel*> none = group.ffn->attach(1U + peer, *blob, nullptr);
    EXPECT_TRUE(none) << why(none);
    group.ffn->set_doorbell(group.ffn->own_channel(), Direction::kF2a, peer, 1U + peer);
  }
  group.ffn->seal();
  for (const auto& attention : group.attention) {
    attention->seal();
  }
  return group;
}

/// Parts of a transfer of rows only.
inline std::array<PutPart, kPartsMax> rows(const std::byte* source, std::uint64_t offset,
                                           std::uint64_t size) {
  return {PutPart{.source = source, .offset_bytes = offset, .size_bytes = size}};
}

/// The exit status of a child process, or minus the signal that ended it.
inline int wait_for(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline pid_t start_forked(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(body());
  }
  return pid;
}

/// Until a lane holds transfer `sequence`, completely.
struct Completion {
  const Channel* channel;
  LaneId lane;
  std::uint32_t sequence = 1;

  Condition condition() {
    return {.argument = this, .holds = [](void* argument) {
              const auto& self = *static_cast<const Completion*>(argument);
              const LaneState state = self.channel->poll(self.lane);
              return state.sequence == self.sequence && state.complete;
            }};
  }
};

}  // namespace afd::transport
