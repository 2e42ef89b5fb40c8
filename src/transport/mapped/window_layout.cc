#include "transport/mapped/window_layout.h"

#include <string>

namespace afd::transport {
namespace {

/// Far beyond any machine's memory, and small enough that sums of a few cannot overflow.
constexpr std::uint64_t kWindowBytesMax = std::uint64_t{1} << 46;
constexpr std::uint32_t kCountMax = 1 << 16;  // LaneId's indices have 16 bits.

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

Result<void> check(const ChannelGeometry& geometry) {
  const auto check_count = [](const char* name, std::uint64_t count,
                              std::uint64_t most) -> Result<void> {
    if (count == 0 || count > most) {
      return fail(ErrorCode::kInvalidArgument, std::string(name) + " is " + std::to_string(count) +
                                                   ", expected 1 to " + std::to_string(most));
    }
    return {};
  };
  if (auto checked = check_count("num_peers", geometry.num_peers, kCountMax); !checked) {
    return checked;
  }
  if (auto checked = check_count("num_stages", geometry.num_stages, kCountMax); !checked) {
    return checked;
  }
  for (std::size_t part = 0; part < kPartsMax; ++part) {
    for (const std::uint64_t bytes : {geometry.a2f_bytes[part], geometry.f2a_bytes[part]}) {
      if (bytes > kWindowBytesMax / (2 * kPartsMax * geometry.num_stages)) {
        return fail(ErrorCode::kInvalidArgument,
                    "landing memory of " + std::to_string(bytes) + " bytes in each of " +
                        std::to_string(geometry.num_stages) + " stages is beyond what fits");
      }
    }
  }
  if (geometry.control_bytes_max != 0) {
    if (auto checked = check_count("control_slots", geometry.control_slots, kCountMax); !checked) {
      return checked;
    }
    if (geometry.control_bytes_max > kWindowBytesMax / kCountMax) {
      return fail(ErrorCode::kInvalidArgument,
                  "control_bytes_max is " + std::to_string(geometry.control_bytes_max) +
                      ", expected at most " + std::to_string(kWindowBytesMax / kCountMax));
    }
  }
  return {};
}

}  // namespace

Result<WindowLayout> layout_window(const ChannelGeometry* geometry) {
  WindowLayout layout;
  if (geometry == nullptr) {
    return layout;
  }
  if (Result<void> checked = check(*geometry); !checked) {
    return fail(std::move(checked).error());
  }
  std::uint64_t end = kPageBytes;
  layout.signals = end;
  end += 2 * std::uint64_t{geometry->num_stages} * geometry->num_peers * sizeof(SignalLine);
  if (geometry->control_bytes_max != 0) {
    layout.control_ring = end;
    end += sizeof(ControlRing);
    layout.control_slots = end;
    layout.control_slot_bytes =
        round_up(sizeof(std::uint64_t) + geometry->control_bytes_max, kLineBytes);
    end += geometry->control_slots * layout.control_slot_bytes;
  }
  end = round_up(end, kPageBytes);
  for (std::size_t direction = 0; direction < 2; ++direction) {
    std::uint64_t stage_bytes = 0;
    for (std::size_t part = 0; part < kPartsMax; ++part) {
      layout.landing[direction][part] = end + stage_bytes;
      stage_bytes += round_up(
          direction == 0 ? geometry->a2f_bytes[part] : geometry->f2a_bytes[part], kPageBytes);
    }
    layout.stage_bytes[direction] = stage_bytes;
    end += stage_bytes * geometry->num_stages;
  }
  if (end > kWindowBytesMax) {
    return fail(ErrorCode::kInvalidArgument,
                "a window of " + std::to_string(end) + " bytes is beyond what fits");
  }
  layout.window_bytes = end;
  return layout;
}

WindowHeader describe_window(const ChannelGeometry* geometry, const WindowLayout& layout) {
  WindowHeader header;
  header.window_bytes = layout.window_bytes;
  if (geometry != nullptr) {
    header.has_channel = 1;
    header.num_peers = geometry->num_peers;
    header.num_stages = geometry->num_stages;
    header.a2f_bytes = geometry->a2f_bytes;
    header.f2a_bytes = geometry->f2a_bytes;
    header.control_bytes_max = geometry->control_bytes_max;
    header.control_slots = geometry->control_slots;
  }
  return header;
}

}  // namespace afd::transport
