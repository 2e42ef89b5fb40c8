// What a rank tells its peers of how to reach it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <afd/result.h>

namespace afd::transport {

/// As text "afd-remote 2 <token> <address> <place> <fifo> <window>", with "-" for what is empty;
/// token and address in hexadecimal.
struct RemoteBlob {
  std::uint64_t token = 0;  ///< what its messages have to carry
  std::string address;      ///< of its wire, any bytes; empty: it has none
  std::string place;   ///< where its windows can be mapped (base::shared_place()); empty: nowhere
  std::string fifo;    ///< a byte in it wakes the rank while it polls; empty: it never does
  std::string window;  ///< of find_window(); empty: none is shared

  friend bool operator==(const RemoteBlob&, const RemoteBlob&) = default;
};

std::string format_remote_blob(const RemoteBlob& blob);

/// @return kProtocolMismatch  not exactly what format_remote_blob() makes of some blob
Result<RemoteBlob> parse_remote_blob(std::string_view text);

}  // namespace afd::transport
