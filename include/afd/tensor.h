// Tensors as the transport sees them: a pointer, a shape, an element type and a device.
//
// Element and device codes have DLPack's values, so that a binding can exchange tensors with torch,
// NumPy or JAX by copying fields. Every tensor here is dense and row-major; a strided tensor has to
// be made contiguous by its owner first.
//
// Threads: plain values, as safe as the memory that they point to.
#pragma once

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include <afd/export.h>
#include <afd/result.h>

namespace afd {

/// Values of DLPack's DLDeviceType.
enum class DeviceType : std::int32_t {
  kCpu = 1,
  kCuda = 2,
  kCudaHost = 3,
  kRocm = 10,
  kRocmHost = 11,
  kExtDev = 12,  ///< Ascend NPUs appear as this in DLPack.
};

struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int32_t id = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// An element type with the fields of DLPack's DLDataType.
struct DType {
  std::uint8_t code = 0;  ///< 0 int, 1 uint, 2 float, 4 bfloat, 6 bool (DLDataTypeCode).
  std::uint8_t bits = 0;
  std::uint16_t lanes = 1;

  constexpr std::uint64_t size_bytes() const { return (std::uint64_t{bits} * lanes + 7) / 8; }
  friend bool operator==(const DType&, const DType&) = default;
};

inline constexpr DType kInt8{0, 8, 1};
inline constexpr DType kInt32{0, 32, 1};
inline constexpr DType kInt64{0, 64, 1};
inline constexpr DType kUInt8{1, 8, 1};
inline constexpr DType kFloat16{2, 16, 1};
inline constexpr DType kFloat32{2, 32, 1};
inline constexpr DType kFloat64{2, 64, 1};
inline constexpr DType kBFloat16{4, 16, 1};
inline constexpr DType kBool{6, 8, 1};

/// "bfloat16", "float32", "int32", ...; "dtype(code=7,bits=12,lanes=1)" for one without a name.
AFD_EXPORT std::string to_string(DType dtype);
/// "cpu:0", "cuda:1", "ext_dev:0".
AFD_EXPORT std::string to_string(Device device);
/// Reads the names of to_string(DType), "torch.bfloat16" and the like, and safetensors' "BF16".
/// @return kInvalidArgument for any other text, naming it and what is known.
AFD_EXPORT Result<DType> parse_dtype(std::string_view text);

/// Up to four extents. A fixed array, so that passing a shape allocates nothing.
class Shape {
 public:
  static constexpr std::size_t kRankMax = 4;

  constexpr Shape() = default;
  /// Extents beyond kRankMax are a bug of the caller: kept out by the assertion in debug builds.
  constexpr Shape(std::initializer_list<std::uint64_t> extents) {
    assert(extents.size() <= kRankMax);
    for (std::uint64_t extent : extents) {
      if (rank_ < kRankMax) {
        extents_[rank_++] = extent;
      }
    }
  }

  constexpr std::size_t rank() const { return rank_; }
  constexpr std::uint64_t operator[](std::size_t axis) const { return extents_[axis]; }
  constexpr std::uint64_t num_elements() const {
    std::uint64_t product = 1;
    for (std::size_t axis = 0; axis < rank_; ++axis) {
      product *= extents_[axis];
    }
    return product;
  }
  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::uint64_t, kRankMax> extents_{};
  std::size_t rank_ = 0;
};

/// "[3, 2048]".
AFD_EXPORT std::string to_string(const Shape& shape);

/// A borrowed tensor that is only read. Default-constructed: empty, "no tensor".
struct ConstTensorView {
  const void* data = nullptr;
  Shape shape;
  DType dtype;
  Device device;

  bool empty() const { return data == nullptr; }
  std::uint64_t num_rows() const { return shape.rank() == 0 ? 0 : shape[0]; }
  std::uint64_t size_bytes() const { return shape.num_elements() * dtype.size_bytes(); }
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data), static_cast<std::size_t>(size_bytes())};
  }
};

/// A borrowed tensor that may be written.
struct TensorView {
  void* data = nullptr;
  Shape shape;
  DType dtype;
  Device device;

  bool empty() const { return data == nullptr; }
  std::uint64_t num_rows() const { return shape.rank() == 0 ? 0 : shape[0]; }
  std::uint64_t size_bytes() const { return shape.num_elements() * dtype.size_bytes(); }
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(data), static_cast<std::size_t>(size_bytes())};
  }
  operator ConstTensorView() const { return {data, shape, dtype, device}; }
};

/// Owns host memory, 64-byte aligned and zeroed. Moves, does not copy.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Shape shape, DType dtype) : shape_(shape), dtype_(dtype) {
    const std::size_t bytes = static_cast<std::size_t>(shape.num_elements() * dtype.size_bytes());
    const std::size_t room = (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
    data_.reset(new (std::align_val_t{kAlignBytes}) std::byte[room == 0 ? kAlignBytes : room]());
  }

  TensorView view() { return {data_.get(), shape_, dtype_, {}}; }
  ConstTensorView view() const { return {data_.get(), shape_, dtype_, {}}; }

  /// The elements as T; sizeof(T) has to be the dtype's size.
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_.get()), static_cast<std::size_t>(shape_.num_elements())};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_.get()),
            static_cast<std::size_t>(shape_.num_elements())};
  }

  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }

 private:
  static constexpr std::size_t kAlignBytes = 64;
  struct AlignedDelete {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{kAlignBytes});
    }
  };

  Shape shape_;
  DType dtype_;
  std::unique_ptr<std::byte[], AlignedDelete> data_;
};

}  // namespace afd
