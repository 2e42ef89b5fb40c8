// The error vocabulary of the library.
//
// A function that can fail for a reason outside its caller's control returns Result<T>. The code
// tells the caller what to do next; the message tells a human what happened. Exceptions never
// cross a public header: the Python binding is the one place that turns an Error into one.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include <afd/export.h>

namespace afd {

/// Each value names what the caller should do, not what went wrong below.
enum class ErrorCode {
  kInvalidArgument,     ///< Fix the call or the configuration. Retrying cannot help.
  kFailedPrecondition,  ///< A valid call at the wrong moment: not connected, already closed.
  kUnavailable,         ///< This back-end cannot run here (no device, no library). Choose another.
  kWouldBlock,          ///< A bounded queue is full. Make progress, then try again.
  kDeadlineExceeded,    ///< Time ran out; the operation had no effect and can be repeated.
  kPeerLost,            ///< The other side is gone. Fail the step; connect anew.
  kProtocolMismatch,    ///< The two sides disagree on version, shape or dtype. Stop both.
  kInternal,            ///< A bug in this library. Report it.
};

/// Returns the enumerator's name without the "k", for logs and for Python: "PeerLost".
AFD_EXPORT std::string_view to_string(ErrorCode code);

struct AFD_EXPORT Error {
  ErrorCode code = ErrorCode::kInternal;

  /// Lower case, no full stop, with the values that matter: "hidden_size is 512, expected 2048".
  std::string message;

  /// Returns this error with what was being done put first: "connect to ffn rank 3: <message>".
  Error with_context(std::string_view context) &&;

  friend bool operator==(const Error&, const Error&) = default;
};

/// A T or an Error. Discarding one is a compiler warning, and warnings are errors here.
template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
  Result(tl::expected<T, Error> other) : tl::expected<T, Error>(std::move(other)) {}
};

/// Shorthand for the failing return: `return fail(ErrorCode::kPeerLost, "ffn rank 3 closed");`.
inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

/// Passes an error on: `if (!opened) return fail(std::move(opened).error());`.
inline tl::unexpected<Error> fail(Error error) {
  return tl::unexpected<Error>(std::move(error));
}

}  // namespace afd
