// What a remote transport knows of one peer. With the transport's lock held.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "transport/remote/remote_message.h"
#include "transport/wire.h"

namespace afd::transport {

class RemotePeer final : private WireEnd {
 public:
  /// @param on_broken  called once, with the lock held, when nothing can be sent to it any more
  RemotePeer(std::uint64_t token, Notice on_broken) : token_(token), on_broken_(on_broken) {}

  Result<void> connect(Wire& wire, std::string_view address) {
    Result<std::unique_ptr<WireEndpoint>> endpoint = wire.connect(address, *this);
    if (!endpoint) {
      return fail(std::move(endpoint).error());
    }
    endpoint_ = *std::move(endpoint);
    return {};
  }

  std::uint64_t token() const { return token_; }
  WireEndpoint& endpoint() { return *endpoint_; }
  const WireEndpoint& endpoint() const { return *endpoint_; }

  bool broken() const { return broken_; }
  const std::string& why_broken() const { return why_broken_; }
  void break_off(const char* why) {
    if (!broken_) {
      broken_ = true;
      why_broken_ = why;
      on_broken_.happened(on_broken_.argument);
    }
  }

  bool said_hello = false;
  bool said_bye = false;
  bool saw_our_bye = false;

  /// Sends of any kind that the wire is not done with.
  std::uint64_t num_under_way = 0;

 private:
  void on_end(const char* why) noexcept override { break_off(why); }

  const std::uint64_t token_;  ///< what it wants to see in every message
  const Notice on_broken_;
  std::unique_ptr<WireEndpoint> endpoint_;
  bool broken_ = false;
  std::string why_broken_;
};

}  // namespace afd::transport
