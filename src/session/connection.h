// One connection of the star: frames in, frames out, never waiting.
//
// Threads: with the session's mutex held. Sending from a caller's thread goes straight to the
// socket, which saves the wake-up of the session's thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <afd/config.h>
#include <afd/deadline.h>
#include <afd/result.h>

#include "session/authentication.h"
#include "session/event_loop.h"
#include "session/session_frame.h"
#include "session/tls.h"

namespace afd::session {

/// A frame that several connections send. Shared by their queues, so that announcing to n ranks
/// keeps one copy.
using SharedFrame = std::shared_ptr<const std::string>;
inline SharedFrame share(std::string frame) {
  return std::make_shared<const std::string>(std::move(frame));
}

class Connection {
 public:
  /// @param fd        a connected, non-blocking socket; owned from now on
  /// @param accepted  frame_bit()s of what may come
  Connection(EventLoop& loop, base::Fd fd, FrameSet accepted);

  int fd() const { return socket_.fd(); }
  /// Calls `handler` once, when a connection that was begun stands or has failed.
  void when_connected(std::function<void()> handler) { socket_.when_writable(std::move(handler)); }
  /// Calls `handler` whenever read() would find something.
  void start_reading(std::function<void()> handler);
  void accept(FrameSet accepted) { buffer_.accept(accepted); }
  /// From the first byte on, in each direction: TLS.
  void encrypt(std::unique_ptr<TlsStream> tls);
  /// From the next frame on, in each direction, a seal follows every frame.
  void protect(FrameSeal outgoing, FrameSeal incoming);

  enum class ReadUntil {
    kOneRead,  ///< enough where more would call the handler again
    kDrained,  ///< everything that has arrived, the connection's end included
  };
  /// Takes what has arrived into the buffer, but no more than a few MiB at once.
  void read(ReadUntil until);
  /// Nothing will arrive after what read() has taken.
  bool ended() const { return ended_; }
  /// Ends it where the other host gives no sign of life.
  void watch(const SessionConfig& config);
  /// Once it has ended: "its connection ended", or "no sign of life for 5 s".
  std::string why_ended() const;
  /// @return kProtocolMismatch  as FrameBuffer::next(), or its seal is not the next frame's
  Result<std::optional<FrameBuffer::Frame>> next();
  std::optional<FrameType> next_type() const { return buffer_.next_type(); }
  /// Reads and forgets: for a connection whose frames no longer matter.
  void discard();

  /// Queues the frame and sends what the socket takes now; the rest follows from the loop. Errors
  /// surface as the end of reading.
  void send(SharedFrame frame);
  /// Sends what is queued, waiting for room until the deadline; then ends our direction and forgets
  /// what has arrived, a few MiB at most, so that the peer reads everything up to here and then the
  /// end. A peer that never stops sending may see a reset instead.
  void finish(Deadline deadline) noexcept;

 private:
  struct Outgoing {
    SharedFrame frame;
    std::string seal;  // empty until protect()
  };

  void take_in(std::string_view bytes);
  // Puts what TLS wants to say behind what waits.
  void queue_output();
  // Sends from the queue until it is empty or the socket is full; false: full.
  bool send_queued() noexcept;
  void continue_sending();
  // After something was sent: looks, while it is unanswered, whether the other host is silent.
  void expect_answer();
  void look_for_answer();

  EventLoop& loop_;
  LoopSocket socket_;
  FrameBuffer buffer_;
  std::deque<Outgoing> queue_;
  std::size_t sent_of_front_ = 0;  // of frame and seal
  struct Seals {
    FrameSeal outgoing;
    FrameSeal incoming;
  };
  std::optional<Seals> seals_;
  std::unique_ptr<TlsStream> tls_;
  std::optional<Error> tls_error_;
  bool waits_for_room_ = false;
  bool broken_ = false;  // a send failed: nothing more is sent
  bool ended_ = false;
  int error_number_ = 0;  // of the first call that the connection's end let fail
  std::chrono::seconds limit_{0};
  std::chrono::milliseconds silence_max_{0};
  std::optional<LoopTimer> answer_timer_;  // of a connection that is watched
  bool expects_answer_ = false;            // the timer runs
};

}  // namespace afd::session
