#include "base/dynamic_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace afd::base {
namespace {

TEST(DynamicLibraryTest, FindsASymbol) {
  const Result<DynamicLibrary> library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library) << library.error().message;
  const Result<void*> cosine = library->symbol("cos");
  ASSERT_TRUE(cosine) << cosine.error().message;
  EXPECT_EQ(reinterpret_cast<double (*)(double)>(*cosine)(0.0), 1.0);
}

TEST(DynamicLibraryTest, SaysWhichLibraryOrSymbolIsMissing) {
  const Result<DynamicLibrary> none = DynamicLibrary::open("/nowhere/libnone.so");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(none.error().message,
              ::testing::StartsWith("cannot open library /nowhere/libnone.so: "));

  const Result<DynamicLibrary> library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library);
  const Result<void*> symbol = library->symbol("no_such_function");
  ASSERT_FALSE(symbol);
  EXPECT_EQ(symbol.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(symbol.error().message,
              ::testing::StartsWith("library libm.so.6 exports no no_such_function: "));
}

}  // namespace
}  // namespace afd::base
