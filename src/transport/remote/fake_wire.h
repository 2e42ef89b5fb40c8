// A wire between transports of one process, for tests: it can hold messages back, break, and carry
// what no transport would send.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "transport/wire.h"

namespace afd::transport::testing {

/// Where the wires of one test meet. From any thread.
class FakeNet {
 public:
  struct Message {
    std::vector<std::byte> header;
    std::vector<std::byte> data;
  };

  /// Sends are pending, not done at once, until release().
  void hold() {
    const std::scoped_lock lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::scoped_lock lock(mutex_);
    held_ = false;
  }
  bool is_held() {
    const std::scoped_lock lock(mutex_);
    return held_;
  }
  /// Messages of more bytes than this have to be fetched.
  void fetch_from(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    fetch_from_ = bytes;
  }
  std::size_t fetch_from() {
    const std::scoped_lock lock(mutex_);
    return fetch_from_;
  }

  void add(const std::string& address, int event_fd) {
    const std::scoped_lock lock(mutex_);
    boxes_[address].event_fd = event_fd;
  }
  void remove(const std::string& address) {
    const std::scoped_lock lock(mutex_);
    boxes_.erase(address);
  }
  /// @return false  nobody is there
  bool post(const std::string& address, Message message) {
    const std::scoped_lock lock(mutex_);
    const auto box = boxes_.find(address);
    if (box == boxes_.end()) {
      return false;
    }
    box->second.messages.push_back(std::move(message));
    const std::uint64_t one = 1;
    return ::write(box->second.event_fd, &one, sizeof(one)) == sizeof(one);
  }
  std::deque<Message> take(const std::string& address) {
    const std::scoped_lock lock(mutex_);
    const auto box = boxes_.find(address);
    return box == boxes_.end() ? std::deque<Message>()
                               : std::exchange(box->second.messages, std::deque<Message>());
  }
  bool is_empty(const std::string& address) {
    const std::scoped_lock lock(mutex_);
    const auto box = boxes_.find(address);
    return box == boxes_.end() || box->second.messages.empty();
  }

 private:
  struct Box {
    int event_fd = -1;
    std::deque<Message> messages;
  };
  std::mutex mutex_;
  bool held_ = false;
  std::size_t fetch_from_ = SIZE_MAX;
  std::map<std::string, Box> boxes_;
};

class FakeWire final : public Wire {
 public:
  FakeWire(FakeNet& net, std::string address, WireReceiver& receiver)
      : net_(net),
        address_(std::move(address)),
        receiver_(receiver),
        event_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    net_.add(address_, event_fd_.get());
  }
  ~FakeWire() override { net_.remove(address_); }

  const std::string& address() const override { return address_; }

  Result<std::unique_ptr<WireEndpoint>> connect(std::string_view address,
                                                WireEnd& broken) override {
    return std::unique_ptr<WireEndpoint>(std::make_unique<Endpoint>(std::string(address), broken));
  }
  void close(WireEndpoint& endpoint) override { static_cast<Endpoint&>(endpoint).closed = true; }
  bool is_closed(WireEndpoint&) override { return true; }

  Result<bool> send(WireEndpoint& endpoint, std::span<const std::byte> header,
                    std::span<const std::byte> data, WireEnd& end) override {
    auto& to = static_cast<Endpoint&>(endpoint);
    if (to.closed) {
      return fail(ErrorCode::kPeerLost, "closed");
    }
    if (net_.is_held() || !pending_.empty()) {
      pending_.push_back({&to, header, data, &end});
      return true;
    }
    deliver(to, header, data);
    return false;
  }

  void fetch(const Arrival& arrival, std::byte* target, WireEnd& end) override {
    // Later, as a network would.
    fetching_.push_back(
        {std::move(*static_cast<std::vector<std::byte>*>(arrival.descriptor)), target, &end});
  }

  bool progress() override {
    std::uint64_t count = 0;
    static_cast<void>(::read(event_fd_.get(), &count, sizeof(count)));
    bool worked = false;
    if (!net_.is_held()) {
      for (Pending& pending : std::exchange(pending_, {})) {
        deliver(*pending.to, pending.header, pending.data);
        pending.end->on_end(nullptr);
        worked = true;
      }
    }
    for (Fetching& fetching : std::exchange(fetching_, {})) {
      std::memcpy(fetching.target, fetching.data.data(), fetching.data.size());
      fetching.end->on_end(nullptr);
      worked = true;
    }
    for (FakeNet::Message& message : net_.take(address_)) {
      const bool fetched = message.data.size() > net_.fetch_from();
      receiver_.on_arrival({.header = message.header,
                            .data = fetched ? nullptr : message.data.data(),
                            .descriptor = fetched ? &message.data : nullptr,
                            .size_bytes = message.data.size()});
      worked = true;
    }
    return worked;
  }
  int event_fd() const override { return event_fd_.get(); }
  bool arm() override {
    return net_.is_empty(address_) && fetching_.empty() && (pending_.empty() || net_.is_held());
  }
  bool is_memory_only() const override { return false; }
  std::uint64_t piece_bytes() const override { return 1024; }
  std::string describe(const WireEndpoint& endpoint) const override {
    return "fake " + static_cast<const Endpoint&>(endpoint).address;
  }

 private:
  struct Endpoint final : WireEndpoint {
    Endpoint(std::string to, WireEnd& end) : address(std::move(to)), broken(end) {}
    const std::string address;
    WireEnd& broken;
    bool closed = false;
  };
  struct Pending {
    Endpoint* to;
    std::span<const std::byte> header;
    std::span<const std::byte> data;
    WireEnd* end;
  };
  struct Fetching {
    std::vector<std::byte> data;
    std::byte* target;
    WireEnd* end;
  };

  void deliver(Endpoint& to, std::span<const std::byte> header, std::span<const std::byte> data) {
    if (!net_.post(to.address, {{header.begin(), header.end()}, {data.begin(), data.end()}})) {
      to.broken.on_end("nobody is there");
    }
  }

  FakeNet& net_;
  const std::string address_;
  WireReceiver& receiver_;
  const base::Fd event_fd_;
  std::vector<Pending> pending_;
  std::vector<Fetching> fetching_;
};

class FakeWireMaker final : public WireMaker {
 public:
  FakeWireMaker(FakeNet& net, std::string address) : net_(net), address_(std::move(address)) {}
  Result<std::unique_ptr<Wire>> make(WireReceiver& receiver) const override {
    return std::make_unique<FakeWire>(net_, address_, receiver);
  }

 private:
  FakeNet& net_;
  const std::string address_;
};

}  // namespace afd::transport::testing
