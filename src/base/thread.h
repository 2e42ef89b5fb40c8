// Starting a thread where the system may have none left.
#pragma once

#include <exception>
#include <string>
#include <thread>
#include <utility>

#include <afd/result.h>

namespace afd::base {

/// A thread that runs `body`; std::thread itself throws where there is none.
/// @return kUnavailable  "cannot start a thread: Resource temporarily unavailable"
template <typename Body>
Result<std::thread> start_thread(Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::exception& error) {
    return fail(ErrorCode::kUnavailable, std::string("cannot start a thread: ") + error.what());
  }
}

}  // namespace afd::base
