#include "transport/remote/remote_transport.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/errno_text.h"
#include "base/fd.h"
#include "base/fence.h"
#include "base/futex.h"
#include "base/mapping.h"
#include "base/thread.h"
#include "transport/mapped/window_layout.h"
#include "transport/remote/remote_channel.h"
#include "transport/remote/remote_message.h"
#include "transport/remote/remote_peer.h"
#include "transport/wire.h"

namespace afd::transport {
namespace {

/// A blob is "afd-remote 1 <token> <address>", the last two in hexadecimal.
constexpr std::string_view kBlobMagic = "afd-remote 1 ";
constexpr std::size_t kAddressBytesMax = 16 * 1024;

/// How long a transport that is closed waits for its peers to have all that it sent.
constexpr std::chrono::milliseconds kLinger{1'000};
/// And for the wire to close the endpoints.
constexpr std::chrono::milliseconds kClosing{200};

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += kDigits[value >> 4];
    text += kDigits[value & 15];
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  const auto digit = [](char c) -> int {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    const int high = digit(text[i]);
    const int low = digit(text[i + 1]);
    if (high < 0 || low < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(high << 4 | low);
  }
  return text.size() % 2 == 0 ? std::optional(bytes) : std::nullopt;
}

struct Blob {
  std::uint64_t token = 0;
  std::string address;
};

std::string format_blob(const Blob& blob) {
  std::string token(sizeof(blob.token), '\0');
  std::memcpy(token.data(), &blob.token, sizeof(blob.token));
  return std::string(kBlobMagic) + to_hex(token) + ' ' + to_hex(blob.address);
}

Result<Blob> parse_blob(std::string_view text) {
  const auto refuse = [&] {
    return fail(ErrorCode::kProtocolMismatch, "the peer cannot be reached: its description of " +
                                                  std::to_string(text.size()) +
                                                  " bytes is none of a remote transport");
  };
  constexpr std::size_t kTokenDigits = 2 * sizeof(Blob::token);
  if (!text.starts_with(kBlobMagic) || text.size() < kBlobMagic.size() + kTokenDigits + 3 ||
      text[kBlobMagic.size() + kTokenDigits] != ' ') {
    return refuse();
  }
  const std::optional<std::string> token = from_hex(text.substr(kBlobMagic.size(), kTokenDigits));
  const std::optional<std::string> address =
      from_hex(text.substr(kBlobMagic.size() + kTokenDigits + 1));
  if (!token || !address || address->size() > kAddressBytesMax) {
    return refuse();
  }
  Blob blob{.address = *address};
  std::memcpy(&blob.token, token->data(), sizeof(blob.token));
  return blob;
}

/// Where threads sleep: each in a slot of its own, so that one which drains its event takes none
/// from another.
class Dormitory {
 public:
  Result<void> create() {
    for (Slot& slot : slots_) {
      slot.fd.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!slot.fd) {
        return fail(ErrorCode::kUnavailable, "eventfd: " + base::errno_text(errno));
      }
    }
    return {};
  }

  /// A free slot, taken; null where more threads sleep than there are slots.
  base::Fd* enter() noexcept {
    for (Slot& slot : slots_) {
      bool free = false;
      if (slot.taken.compare_exchange_strong(free, true, std::memory_order_seq_cst)) {
        return &slot.fd;
      }
    }
    return nullptr;
  }
  void leave(base::Fd* fd) noexcept {
    for (Slot& slot : slots_) {
      if (&slot.fd == fd) {
        drain(fd);
        slot.taken.store(false, std::memory_order_release);
      }
    }
  }
  static void drain(base::Fd* fd) noexcept {
    std::uint64_t count = 0;
    static_cast<void>(::read(fd->get(), &count, sizeof(count)));
  }

  /// Wakes whoever sleeps, or has entered and is about to. Async-signal-safe.
  void ring() noexcept {
    base::full_fence();  // pairs with the one in RemoteBed::arm()
    const int saved_errno = errno;
    for (Slot& slot : slots_) {
      if (slot.taken.load(std::memory_order_relaxed)) {
        const std::uint64_t one = 1;
        static_cast<void>(::write(slot.fd.get(), &one, sizeof(one)));
      }
    }
    errno = saved_errno;
  }

 private:
  struct Slot {
    base::Fd fd;
    // Set by the thread that sleeps here before it looks at its condition for the last time; read
    // by ring() after whatever makes a condition hold. A full fence lies between on both sides.
    std::atomic<bool> taken{false};
  };
  std::array<Slot, 8> slots_;
};

/// Pushes out what publishes have left to the wire while no thread waits: a peer may need bytes of
/// this rank long before this rank needs something of a peer. Sleeps otherwise.
class Pusher {
 public:
  /// @param push  makes progress; false: nothing is left to push
  Result<void> start(Condition push) {
    push_ = push;
    Result<std::thread> thread = base::start_thread([this] { run(); });
    if (!thread) {
      return fail(std::move(thread).error());
    }
    thread_ = *std::move(thread);
    return {};
  }
  ~Pusher() { stop(); }
  void stop() noexcept {
    if (thread_.joinable()) {
      word_.fetch_or(kStop, std::memory_order_release);
      base::futex_wake_all(word_);
      thread_.join();
    }
  }

