// TLS 1.3 under the session's frames, for those who want privacy: both sides show a certificate,
// and each verifies the other's against one authority. A member also verifies that rank 0's is of
// the host it meant to reach.
//
// Bytes in, bytes out: no socket here.
//
// Threads: TlsContext is immutable; a TlsStream is of one thread at a time.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <afd/config.h>
#include <afd/result.h>

struct ssl_ctx_st;
struct ssl_st;

namespace afd::session {

class TlsContext {
 public:
  /// @return kInvalidArgument  names the file that cannot be used, and why
  static Result<TlsContext> load(const SessionConfig& config);

 private:
  friend class TlsStream;
  explicit TlsContext(std::shared_ptr<ssl_ctx_st> context) : context_(std::move(context)) {}
  std::shared_ptr<ssl_ctx_st> context_;  // of this and of copies of it
};

class TlsStream {
 public:
  /// Rank 0's end of a connection.
  static std::unique_ptr<TlsStream> accept(const TlsContext& context);
  /// A member's end. @param host  rank 0's, a name or an address: its certificate has to say it
  static std::unique_ptr<TlsStream> connect(const TlsContext& context, const std::string& host);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  /// Takes what came from the other side and adds what it says to `plain`.
  /// @return kProtocolMismatch  "TLS: certificate verify failed"
  Result<void> receive(std::string_view bytes, std::string& plain);
  /// Says this, as soon as both sides have shown who they are.
  void send(std::string_view plain);
  /// What has to go to the other side now, also after an error: it tells the other what is wrong.
  std::string take_output();

 private:
  explicit TlsStream(ssl_st* ssl) : ssl_(ssl) {}
  Result<void> go_on();
  Result<void> send_waiting();

  ssl_st* const ssl_;
  std::string waiting_;  // said before the handshake was over
};

}  // namespace afd::session
