#include <afd/tensor.h>

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

namespace afd {
namespace {

TEST(DTypeTest, EveryNamedTypeReadsItsNamesBack) {
  struct Named {
    DType dtype;
    const char* name;
    const char* safetensors;
    std::uint64_t size_bytes;
  };
  const Named types[] = {
      {kBFloat16, "bfloat16", "BF16", 2}, {kFloat16, "float16", "F16", 2},
      {kFloat32, "float32", "F32", 4},    {kFloat64, "float64", "F64", 8},
      {kInt8, "int8", "I8", 1},           {{0, 16, 1}, "int16", "I16", 2},
      {kInt32, "int32", "I32", 4},        {kInt64, "int64", "I64", 8},
      {kUInt8, "uint8", "U8", 1},         {{1, 16, 1}, "uint16", "U16", 2},
      {{1, 32, 1}, "uint32", "U32", 4},   {{1, 64, 1}, "uint64", "U64", 8},
      {kBool, "bool", "BOOL", 1},
  };
  for (const Named& type : types) {
    EXPECT_EQ(to_string(type.dtype), type.name);
    EXPECT_EQ(type.dtype.size_bytes(), type.size_bytes) << type.name;
    EXPECT_EQ(parse_dtype(type.name).value(), type.dtype);
    EXPECT_EQ(parse_dtype("torch." + std::string(type.name)).value(), type.dtype);
    EXPECT_EQ(parse_dtype(type.safetensors).value(), type.dtype);
  }
}

TEST(DTypeTest, RefusesAnUnknownNameAndListsTheKnown) {
  for (const char* name : {"", "half", "bf16", "torch.BF16", "torch.", "float32 "}) {
    const Result<DType> dtype = parse_dtype(name);
    ASSERT_FALSE(dtype) << name;
    EXPECT_EQ(dtype.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(dtype.error().message,
              "unknown dtype '" + std::string(name) +
                  "', expected one of bfloat16, float16, float32, float64, int8, int16, int32, "
                  "int64, uint8, uint16, uint32, uint64, bool");
  }
}

TEST(DTypeTest, PrintsATypeWithoutAName) {
  EXPECT_EQ(to_string(DType{7, 12, 1}), "dtype(code=7,bits=12,lanes=1)");
  EXPECT_EQ(to_string(DType{2, 32, 4}), "dtype(code=2,bits=32,lanes=4)");
}

TEST(DeviceTest, PrintsTypeAndIndex) {
  EXPECT_EQ(to_string(Device{}), "cpu:0");
  EXPECT_EQ(to_string(Device{DeviceType::kCuda, 1}), "cuda:1");
  EXPECT_EQ(to_string(Device{DeviceType::kCudaHost, 0}), "cuda_host:0");
  EXPECT_EQ(to_string(Device{DeviceType::kRocm, 2}), "rocm:2");
  EXPECT_EQ(to_string(Device{DeviceType::kRocmHost, 2}), "rocm_host:2");
  EXPECT_EQ(to_string(Device{DeviceType::kExtDev, 0}), "ext_dev:0");
  EXPECT_EQ(to_string(Device{static_cast<DeviceType>(77), 3}), "device(type=77):3");
}

TEST(ShapeTest, CountsAndPrints) {
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{3, 2048}), "[3, 2048]");
  EXPECT_EQ((Shape{3, 2, 4}).num_elements(), 24u);
  EXPECT_EQ(Shape{}.num_elements(), 1u);
  EXPECT_EQ((Shape{3, 0}).num_elements(), 0u);
  EXPECT_FALSE((Shape{3}) == (Shape{3, 0}));
}

TEST(TensorTest, OwnsZeroedAlignedMemory) {
  Tensor tensor({3, 5}, kFloat32);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.view().data) % 64, 0u);
  EXPECT_EQ(tensor.view().size_bytes(), 60u);
  EXPECT_EQ(tensor.view().num_rows(), 3u);
  const std::span<float> elements = tensor.as<float>();
  EXPECT_EQ(elements.size(), 15u);
  EXPECT_TRUE(std::all_of(elements.begin(), elements.end(), [](float v) { return v == 0; }));
  elements[14] = 2;
  const Tensor moved = std::move(tensor);
  EXPECT_EQ(moved.as<float>()[14], 2);
  EXPECT_FALSE(moved.view().empty());
}

TEST(TensorTest, AnEmptyViewIsNoTensorButATensorOfNoRowsIsOne) {
  EXPECT_TRUE(ConstTensorView{}.empty());
  EXPECT_EQ(ConstTensorView{}.num_rows(), 0u);
  EXPECT_TRUE(Tensor().view().empty());
  Tensor no_rows({0, 8}, kFloat32);
  EXPECT_FALSE(no_rows.view().empty());
  EXPECT_EQ(no_rows.view().bytes().size(), 0u);
}

}  // namespace
}  // namespace afd
