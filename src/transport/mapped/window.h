// Windows as memory that has a place: making one's own, finding a peer's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <afd/result.h>

#include "transport/mapped/window_layout.h"

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

struct Window {
  std::unique_ptr<WindowMemory> memory;
  WindowLayout layout;

  Doorbell& doorbell() const noexcept {
    return *reinterpret_cast<Doorbell*>(memory->data() + WindowLayout::kDoorbellOffset);
  }
};

/// Makes a window and writes its header. @param geometry  null: without a channel
/// @param blob  for the peers: "afd-window 2 <kind> <name> <bytes>"
/// @return kUnavailable  too little memory
Result<Window> make_window(WindowProvider& provider, const ChannelGeometry* geometry,
                           std::string* blob);

/// Maps the window behind a peer's blob, and checks its header where `geometry` is given.
/// @return kProtocolMismatch (not a window, other layout), kUnavailable (cannot be mapped)
Result<Window> find_window(WindowProvider& provider, std::string_view blob,
                           const ChannelGeometry* geometry);

}  // namespace afd::transport