  /// There is something to push. A system call only when it sleeps.
  void kick() noexcept {
    if (word_.fetch_or(kWork, std::memory_order_acq_rel) == kAsleep) {
      base::futex_wake_all(word_);
    }
  }

 private:
  static constexpr std::uint32_t kAsleep = 0;
  static constexpr std::uint32_t kWork = 1;
  static constexpr std::uint32_t kStop = 2;
  static constexpr std::chrono::microseconds kPause{50};

  void run() {
    ::pthread_setname_np(::pthread_self(), "afd-remote");
    while (true) {
      const std::uint32_t word = word_.exchange(kAsleep, std::memory_order_acq_rel);
      if ((word & kStop) != 0) {
        return;
      }
      if ((word & kWork) == 0) {
        base::futex_wait(word_, kAsleep, Deadline::never());
        continue;
      }
      while (push_.holds(push_.argument) && (word_.load(std::memory_order_acquire) & kStop) == 0) {
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  Condition push_;
  // kWork and kStop are set with release by whoever has something to say, taken with acquire by the
  // thread.
  std::atomic<std::uint32_t> word_{kAsleep};
  std::thread thread_;
};

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
    AFD_CHECK(wire_ == nullptr);
    if (::getrandom(&token_, sizeof(token_), 0) != sizeof(token_)) {
      return fail(ErrorCode::kUnavailable, "getrandom: " + base::errno_text(errno));
    }
    if (Result<void> made = dormitory_.create(); !made) {
      return fail(std::move(made).error());
    }
    Result<std::unique_ptr<Wire>> wire = options_.wire_maker->make(*this);
    if (!wire) {
      return fail(std::move(wire).error());
    }
    wire_ = *std::move(wire);
    if (geometry != nullptr) {
      Result<Window> window = make_window(*geometry);
      if (!window) {
        return fail(std::move(window).error());
      }
      own_ = *std::move(window);
      own_channel_.emplace(*this, own_.memory.data(), *geometry, own_.layout, options_.world_rank,
                           nullptr);
    }
    if (Result<void> started = pusher_.start(
            {this, [](void* self) { return static_cast<RemoteTransport*>(self)->push(); }});
        !started) {
      return fail(std::move(started).error());
    }
    return format_blob({.token = token_, .address = wire_->address()});
  }

  Channel* own_channel() noexcept override { return own_channel_ ? &*own_channel_ : nullptr; }

  Result<Channel*> attach(std::uint32_t world_rank, std::string_view blob_text,
                          const ChannelGeometry* geometry) override {
    const Result<Blob> blob = parse_blob(blob_text);
    if (!blob) {
      return fail(blob.error());
    }
    std::optional<Window> window;
    if (geometry != nullptr) {
      Result<Window> made = make_window(*geometry);
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
    attached.channel.emplace(*this, attached.window.memory.data(), *geometry,
                             attached.window.layout, world_rank, attached.peer.get());
    return &*attached.channel;
  }

  void set_doorbell(Channel* channel, Direction direction, std::uint16_t peer_idx,
                    std::uint32_t world_rank) noexcept override {
    const std::scoped_lock lock(lock_);
    const auto peer = peers_.find(world_rank);
    AFD_CHECK(channel != nullptr && peer != peers_.end(), world_rank);
    static_cast<RemoteChannel*>(channel)->set_peer(direction, peer_idx, peer->second.peer.get());
  }

  void seal() noexcept override {
    const std::scoped_lock lock(lock_);
    sealed_ = true;
  }

  bool wait(Condition condition, Deadline deadline) noexcept override {
    struct Looked {
      RemoteTransport* self;
      Condition inner;
    } looked{this, condition};
    RemoteBed bed(*this);
    const bool held = waiter_.wait(bed,
                                   {&looked,
                                    [](void* argument) {
                                      const Looked& look = *static_cast<const Looked*>(argument);
                                      look.self->progress_if_free();
                                      return look.inner.holds(look.inner.argument);
                                    }},
                                   deadline);
    if (has_unsent_.load(std::memory_order_relaxed)) {
      pusher_.kick();
    }
    return held;
  }

  void wake() noexcept override {
    waiter_.note_wake();
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
    const auto found = peers_.find(world_rank);
    return found == peers_.end() ? std::string() : wire_->describe(found->second.peer->endpoint());
  }

 private:
  struct Window {
    base::Mapping memory;
    WindowLayout layout;
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

  static Result<Window> make_window(const ChannelGeometry& geometry) {
    const Result<WindowLayout> layout = layout_window(&geometry);
    if (!layout) {
      return fail(layout.error());
    }
    Result<base::Mapping> memory = base::Mapping::anonymous(layout->window_bytes);
    if (!memory) {
      return fail(std::move(memory).error());
    }
    // All zero, which is what every signal and ring begins with.
    return Window{*std::move(memory), *layout};
  }

  // RemoteLink
  base::SpinLock& lock() noexcept override { return lock_; }
  Wire& wire() noexcept override { return *wire_; }
  std::uint32_t own_world_rank() const noexcept override { return options_.world_rank; }

  std::uint64_t piece_bytes() const noexcept override { return wire_->piece_bytes(); }

  void progress() noexcept override {
    const std::uint64_t before = num_changes_;
    num_progresses_.store(num_progresses_.load(std::memory_order_relaxed) + 1,
                          std::memory_order_relaxed);
    for (int i = 0; i < kProgressMax && wire_->progress(); ++i) {
    }
    std::uint64_t num_unsent = 0;
    for (const auto& [rank, attached] : peers_) {
      num_unsent += attached.peer->broken() ? 0 : attached.peer->num_under_way;
    }
    has_unsent_.store(num_unsent != 0, std::memory_order_relaxed);
    // A sleeper's descriptor may not tell it what this thread has taken.
    if (num_changes_ != before) {
      dormitory_.ring();
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
      progress_if_free();
    }
    pushed_at_ = num_progresses_.load(std::memory_order_relaxed);
    return has_unsent_.load(std::memory_order_relaxed);
  }

  void progress_if_free() noexcept {
    if (lock_.try_lock()) {
      progress();
      lock_.unlock();
    }
  }

  /// One thread's sleep.
  class RemoteBed final : public Bed {
   public:
    explicit RemoteBed(RemoteTransport& transport) : transport_(transport) {}
    void enter() noexcept override { fd_ = transport_.dormitory_.enter(); }
    void leave() noexcept override { transport_.dormitory_.leave(fd_); }
    std::uint32_t arm() noexcept override {
      if (fd_ != nullptr) {
        Dormitory::drain(fd_);
      }
      base::full_fence();  // pairs with the one in Dormitory::ring()
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
      std::array<pollfd, 2> fds = {
          pollfd{.fd = transport_.wire_->event_fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = fd_ == nullptr ? -1 : fd_->get(), .events = POLLIN, .revents = 0}};
      constexpr std::chrono::nanoseconds kNap = std::chrono::milliseconds(1);
      constexpr std::chrono::nanoseconds kPause = std::chrono::microseconds(50);
      auto time = std::chrono::nanoseconds(deadline.remaining());
      time = std::min(time, armed == 0 ? kPause : fd_ == nullptr ? kNap : time);
      timespec limit{.tv_sec = time.count() / 1'000'000'000,
                     .tv_nsec = time.count() % 1'000'000'000};
      ::ppoll(fds.data(), fds.size(), &limit, nullptr);
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

  static constexpr int kProgressMax = 64;
  static constexpr std::size_t kEarlyMax = 4096;

  const RemoteOptions options_;
  Waiter waiter_;
  Dormitory dormitory_;
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
  Window own_;
  std::optional<RemoteChannel> own_channel_;
  std::map<std::uint32_t, Attached> peers_;  ///< by world rank
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
