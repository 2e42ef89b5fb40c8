// A transport over memory that both ends map. How the memory is made and found is the provider's
// business: that is all that the in-process and the shared-memory transport differ in.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "transport/mapped/waiter.h"
#include "transport/transport.h"

namespace afd::transport {

/// One window's memory, mapped and resident for the object's life.
class WindowMemory {
 public:
  virtual ~WindowMemory() = default;
  virtual std::byte* data() const noexcept = 0;
  virtual std::uint64_t size() const noexcept = 0;
  /// Nobody else will look for it.
  virtual void seal() noexcept = 0;
};

/// Makes and finds windows.
class WindowProvider {
 public:
  virtual ~WindowProvider() = default;

  /// Zeroed, page-aligned memory, and in `name` how a peer finds it: printable, no space, at most
  /// 200 characters.
  /// @return kUnavailable  too little memory
  virtual Result<std::unique_ptr<WindowMemory>> create(std::uint64_t size_bytes,
                                                       std::string* name) = 0;
  /// @param name  as a peer told it: anything may be in it
  /// @return kProtocolMismatch, kUnavailable
  virtual Result<std::unique_ptr<WindowMemory>> open(std::string_view name,
                                                     std::uint64_t size_bytes) = 0;
  /// First word of the blobs: "shm".
  virtual std::string_view kind() const noexcept = 0;
  /// For people: "shared memory".
  virtual std::string_view path_name() const noexcept = 0;
};

std::unique_ptr<Transport> make_mapped_transport(std::unique_ptr<WindowProvider> provider,
                                                 WaitPolicy policy);

}  // namespace afd::transport
