#include "transport/remote/remote_transport.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/fence.h"
#include "base/mapping.h"
#include "base/shared_name.h"
#include "transport/mapped/mapped_channel.h"
#include "transport/remote/dormitory.h"
#include "transport/remote/pusher.h"
#include "transport/remote/remote_blob.h"
#include "transport/remote/remote_channel.h"
#include "transport/remote/remote_message.h"
#include "transport/remote/remote_peer.h"

namespace afd::transport {
namespace {

/// How long a transport that is closed waits for its peers to have all that it sent.
constexpr std::chrono::milliseconds kLinger{1'000};
/// And for the wire to close the endpoints.
constexpr std::chrono::milliseconds kClosing{200};

/// Windows that nobody else maps.
class PrivateProvider final : public WindowProvider {
 public:
  Result<std::unique_ptr<WindowMemory>> create(std::uint64_t size_bytes,
                                               std::string* name) override {
    class PrivateMemory final : public WindowMemory {
     public:
      explicit PrivateMemory(base::Mapping mapping) : mapping_(std::move(mapping)) {}
      std::byte* data() const noexcept override { return mapping_.data(); }
      std::uint64_t size() const noexcept override { return mapping_.size(); }
      void seal() noexcept override {}

     private:
      base::Mapping mapping_;
    };
    Result<base::Mapping> mapping = base::Mapping::anonymous(size_bytes);
    if (!mapping) {
      return fail(std::move(mapping).error());
    }
    *name = "private";
    return std::make_unique<PrivateMemory>(*std::move(mapping));
  }
  Result<std::unique_ptr<WindowMemory>> open(std::string_view, std::uint64_t) override {
    return fail(ErrorCode::kUnavailable, "a private window");
  }
  std::string_view kind() const noexcept override { return "private"; }
  std::string_view path_name() const noexcept override { return "private memory"; }
};

Result<Window> make_private_window(const ChannelGeometry* geometry) {
  PrivateProvider provider;
  std::string blob;
  return make_window(provider, geometry, &blob);
}

class RemoteTransport final : public Transport, public RemoteLink, private WireReceiver {
 public:
  explicit RemoteTransport(RemoteOptions options)
      : options_(std::move(options)), waiter_(options_.wait) {}

  ~RemoteTransport() override {
    if (wire_ == nullptr) {
      return;
    }
    leave_peers();
    linger();
    pusher_.stop();
    close_endpoints();
    const std::scoped_lock lock(lock_);
    wire_.reset();
  }

  Result<std::string> create(const ChannelGeometry* geometry) override {
    AFD_CHECK(own_.memory == nullptr);
    RemoteBlob blob;
    if (::getrandom(&token_, sizeof(token_), 0) != sizeof(token_)) {
      return fail(ErrorCode::kUnavailable, "getrandom: " + base::errno_text(errno));
    }
    blob.token = token_;
    if (Result<void> made = dormitory_.create(); !made) {
      return fail(std::move(made).error());
    }
    if (options_.wire_maker != nullptr) {
      Result<std::unique_ptr<Wire>> wire = options_.wire_maker->make(*this);
      if (!wire && options_.shared == nullptr) {
        return fail(std::move(wire).error());
      }
      if (wire) {
        wire_ = *std::move(wire);
        blob.address = wire_->address();
      } else {
        why_no_wire_ = std::move(wire).error();  // It may turn out that none is needed.
      }
    }
    if (Result<void> made = make_own_window(geometry, &blob); !made) {
      return fail(std::move(made).error());
    }
    if (geometry != nullptr) {
      own_channel_.emplace(*this, own_.memory->data(), *geometry, own_.layout, options_.world_rank,
                           nullptr);
    }
    if (wire_ != nullptr) {
      if (Result<void> started = pusher_.start(
              {this, [](void* self) { return static_cast<RemoteTransport*>(self)->push(); }});
          !started) {
        return fail(std::move(started).error());
      }
    }
    return format_remote_blob(blob);
  }

  Channel* own_channel() noexcept override { return own_channel_ ? &*own_channel_ : nullptr; }

  Result<Channel*> attach(std::uint32_t world_rank, std::string_view blob_text,
                          const ChannelGeometry* geometry) override {
    const Result<RemoteBlob> blob = parse_remote_blob(blob_text);
    if (!blob) {
      return fail(blob.error());
    }
    if (is_near(*blob)) {
      return attach_near(world_rank, *blob, geometry);
    }
    if (wire_ == nullptr) {
      return fail(ErrorCode::kUnavailable,
                  "it is on another host" +
                      (why_no_wire_ ? ": " + why_no_wire_->message
                                    : ", and this rank meets the others on loopback: give all of "
                                      "them an address that other hosts reach"));
    }
    if (blob->address.empty()) {
      return fail(
          ErrorCode::kUnavailable,
          "it is on another host and told no address beyond it: it has no UCX, or meets the "
          "others on loopback");
    }
    std::optional<Window> window;
    if (geometry != nullptr) {
      Result<Window> made = make_private_window(geometry);
      if (!made) {
        return fail(std::move(made).error());
      }
      window = *std::move(made);
    }
    const std::scoped_lock lock(lock_);
    auto peer = std::make_unique<RemotePeer>(
        blob->token,
        Notice{this, [](void* self) { static_cast<RemoteTransport*>(self)->on_event(); }});
    if (Result<void> begun = peer->connect(*wire_, blob->address); !begun) {
      return fail(std::move(begun).error());
    }
    Attached& attached = peers_[world_rank];
    AFD_CHECK(attached.peer == nullptr, world_rank);
    attached.peer = std::move(peer);
    attached.peer->said_hello = early_hellos_.erase(world_rank) != 0;
    post(*attached.peer, {.kind = RemoteMessageKind::kHello}, {});
    if (!window) {
      return nullptr;
    }
    attached.window = *std::move(window);
    attached.channel.emplace(*this, attached.window.memory->data(), *geometry,
                             attached.window.layout, world_rank, attached.peer.get());
    return &*attached.channel;
  }

  void set_doorbell(Channel* channel, Direction direction, std::uint16_t peer_idx,
                    std::uint32_t world_rank) noexcept override {
    const std::scoped_lock lock(lock_);
    if (const auto near = near_.find(world_rank); near != near_.end()) {
      if (channel == own_channel()) {
        own_channel_->set_near_peer(direction, peer_idx, near->second.bell());
      } else {
        static_cast<MappedChannel*>(channel)->set_doorbell(direction, peer_idx,
                                                           near->second.bell());
      }
      return;
    }
    const auto peer = peers_.find(world_rank);
    AFD_CHECK(channel != nullptr && peer != peers_.end(), world_rank);
    static_cast<RemoteChannel*>(channel)->set_peer(direction, peer_idx, peer->second.peer.get());
  }

  void set_control_sender(std::uint32_t world_rank) noexcept override {
    const std::scoped_lock lock(lock_);
    AFD_CHECK(own_channel_.has_value());
    const auto peer = peers_.find(world_rank);
    // A near one writes into the window, and nobody sends any.
    own_channel_->set_control_sender(peer == peers_.end() ? nullptr : peer->second.peer.get());
  }

  void seal() noexcept override {
    if (peers_.empty()) {
      drop_wire();
    }
    const std::scoped_lock lock(lock_);
    if (own_.memory != nullptr) {
      own_.memory->seal();
    }
    fifo_fd_ = fifo_.remove();
    sealed_ = true;
  }

  bool wait(Condition condition, Deadline deadline) noexcept override {
    if (!polls_) {
      return waiter_.wait(own_.doorbell(), condition, deadline);
    }
    struct Looked {
      RemoteTransport* self;
      Condition inner;
    } looked{this, condition};
    RemoteBed bed(*this);
    bool held = waiter_.wait(bed,
                             {&looked,
                              [](void* argument) {
                                const Looked& look = *static_cast<const Looked*>(argument);
                                look.self->progress_if_free(/*all=*/false);
                                return look.inner.holds(look.inner.argument);
                              }},
                             deadline);
    if (!held) {
      // A poll, or one whose time is up, takes all that has come.
      {
        const std::scoped_lock lock(lock_);
        progress(/*all=*/true);
      }
      held = condition.holds(condition.argument);
    }
    if (has_unsent_.load(std::memory_order_relaxed)) {
      pusher_.kick();
    }
    return held;
  }

  void wake() noexcept override {
    waiter_.wake(*doorbell_.load(std::memory_order_acquire));
    dormitory_.ring();
  }

  WaitStats wait_stats() const noexcept override { return waiter_.stats(); }

  void set_on_event(Notice on_event) override {
    const std::scoped_lock lock(lock_);
    on_event_ = on_event;
  }

  std::optional<Error> fault() const override {
    const std::scoped_lock lock(lock_);
    return fault_;
  }

  bool is_reached(std::uint32_t world_rank) const override {
    const std::scoped_lock lock(lock_);
    const auto found = peers_.find(world_rank);
    return found == peers_.end() || found->second.peer->said_hello;
  }

  std::optional<std::string> why_broken(std::uint32_t world_rank) const override {
    const std::scoped_lock lock(lock_);
    const auto found = peers_.find(world_rank);
    if (found == peers_.end() || !found->second.peer->broken() || found->second.peer->said_bye) {
      return std::nullopt;
    }
    return found->second.peer->why_broken();
  }

  void forget(std::uint32_t world_rank) noexcept override {
    const std::scoped_lock lock(lock_);
    const auto found = peers_.find(world_rank);
    if (found != peers_.end()) {
      found->second.peer->break_off("it is gone");
    }
  }

  bool has_drained(std::uint32_t world_rank) override {
    const std::scoped_lock lock(lock_);
    progress();
    const auto found = peers_.find(world_rank);
    return found == peers_.end() || found->second.peer->said_bye || found->second.peer->broken();
  }

  void leave_peers() noexcept override {
    const std::scoped_lock lock(lock_);
    if (wire_ == nullptr || left_) {
      return;
    }
    left_ = true;
    for (auto& [rank, attached] : peers_) {
      post(*attached.peer, {.kind = RemoteMessageKind::kBye}, {});
    }
    progress();
  }

  std::string describe_path(std::uint32_t world_rank) const override {
    const std::scoped_lock lock(lock_);
    if (near_.contains(world_rank)) {
      return std::string(options_.shared->path_name());
    }
    const auto found = peers_.find(world_rank);
    return found == peers_.end() ? std::string() : wire_->describe(found->second.peer->endpoint());
  }

 private:
  /// One whose windows this rank maps.
  struct Near {
    Window window;
    base::Fd fifo;
    std::optional<MappedChannel> channel;

    Bell bell() const noexcept { return {&window.doorbell(), fifo.get()}; }
  };
  struct Attached {
    std::unique_ptr<RemotePeer> peer;
    Window window;
    std::optional<RemoteChannel> channel;
  };
  /// A message that is not a piece, on its way out.
  struct Post final : WireEnd {
    void on_end(const char* why_not) noexcept override {
      busy = false;
      --peer->num_under_way;
      if (why_not != nullptr) {
        peer->break_off(why_not);
      }
    }
    RemotePeer* peer = nullptr;
    bool busy = false;
    RemoteHeaderBytes header{};
    std::vector<std::byte> bytes;
  };

  Result<void> make_own_window(const ChannelGeometry* geometry, RemoteBlob* blob) {
    Result<Window> window = options_.shared == nullptr
                                ? make_private_window(geometry)
                                : make_window(*options_.shared, geometry, &blob->window);
    if (!window) {
      return fail(std::move(window).error());
    }
    own_ = *std::move(window);
    polls_ = wire_ != nullptr;
    if (options_.shared != nullptr) {
      blob->place = options_.place;
    }
    if (options_.shared != nullptr && polls_) {
      Result<base::SharedName> fifo = base::SharedName::create(base::SharedName::Kind::kFifo);
      if (!fifo) {
        return fail(std::move(fifo).error());
      }
      fifo_ = *std::move(fifo);
      blob->fifo = fifo_.text();
      own_.doorbell().polled.store(1, std::memory_order_relaxed);
    }
    doorbell_.store(&own_.doorbell(), std::memory_order_release);
    return {};
  }

  /// Whether that peer's windows can be mapped here. Both sides come to the same answer.
  bool is_near(const RemoteBlob& blob) const {
    if (options_.shared == nullptr || blob.window.empty()) {
      return false;
    }
    const bool known = !options_.place.empty() && !blob.place.empty();
    // Who meets on loopback is on one host. That it sees the same /dev/shm the mapping shows.
    return known ? options_.place == blob.place : options_.wire_maker == nullptr;
  }

  Result<Channel*> attach_near(std::uint32_t world_rank, const RemoteBlob& blob,
                               const ChannelGeometry* geometry) {
    Result<Window> window = find_window(*options_.shared, blob.window, geometry);
    if (!window) {
      return fail(std::move(window).error());
    }
    base::Fd fifo;
    if (!blob.fifo.empty()) {
      Result<base::Fd> opened = base::open_shared_name(blob.fifo, base::SharedName::Kind::kFifo);
      if (!opened) {
        return fail(std::move(opened).error());
      }
      fifo = *std::move(opened);
    }
    const std::scoped_lock lock(lock_);
    Near& near = near_[world_rank];
    AFD_CHECK(near.window.memory == nullptr, world_rank);
    near.window = *std::move(window);
    near.fifo = std::move(fifo);
    if (geometry == nullptr) {
      return nullptr;
    }
    near.channel.emplace(near.window.memory->data(), *geometry, near.window.layout);
    near.channel->set_owner_bell(near.bell());
    return &*near.channel;
  }

  /// All peers are near: from now on this rank sleeps at its doorbell alone. Before the first
  /// wait().
  void drop_wire() noexcept {
    pusher_.stop();
    const std::scoped_lock lock(lock_);
    wire_.reset();
    polls_ = false;
    if (own_.memory != nullptr) {
      own_.doorbell().polled.store(0, std::memory_order_relaxed);
    }
  }

  // RemoteLink
  base::SpinLock& lock() noexcept override { return lock_; }
  Wire& wire() noexcept override { return *wire_; }
  std::uint32_t own_world_rank() const noexcept override { return options_.world_rank; }

  std::uint64_t piece_bytes() const noexcept override {
    return wire_ == nullptr ? 1 : wire_->piece_bytes();
  }

  void progress() noexcept override { progress(/*all=*/true); }

  /// @param all  false: not on and on once something has come, which may be what somebody waits for
  void progress(bool all) noexcept {
    if (wire_ == nullptr) {
      return;
    }
    const std::uint64_t before = num_changes_;
    num_progresses_.store(num_progresses_.load(std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
    for (int i = 0; i < (all ? kLooksForAllMax : kLooksMax) && wire_->progress(); ++i) {
      // Over sockets a look that finds nothing costs a system call.
      if (!all && num_changes_ != before) {
        break;
      }
    }
    std::uint64_t num_unsent = 0;
    for (const auto& [rank, attached] : peers_) {
      num_unsent += attached.peer->broken() ? 0 : attached.peer->num_under_way;
    }
    has_unsent_.store(num_unsent != 0, std::memory_order_relaxed);
    // A sleeper's descriptor may not tell it what this thread has taken.
    if (num_changes_ != before) {
      dormitory_.ring_unfenced();  // The lock is the one of RemoteBed::arm().
    }
  }

  void post(RemotePeer& peer, RemoteHeader header,
            std::span<const std::byte> bytes) noexcept override {
    if (peer.broken()) {
      return;
    }
    header.token = peer.token();
    header.source = options_.world_rank;
    Post& out = free_post();
    out.peer = &peer;
    out.header = encode_remote_header(header);
    out.bytes.assign(bytes.begin(), bytes.end());
    const Result<bool> sent = wire_->send(peer.endpoint(), out.header, out.bytes, out);
    if (!sent) {
      peer.break_off(sent.error().message.c_str());
    } else if (*sent) {
      out.busy = true;
      ++peer.num_under_way;
    }
  }

  Post& free_post() {
    for (const std::unique_ptr<Post>& post : posts_) {
      if (!post->busy) {
        return *post;
      }
    }
    return *posts_.emplace_back(std::make_unique<Post>());
  }

  // WireReceiver
  bool on_arrival(const Arrival& arrival) noexcept override {
    base::prefetch(arrival.header.data(), arrival.header.size());
    base::prefetch(arrival.data, std::min(arrival.size_bytes, kPrefetchBytes));
    const std::optional<RemoteHeader> header = decode_remote_header(arrival.header);
    if (!header || header->token != token_) {
      return false;  // a stranger's
    }
    const auto found = peers_.find(header->source);
    if (found == peers_.end()) {
      // One that has attached before this rank has. It says no more before all have met.
      if (header->kind == RemoteMessageKind::kHello && early_hellos_.size() < kEarlyMax) {
        early_hellos_.insert(header->source);
      } else if (sealed_) {
        note_fault(header->source, "it is no peer of this rank");
      }
      return false;
    }
    RemotePeer& peer = *found->second.peer;
    bool fetching = false;
    switch (header->kind) {
      case RemoteMessageKind::kHello:
        peer.said_hello = true;
        break;
      case RemoteMessageKind::kBye:
        peer.said_bye = true;
        post(peer, {.kind = RemoteMessageKind::kByeSeen}, {});
        break;
      case RemoteMessageKind::kByeSeen:
        peer.saw_our_bye = true;
        break;
      default: {
        RemoteChannel* const channel = channel_of(*header);
        const std::string problem = channel == nullptr
                                        ? "a message for a channel that is not here"
                                        : channel->take(*header, arrival, peer, &fetching);
        if (!problem.empty()) {
          note_fault(header->source, problem);
        }
      }
    }
    ++num_changes_;
    return fetching;
  }

  /// Own messages name the channel by its owner's rank: this rank, or an attached FFN rank.
  RemoteChannel* channel_of(const RemoteHeader& header) {
    const auto found = peers_.find(header.channel);
    if (found != peers_.end() && found->second.channel) {
      return &*found->second.channel;
    }
    return header.channel == options_.world_rank && own_channel_ ? &*own_channel_ : nullptr;
  }

  void note_fault(std::uint32_t world_rank, const std::string& what) {
    if (!fault_) {
      fault_ = Error{ErrorCode::kProtocolMismatch,
                     "world rank " + std::to_string(world_rank) + " sent what cannot be: " + what};
      on_event();
    }
  }

  void on_event() {
    ++num_changes_;
    if (on_event_.happened != nullptr) {
      on_event_.happened(on_event_.argument);
    }
  }

  void push_out() noexcept override {
    progress();
    if (has_unsent_.load(std::memory_order_relaxed)) {
      pusher_.kick();
    }
  }

  /// The pusher's turn, every now and then. Where other threads make progress it stays out of their
  /// way.
  bool push() noexcept {
    const std::uint32_t progresses = num_progresses_.load(std::memory_order_relaxed);
    if (progresses == pushed_at_) {
      progress_if_free(/*all=*/true);
    }
    pushed_at_ = num_progresses_.load(std::memory_order_relaxed);
    return has_unsent_.load(std::memory_order_relaxed);
  }

  void progress_if_free(bool all) noexcept {
    if (lock_.try_lock()) {
      progress(all);
      lock_.unlock();
    }
  }

  /// One thread's sleep.
  class RemoteBed final : public Bed {
   public:
    explicit RemoteBed(RemoteTransport& transport) : transport_(transport) {}
    void enter() noexcept override {
      fd_ = transport_.dormitory_.enter();
      transport_.sleepers_.enter();
    }
    void leave() noexcept override {
      if (transport_.sleepers_.leave(transport_.own_.doorbell())) {
        transport_.dormitory_.ring();
      }
      transport_.dormitory_.leave(fd_);
    }
    std::uint32_t arm() noexcept override {
      if (fd_ != nullptr) {
        Dormitory::drain(fd_);
      }
      // Its full fence pairs with the one in Dormitory::ring() too.
      transport_.sleepers_.arm(transport_.own_.doorbell());
      const std::scoped_lock lock(transport_.lock_);
      for (int i = 0; i < kArmTries; ++i) {
        transport_.progress();
        if (transport_.wire_->arm()) {
          return 1;
        }
      }
      return 0;  // much is coming in, or the wire has no room for what goes out
    }
    void lie(std::uint32_t armed, Deadline deadline) noexcept override {
      std::array<pollfd, 3> fds = {
          pollfd{.fd = transport_.wire_->event_fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = transport_.fifo_fd_.get(), .events = POLLIN, .revents = 0},
          pollfd{.fd = fd_ == nullptr ? -1 : fd_->get(), .events = POLLIN, .revents = 0}};
      constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(1);
      constexpr std::chrono::nanoseconds kPause = std::chrono::microseconds(50);
      auto time = std::chrono::nanoseconds(deadline.remaining());
      time = std::min(time, armed == 0 ? kPause : fd_ == nullptr ? kNap : time);
      timespec limit{.tv_sec = time.count() / 1'000'000'000,
                     .tv_nsec = time.count() % 1'000'000'000};
      if (::ppoll(fds.data(), fds.size(), &limit, nullptr) > 0 && fds[1].revents != 0) {
        // One thread takes the bytes, all have been rung for.
        std::array<char, 256> bytes;
        static_cast<void>(::read(transport_.fifo_fd_.get(), bytes.data(), bytes.size()));
        transport_.dormitory_.ring();
      }
    }

   private:
    static constexpr int kArmTries = 16;
    RemoteTransport& transport_;
    base::Fd* fd_ = nullptr;
  };

  /// Until every peer has got all that was sent to it, or cannot.
  void linger() noexcept {
    const auto all_have = [this] {
      const std::scoped_lock lock(lock_);
      progress();
      for (const auto& [rank, attached] : peers_) {
        const RemotePeer& peer = *attached.peer;
        // What has reached shared memory needs this rank no more; a socket that is closed with
        // something unread takes what it has sent with it.
        const bool needs_answer = sealed_ && !wire_->is_memory_only();
        if (!peer.broken() && (peer.num_under_way != 0 || (needs_answer && !peer.saw_our_bye))) {
          return false;
        }
      }
      return true;
    };
    const Deadline given_up = Deadline::after(sealed_ ? kLinger : kClosing);
    while (!all_have() && !given_up.expired()) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  void close_endpoints() noexcept {
    const Deadline given_up = Deadline::after(kClosing);
    bool closed = false;
    while (!closed && !given_up.expired()) {
      const std::scoped_lock lock(lock_);
      closed = true;
      for (auto& [rank, attached] : peers_) {
        wire_->close(attached.peer->endpoint());
        closed &= wire_->is_closed(attached.peer->endpoint());
      }
      progress();
    }
  }

  static constexpr int kLooksMax = 64;
  static constexpr int kLooksForAllMax = 1024;  // A transfer of 4 MiB may have 135 pieces.
  static constexpr std::size_t kEarlyMax = 4096;
  /// Of what has arrived in another core's cache: comes over while its header is looked at. All of
  /// a small piece: 4 KiB over shared memory 2.35 us instead of 2.45, 16 KiB 6.7 instead of 7.1.
  static constexpr std::size_t kPrefetchBytes = 4096;

  const RemoteOptions options_;
  Waiter waiter_;
  Dormitory dormitory_;
  Sleepers sleepers_;          ///< in a RemoteBed
  Doorbell private_doorbell_;  ///< before create(), so that wake() works at any time
  // Stored with release by create(), loaded with acquire by whoever wakes.
  std::atomic<Doorbell*> doorbell_{&private_doorbell_};
  bool polls_ = false;  ///< it sleeps at its wire too; settled before the first wait()
  base::SharedName fifo_;
  base::Fd fifo_fd_;  ///< from seal() on
  std::uint64_t token_ = 0;
  Pusher pusher_;
  /// Written with the lock held, read by the pusher; relaxed, a hint.
  std::atomic<std::uint32_t> num_progresses_{0};
  std::uint32_t pushed_at_ = 0;  ///< the pusher's
  /// Some peer has sends under way. Written with the lock held, read by anybody; relaxed, a hint
  /// that is right again after the next progress().
  std::atomic<bool> has_unsent_{false};
  mutable base::SpinLock lock_;  ///< guards all that follows
  std::unique_ptr<Wire> wire_;
  std::optional<Error> why_no_wire_;
  Window own_;
  std::optional<RemoteChannel> own_channel_;
  std::map<std::uint32_t, Attached> peers_;  ///< by world rank
  std::map<std::uint32_t, Near> near_;       ///< by world rank
  std::vector<std::unique_ptr<Post>> posts_;
  std::uint64_t num_changes_ = 0;
  std::optional<Error> fault_;
  Notice on_event_;
  std::set<std::uint32_t> early_hellos_;  ///< of ranks that are not attached yet
  bool sealed_ = false;
  bool left_ = false;
};

}  // namespace

std::unique_ptr<Transport> make_remote_transport(RemoteOptions options) {
  return std::make_unique<RemoteTransport>(std::move(options));
}

}  // namespace afd::transport
