#include "transport/mapped/window.h"

#include <charconv>
#include <cstring>
#include <new>
#include <utility>

namespace afd::transport {
namespace {

constexpr std::string_view kBlobMagic = "afd-window";
constexpr std::size_t kBlobBytesMax = 1024;

struct Blob {
  std::string_view name;
  std::uint64_t window_bytes = 0;
};

std::string format_blob(std::string_view kind, const Blob& blob) {
  std::string text(kBlobMagic);
  text += ' ';
  text += std::to_string(kLayoutVersion);
  text += ' ';
  text += kind;
  text += ' ';
  text += blob.name;
  text += ' ';
  text += std::to_string(blob.window_bytes);
  return text;
}

/// Cuts the text before the next space off, or everything.
std::string_view take_word(std::string_view& text) {
  const std::size_t space = text.find(' ');
  const std::string_view word = text.substr(0, space);
  text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
  return word;
}

Result<Blob> parse_blob(std::string_view kind, std::string_view text) {
  const auto refuse = [](const std::string& why) {
    return fail(ErrorCode::kProtocolMismatch, "the peer's window cannot be used: " + why);
  };
  std::string_view rest = text;
  if (text.size() > kBlobBytesMax || take_word(rest) != kBlobMagic) {
    return refuse("its description of " + std::to_string(text.size()) + " bytes is not one");
  }
  if (take_word(rest) != std::to_string(kLayoutVersion)) {
    return refuse("its layout has another version, expected " + std::to_string(kLayoutVersion));
  }
  if (take_word(rest) != kind) {
    return refuse("it is not of transport " + std::string(kind));
  }
  Blob blob;
  blob.name = take_word(rest);
  std::from_chars(rest.data(), rest.data() + rest.size(), blob.window_bytes);
  if (format_blob(kind, blob) != text) {
    return refuse("its description is malformed");
  }
  return blob;
}

std::string describe(const WindowHeader& header) {
  if (header.has_channel == 0) {
    return "no channel";
  }
  std::string text = std::to_string(header.num_peers) + " peers, " +
                     std::to_string(header.num_stages) + " stages, a2f";
  for (const std::uint64_t bytes : header.a2f_bytes) {
    text += ' ' + std::to_string(bytes);
  }
  text += " bytes, f2a";
  for (const std::uint64_t bytes : header.f2a_bytes) {
    text += ' ' + std::to_string(bytes);
  }
  return text + " bytes, " + std::to_string(header.control_slots) + " control messages of " +
         std::to_string(header.control_bytes_max) + " bytes";
}

Result<void> check_header(const WindowHeader& found, std::uint64_t window_bytes,
                          const ChannelGeometry* geometry, const WindowLayout& layout) {
  if (found.magic != kWindowMagic || found.layout_version != kLayoutVersion ||
      found.window_bytes != window_bytes) {
    return fail(ErrorCode::kProtocolMismatch,
                "the peer's window cannot be used: it does not begin with a window's header of "
                "version " +
                    std::to_string(kLayoutVersion));
  }
  // Without a geometry only the doorbell is used, which every window has at the same place.
  if (geometry != nullptr && found != describe_window(geometry, layout)) {
    return fail(ErrorCode::kProtocolMismatch,
                "the peer's window cannot be used: its geometry differs: " + describe(found) +
                    ", expected " + describe(describe_window(geometry, layout)));
  }
  return {};
}

}  // namespace

Result<Window> make_window(WindowProvider& provider, const ChannelGeometry* geometry,
                           std::string* blob) {
  const Result<WindowLayout> layout = layout_window(geometry);
  if (!layout) {
    return fail(layout.error());
  }
  std::string name;
  Result<std::unique_ptr<WindowMemory>> memory = provider.create(layout->window_bytes, &name);
  if (!memory) {
    return fail(std::move(memory).error());
  }
  // The memory is all zero, which is what every signal, ring and doorbell begins with.
  new ((*memory)->data()) WindowHeader(describe_window(geometry, *layout));
  *blob = format_blob(provider.kind(), {.name = name, .window_bytes = layout->window_bytes});
  return Window{*std::move(memory), *layout};
}

Result<Window> find_window(WindowProvider& provider, std::string_view blob_text,
                           const ChannelGeometry* geometry) {
  const Result<Blob> blob = parse_blob(provider.kind(), blob_text);
  if (!blob) {
    return fail(blob.error());
  }
  const Result<WindowLayout> layout = layout_window(geometry);
  if (!layout) {
    return fail(layout.error());
  }
  // Before it is mapped: every page of a mapping is brought in, so a lie could fill the memory.
  if (blob->window_bytes != layout->window_bytes) {
    return fail(ErrorCode::kProtocolMismatch,
                "the peer's window has " + std::to_string(blob->window_bytes) +
                    " bytes, expected " + std::to_string(layout->window_bytes) +
                    ": the two sides' sizes differ");
  }
  Result<std::unique_ptr<WindowMemory>> memory = provider.open(blob->name, blob->window_bytes);
  if (!memory) {
    return fail(std::move(memory).error());
  }
  // A copy, so that what is checked cannot change afterwards.
  WindowHeader found;
  std::memcpy(static_cast<void*>(&found), (*memory)->data(), sizeof(found));
  if (Result<void> checked = check_header(found, blob->window_bytes, geometry, *layout); !checked) {
    return fail(std::move(checked).error());
  }
  return Window{*std::move(memory), *layout};
}

}  // namespace afd::transport
