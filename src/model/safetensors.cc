#include "model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "model/json_file.h"

namespace afd::model {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
// The limit of the reference implementation of the format.
constexpr std::uint64_t kHeaderBytesMax = 100'000'000;

struct Stored {
  const char* name;
  DType dtype;
};

constexpr Stored kStoredDTypes[] = {
    {"F32", kFloat32}, {"F16", kFloat16}, {"BF16", kBFloat16}, {"F64", kFloat64},
    {"I8", kInt8},     {"I32", kInt32},   {"I64", kInt64},     {"U8", kUInt8},
};

std::uint64_t read_length(std::span<const std::byte> file) {
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  return length;
}

Result<std::uint64_t> read_count(const JsonValue& value, const std::string& what) {
  if (value.kind != JsonValue::Kind::kInteger || value.integer < 0) {
    return fail(ErrorCode::kInvalidArgument,
                what + " is " + shown(value) + ", expected a non-negative integer");
  }
  return static_cast<std::uint64_t>(value.integer);
}

Result<SafetensorsEntry> read_entry(const std::string& name, const JsonValue& value,
                                    std::uint64_t data_begin, std::uint64_t data_bytes,
                                    std::uint64_t* size_bytes) {
  const std::string tensor = "tensor " + shown_name(name);
  // Names go into paths of messages and are compared byte by byte: no second spelling of a name.
  const bool printable =
      std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (name.empty() || !printable) {
    return fail(ErrorCode::kInvalidArgument, tensor + ": expected a name of printable ASCII");
  }
  if (value.kind != JsonValue::Kind::kObject) {
    return fail(ErrorCode::kInvalidArgument, tensor + " is " + std::string(kind_of(value)) +
                                                 ", expected an object with dtype, shape and "
                                                 "data_offsets");
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (value.find(key) == nullptr) {
      return fail(ErrorCode::kInvalidArgument, tensor + " has no " + key);
    }
  }
  if (value.members.size() != 3) {
    return fail(ErrorCode::kInvalidArgument,
                tensor + " has keys besides dtype, shape and data_offsets: " + shown(value));
  }

  SafetensorsEntry entry;
  entry.name = name;
  const JsonValue& dtype = *value.find("dtype");
  const auto* const stored =
      std::find_if(std::begin(kStoredDTypes), std::end(kStoredDTypes), [&](const Stored& known) {
        return dtype.kind == JsonValue::Kind::kString && dtype.text == known.name;
      });
  if (stored == std::end(kStoredDTypes)) {
    return fail(ErrorCode::kInvalidArgument,
                tensor + " has dtype " + shown(dtype) + ", expected BF16, F16 or F32");
  }
  entry.dtype = stored->dtype;

  const JsonValue& shape = *value.find("shape");
  if (shape.kind != JsonValue::Kind::kArray || shape.items.size() > Shape::kRankMax) {
    return fail(ErrorCode::kInvalidArgument, tensor + " has shape " + shown(shape) +
                                                 ", expected an array of at most " +
                                                 std::to_string(Shape::kRankMax) + " extents");
  }
  std::uint64_t wanted_bytes = entry.dtype.size_bytes();
  std::uint64_t extents[Shape::kRankMax] = {};
  for (std::size_t axis = 0; axis < shape.items.size(); ++axis) {
    const Result<std::uint64_t> extent = read_count(shape.items[axis], tensor + ": an extent");
    if (!extent) {
      return fail(extent.error());
    }
    extents[axis] = *extent;
    if (*extent != 0 && wanted_bytes > std::numeric_limits<std::uint64_t>::max() / *extent) {
      return fail(ErrorCode::kInvalidArgument,
                  tensor + " has shape " + shown(shape) + ", whose size overflows 64 bits");
    }
    wanted_bytes *= *extent;
  }
  switch (shape.items.size()) {
    case 0:
      entry.shape = Shape{};
      break;
    case 1:
      entry.shape = Shape{extents[0]};
      break;
    case 2:
      entry.shape = Shape{extents[0], extents[1]};
      break;
    case 3:
      entry.shape = Shape{extents[0], extents[1], extents[2]};
      break;
    default:
      entry.shape = Shape{extents[0], extents[1], extents[2], extents[3]};
      break;
  }

  const JsonValue& offsets = *value.find("data_offsets");
  if (offsets.kind != JsonValue::Kind::kArray || offsets.items.size() != 2) {
    return fail(ErrorCode::kInvalidArgument,
                tensor + " has data_offsets " + shown(offsets) + ", expected [begin, end]");
  }
  const Result<std::uint64_t> begin = read_count(offsets.items[0], tensor + ": its begin offset");
  if (!begin) {
    return fail(begin.error());
  }
  const Result<std::uint64_t> end = read_count(offsets.items[1], tensor + ": its end offset");
  if (!end) {
    return fail(end.error());
  }
  if (*begin > *end || *end > data_bytes) {
    return fail(ErrorCode::kInvalidArgument, tensor + " has data_offsets " + shown(offsets) +
                                                 ", but the file holds " +
                                                 std::to_string(data_bytes) + " bytes of data");
  }
  if (*end - *begin != wanted_bytes) {
    return fail(ErrorCode::kInvalidArgument, tensor + " has " + std::to_string(*end - *begin) +
                                                 " bytes, but dtype " + dtype.text + " and shape " +
                                                 shown(shape) + " need " +
                                                 std::to_string(wanted_bytes));
  }
  entry.begin_bytes = data_begin + *begin;
  if (entry.begin_bytes % entry.dtype.size_bytes() != 0) {
    return fail(ErrorCode::kInvalidArgument,
                tensor + " starts at byte " + std::to_string(entry.begin_bytes) +
                    " of the file, which is not aligned for its dtype " + dtype.text);
  }
  *size_bytes = wanted_bytes;
  return entry;
}

}  // namespace

