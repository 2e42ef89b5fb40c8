// The wire over UCX, for who does not link UCX: it is taken out of the shared object that links it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <afd/result.h>

#include "transport/wire.h"

namespace afd::transport {

struct UcxOptions {
  std::string transports;   ///< as UCX_TLS: "tcp", "posix,cma"; empty: UCX's choice
  std::string net_devices;  ///< as UCX_NET_DEVICES: "eth0"; empty: UCX's choice
};

/// The shared object of the connector over UCX, which lies where the program's own libraries do.
inline constexpr const char* kUcxLibrary = "libafd_connector_p2p_ucx.so";
/// What it is about where it is missing.
inline constexpr const char* kUcxLibraryAbsent =
    "built without UCX (libucx-dev), or its library libafd_connector_p2p_ucx.so is not where the "
    "others are";

/// Opens the library when it is asked for a wire, not before.
/// @return of make(): kUnavailable  also: the library is missing, or of another build
std::unique_ptr<WireMaker> load_ucx_wire_maker(UcxOptions options);

}  // namespace afd::transport

extern "C" {

/// What the library exports besides its connector.
struct AfdUcxWireV1 {
  std::uint32_t struct_bytes;  ///< sizeof(AfdUcxWireV1), as it was compiled.
  const char* build_tag;       ///< AFD_BUILD_TAG, as it was compiled.
  std::unique_ptr<afd::transport::WireMaker> (*make_maker)(afd::transport::UcxOptions options);
};

}  // extern "C"
