#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

namespace afd::model {
namespace {

/// A file with this header and that many bytes of data.
std::vector<std::byte> file_with(const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  for (std::size_t i = 0; i < 8; ++i) {
    file[i] = static_cast<std::byte>(header.size() >> (8 * i));
  }
  std::memcpy(file.data() + 8, header.data(), header.size());
  return file;
}

/// One tensor's entry.
std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

/// Padded with spaces as writers of the format do, so that data starts at a multiple of 8.
std::string padded(std::string header) {
  while (header.size() % 8 != 0) {
    header += ' ';
  }
  return header;
}

std::string problem_with(const std::vector<std::byte>& file) {
  const Result<std::vector<SafetensorsEntry>> entries = parse_safetensors(file);
  if (entries) {
    return "accepted";
  }
  EXPECT_EQ(entries.error().code, ErrorCode::kInvalidArgument);
  return entries.error().message;
}

std::string problem_with(const std::string& header, std::size_t data_bytes) {
  return problem_with(file_with(padded(header), data_bytes));
}

TEST(SafetensorsTest, ReadsNamesDtypesShapesAndPlaces) {
  const std::string header = padded(
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("a", "F32", "[2,3]", "[0,24]") + "," +
      entry("b.weight", "BF16", "[4]", "[24,32]") + "," + entry("scalar", "F16", "[]", "[32,34]") +
      "," + entry("none", "F32", "[0,5]", "[24,24]") + "}");
  const std::vector<std::byte> file = file_with(header, 34);

  const Result<std::vector<SafetensorsEntry>> entries = parse_safetensors(file);

  ASSERT_TRUE(entries) << entries.error().message;
  ASSERT_EQ(entries->size(), 4u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].dtype, kFloat32);
  EXPECT_EQ((*entries)[0].shape, (Shape{2, 3}));
  EXPECT_EQ((*entries)[0].begin_bytes, 8 + header.size());
  EXPECT_EQ((*entries)[1].dtype, kBFloat16);
  EXPECT_EQ((*entries)[1].begin_bytes, 8 + header.size() + 24);
  EXPECT_EQ((*entries)[2].shape.rank(), 0u);
  EXPECT_EQ((*entries)[3].shape, (Shape{0, 5}));
}

TEST(SafetensorsTest, RefusesAFileThatIsTooShort) {
  EXPECT_EQ(problem_with(std::vector<std::byte>{}),
            "truncated: the file has 0 bytes, expected at least 8");
  std::vector<std::byte> file = file_with("{}", 0);
  file.pop_back();
  EXPECT_EQ(problem_with(file), "truncated: the header has 2 bytes, but only 1 follow");
}

TEST(SafetensorsTest, RefusesAHeaderLengthBeyondReason) {
  EXPECT_EQ(problem_with(std::vector<std::byte>(64, std::byte{0xff})),
            "the header has 18446744073709551615 bytes, expected at most 100000000");
}

TEST(SafetensorsTest, RefusesEveryPrefixOfAFile) {
  const std::vector<std::byte> file =
      file_with(padded("{" + entry("a", "F32", "[2]", "[0,8]") + "}"), 8);
  ASSERT_EQ(problem_with(file), "accepted");
  for (std::size_t size = 0; size < file.size(); ++size) {
    EXPECT_NE(problem_with({file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)}),
              "accepted")
        << size;
  }
}

TEST(SafetensorsTest, RefusesAHeaderThatIsNoObject) {
  EXPECT_EQ(problem_with("[]", 0), "the header does not start with '{'");
  EXPECT_EQ(problem_with(" {}", 0), "the header does not start with '{'");
  EXPECT_EQ(problem_with("", 0), "the header does not start with '{'");
  EXPECT_TRUE(problem_with("{\"a\":", 0).starts_with("header: line 1, column"));
  EXPECT_TRUE(problem_with("{\"\xff\":1}", 0).starts_with("header: line 1, column"));
  EXPECT_NE(problem_with("{} x", 0), "accepted");
  // A zero byte ends the text for some readers and not for others.
  EXPECT_NE(problem_with(std::string("{}\0{\"a\":1}", 11), 0), "accepted");
}

TEST(SafetensorsTest, RefusesTheSameNameTwice) {
  EXPECT_NE(problem_with("{" + entry("a", "F32", "[1]", "[0,4]") + "," +
                             entry("a", "F32", "[1]", "[4,8]") + "}",
                         8)
                .find("twice"),
            std::string::npos);
  // Two spellings of one name are the same name.
  EXPECT_NE(problem_with("{" + entry("a", "F32", "[1]", "[0,4]") + "," +
                             entry("\\u0061", "F32", "[1]", "[4,8]") + "}",
                         8)
                .find("twice"),
            std::string::npos);
}