Result<std::vector<SafetensorsEntry>> parse_safetensors(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return fail(
        ErrorCode::kInvalidArgument,
        "truncated: the file has " + std::to_string(file.size()) + " bytes, expected at least 8");
  }
  const std::uint64_t header_bytes = read_length(file);
  if (header_bytes > kHeaderBytesMax) {
    return fail(ErrorCode::kInvalidArgument, "the header has " + std::to_string(header_bytes) +
                                                 " bytes, expected at most " +
                                                 std::to_string(kHeaderBytesMax));
  }
  if (header_bytes > file.size() - kLengthBytes) {
    return fail(ErrorCode::kInvalidArgument,
                "truncated: the header has " + std::to_string(header_bytes) + " bytes, but only " +
                    std::to_string(file.size() - kLengthBytes) + " follow");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<std::size_t>(header_bytes));
  if (text.empty() || text.front() != '{') {
    return fail(ErrorCode::kInvalidArgument, "the header does not start with '{'");
  }
  const Result<JsonValue> header =
      parse_json(text, {.bytes_max = static_cast<std::size_t>(kHeaderBytesMax)});
  if (!header) {
    return fail(Error(header.error()).with_context("header"));
  }

  struct Extent {
    std::uint64_t begin;
    std::uint64_t end;
    std::size_t entry_idx;
  };
  const std::uint64_t data_begin = kLengthBytes + header_bytes;
  const std::uint64_t data_bytes = file.size() - data_begin;
  std::vector<SafetensorsEntry> entries;
  std::vector<Extent> extents;
  for (const auto& [name, value] : header->members) {
    if (name == "__metadata__") {
      const bool strings =
          value.kind == JsonValue::Kind::kObject &&
          std::all_of(value.members.begin(), value.members.end(), [](const JsonMember& member) {
            return member.value.kind == JsonValue::Kind::kString;
          });
      if (!strings) {
        return fail(ErrorCode::kInvalidArgument, "__metadata__ is not an object of strings");
      }
      continue;
    }
    std::uint64_t size_bytes = 0;
    Result<SafetensorsEntry> entry = read_entry(name, value, data_begin, data_bytes, &size_bytes);
    if (!entry) {
      return fail(std::move(entry).error());
    }
    extents.push_back({entry->begin_bytes, entry->begin_bytes + size_bytes, entries.size()});
    entries.push_back(*std::move(entry));
  }

  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  std::uint64_t covered = data_begin;
  for (const Extent& extent : extents) {
    if (extent.begin < covered) {
      return fail(ErrorCode::kInvalidArgument, "tensor " +
                                                   shown_name(entries[extent.entry_idx].name) +
                                                   " overlaps the tensor before it");
    }
    if (extent.begin > covered) {
      return fail(ErrorCode::kInvalidArgument,
                  "a hole of " + std::to_string(extent.begin - covered) + " bytes before tensor " +
                      shown_name(entries[extent.entry_idx].name));
    }
    covered = extent.end;
  }
  if (covered != file.size()) {
    return fail(ErrorCode::kInvalidArgument,
                std::to_string(file.size() - covered) + " bytes after the last tensor");
  }
  return entries;
}

}  // namespace afd::model
