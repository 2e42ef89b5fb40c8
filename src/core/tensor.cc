#include <afd/tensor.h>

namespace afd {
namespace {

struct NamedDType {
  std::string_view name;  // torch's and NumPy's
  std::string_view safetensors_name;
  DType dtype;
};

constexpr NamedDType kNamedDTypes[] = {
    {"bfloat16", "BF16", kBFloat16}, {"float16", "F16", kFloat16},  {"float32", "F32", kFloat32},
    {"float64", "F64", kFloat64},    {"int8", "I8", kInt8},         {"int16", "I16", {0, 16, 1}},
    {"int32", "I32", kInt32},        {"int64", "I64", kInt64},      {"uint8", "U8", kUInt8},
    {"uint16", "U16", {1, 16, 1}},   {"uint32", "U32", {1, 32, 1}}, {"uint64", "U64", {1, 64, 1}},
    {"bool", "BOOL", kBool},
};

}  // namespace

std::string to_string(DType dtype) {
  for (const NamedDType& named : kNamedDTypes) {
    if (named.dtype == dtype) {
      return std::string(named.name);
    }
  }
  return "dtype(code=" + std::to_string(dtype.code) + ",bits=" + std::to_string(dtype.bits) +
         ",lanes=" + std::to_string(dtype.lanes) + ")";
}

std::string to_string(Device device) {
  std::string_view type;
  switch (device.type) {
    case DeviceType::kCpu:
      type = "cpu";
      break;
    case DeviceType::kCuda:
      type = "cuda";
      break;
    case DeviceType::kCudaHost:
      type = "cuda_host";
      break;
    case DeviceType::kRocm:
      type = "rocm";
      break;
    case DeviceType::kRocmHost:
      type = "rocm_host";
      break;
    case DeviceType::kExtDev:
      type = "ext_dev";
      break;
    default:
      // A type of a newer DLPack, handed through by a binding.
      return "device(type=" + std::to_string(static_cast<std::int32_t>(device.type)) +
             "):" + std::to_string(device.id);
  }
  return std::string(type) + ":" + std::to_string(device.id);
}

Result<DType> parse_dtype(std::string_view text) {
  constexpr std::string_view kTorchPrefix = "torch.";
  std::string_view name = text;
  if (name.starts_with(kTorchPrefix)) {
    name.remove_prefix(kTorchPrefix.size());
  }
  for (const NamedDType& named : kNamedDTypes) {
    if (name == named.name || text == named.safetensors_name) {
      return named.dtype;
    }
  }
  std::string known;
  for (const NamedDType& named : kNamedDTypes) {
    known += known.empty() ? "" : ", ";
    known += named.name;
  }
  return fail(ErrorCode::kInvalidArgument,
              "unknown dtype '" + std::string(text) + "', expected one of " + known);
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < shape.rank(); ++axis) {
    text += axis == 0 ? "" : ", ";
    text += std::to_string(shape[axis]);
  }
  return text + "]";
}

}  // namespace afd