TEST(SafetensorsTest, RefusesNamesThatAreNotPrintableAscii) {
  for (const char* name : {"", "a b", "\\n", "\\u0000", "d\\u00e9j\\u00e0", "\\u007f"}) {
    EXPECT_NE(problem_with("{" + entry(name, "F32", "[1]", "[0,4]") + "}", 4)
                  .find("expected a name of printable ASCII"),
              std::string::npos)
        << name;
  }
}

struct Refused {
  const char* what;
  std::string header;
  std::size_t data_bytes;
  const char* message;
};

TEST(SafetensorsTest, RefusesEntriesThatLie) {
  const Refused cases[] = {
      {"dtype", entry("a", "F8_E4M3", "[4]", "[0,4]"), 4,
       "tensor \"a\" has dtype \"F8_E4M3\", expected BF16, F16 or F32"},
      {"dtype kind", "\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}", 4,
       "tensor \"a\" has dtype 3, expected BF16, F16 or F32"},
      {"no dtype", "\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}", 4, "tensor \"a\" has no dtype"},
      {"no shape", "\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}", 4,
       "tensor \"a\" has no shape"},
      {"no offsets", "\"a\":{\"dtype\":\"F32\",\"shape\":[1]}", 4,
       "tensor \"a\" has no data_offsets"},
      {"not an object", "\"a\":7", 0,
       "tensor \"a\" is an integer, expected an object with dtype, shape and data_offsets"},
      {"negative extent", entry("a", "F32", "[-1]", "[0,4]"), 4,
       "tensor \"a\": an extent is -1, expected a non-negative integer"},
      {"fraction", entry("a", "F32", "[1.0]", "[0,4]"), 4,
       "tensor \"a\": an extent is 1.0, expected a non-negative integer"},
      {"rank", entry("a", "F32", "[1,1,1,1,1]", "[0,4]"), 4,
       "tensor \"a\" has shape [1,1,1,1,1], expected an array of at most 4 extents"},
      {"overflow", entry("a", "F32", "[4294967296,4294967296]", "[0,0]"), 0,
       "tensor \"a\" has shape [4294967296,4294967296], whose size overflows 64 bits"},
      {"wrong size", entry("a", "F32", "[2]", "[0,4]"), 4,
       "tensor \"a\" has 4 bytes, but dtype F32 and shape [2] need 8"},
      {"beyond the end", entry("a", "F32", "[2]", "[0,8]"), 4,
       "tensor \"a\" has data_offsets [0,8], but the file holds 4 bytes of data"},
      {"backwards", entry("a", "F32", "[0]", "[4,0]"), 4,
       "tensor \"a\" has data_offsets [4,0], but the file holds 4 bytes of data"},
      {"three offsets", entry("a", "F32", "[1]", "[0,4,8]"), 8,
       "tensor \"a\" has data_offsets [0,4,8], expected [begin, end]"},
      {"huge offset", entry("a", "F32", "[1]", "[18446744073709551612,0]"), 4,
       "tensor \"a\": its begin offset is 18446744073709551612, expected a non-negative integer"},
      {"hole", entry("a", "F32", "[1]", "[4,8]"), 8, "a hole of 4 bytes before tensor \"a\""},
      {"tail", entry("a", "F32", "[1]", "[0,4]"), 12, "8 bytes after the last tensor"},
      {"no tensor", "\"__metadata__\":{}", 3, "3 bytes after the last tensor"},
      {"overlap", entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]"), 12,
       "tensor \"b\" overlaps the tensor before it"},
      {"the same bytes",
       entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[0,8]"), 8,
       "tensor \"b\" overlaps the tensor before it"},
      {"metadata", "\"__metadata__\":{\"a\":1}", 0, "__metadata__ is not an object of strings"},
  };
  for (const Refused& refused : cases) {
    EXPECT_EQ(problem_with("{" + refused.header + "}", refused.data_bytes), refused.message)
        << refused.what;
  }
}

TEST(SafetensorsTest, RefusesOtherKeysInAnEntry) {
  EXPECT_TRUE(problem_with("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
                           "\"strides\":[1]}}",
                           4)
                  .starts_with("tensor \"a\" has keys besides dtype, shape and data_offsets"));
}

TEST(SafetensorsTest, RefusesDataThatIsNotAligned) {
  std::string header = padded("{" + entry("a", "F32", "[1]", "[0,4]") + "}") + "  ";
  EXPECT_EQ(problem_with(file_with(header, 4)),
            "tensor \"a\" starts at byte " + std::to_string(8 + header.size()) +
                " of the file, which is not aligned for its dtype F32");
}

}  // namespace
}  // namespace afd::model
