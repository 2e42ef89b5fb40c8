#include "cli/text_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace afd::cli {
namespace {

/// All of it, or one byte more than it may have.
Result<std::string> read_some(std::istream& file, const std::string& path, std::size_t bytes_max) {
  std::string text(bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (&file == &std::cin && std::ferror(stdin) != 0)) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + std::strerror(errno));
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, std::size_t bytes_max) {
  if (path == "-") {
    return read_some(std::cin, "stdin", bytes_max);
  }
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown)) {
    return fail(ErrorCode::kInvalidArgument, path + ": a directory, expected a file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return fail(ErrorCode::kInvalidArgument, path + ": " + std::strerror(errno));
  }
  return read_some(file, path, bytes_max);
}

}  // namespace afd::cli
