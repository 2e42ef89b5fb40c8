#include "base/dynamic_library.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

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

TEST(DynamicLibraryTest, SaysWhetherALibraryIsAbsentOrDoesNotLoad) {
  const Result<DynamicLibrary> none = DynamicLibrary::open("/nowhere/libnone.so");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error(),
            (Error{ErrorCode::kUnavailable,
                   "cannot open it: cannot open shared object file: No such file or directory"}));
  EXPECT_TRUE(is_absent(none.error()));

  const Result<DynamicLibrary> folder = DynamicLibrary::open("/proc/self/");
  ASSERT_FALSE(folder);
  EXPECT_EQ(folder.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(folder.error().message, ::testing::StartsWith("cannot open it: "));
  EXPECT_FALSE(is_absent(folder.error())) << folder.error().message;

  const Result<DynamicLibrary> device = DynamicLibrary::open("/dev/zero");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error(), (Error{ErrorCode::kUnavailable, "cannot open it: not a regular file"}));
  EXPECT_FALSE(is_absent(device.error()));
}

TEST(DynamicLibraryTest, DoesNotWaitForTheOtherEndOfAFifo) {
  char folder[] = "/tmp/afd-fifo-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/lib.so";
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  ::alarm(20);  // The loader would wait for ever.
  const Result<DynamicLibrary> fifo = DynamicLibrary::open(path);
  ::alarm(0);
  ::unlink(path.c_str());
  ::rmdir(folder);
  ASSERT_FALSE(fifo);
  EXPECT_EQ(fifo.error(), (Error{ErrorCode::kUnavailable, "cannot open it: not a regular file"}));
}

TEST(DynamicLibraryTest, SaysWhichSymbolIsMissing) {
  const Result<DynamicLibrary> library = DynamicLibrary::open("libm.so.6");
  ASSERT_TRUE(library);
  const Result<void*> symbol = library->symbol("no_such_function");
  ASSERT_FALSE(symbol);
  EXPECT_EQ(symbol.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(symbol.error().message, ::testing::HasSubstr("no_such_function"));
}

}  // namespace
}  // namespace afd::base
