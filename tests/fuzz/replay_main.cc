// Runs a fuzz target over files instead of a search: every file of every folder given.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> files_below(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path());
      }
    }
  } else if (std::filesystem::exists(path)) {
    files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t num_files = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::filesystem::path& file : files_below(argv[i])) {
      std::ifstream stream(file, std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
      std::fprintf(stderr, "%s: %zu bytes\n", file.c_str(), bytes.size());
      // A copy of exactly this size on the heap, so that AddressSanitizer sees a read beyond it.
      const std::vector<std::uint8_t> input(bytes.begin(), bytes.end());
      LLVMFuzzerTestOneInput(input.data(), input.size());
      ++num_files;
    }
  }
  std::printf("%zu inputs\n", num_files);
  if (num_files == 0) {
    std::fprintf(stderr, "no input found: expected a folder with a seed corpus\n");
    return 1;
  }
  return 0;
}
