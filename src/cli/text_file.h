// Files of a person's size, read whole.
#pragma once

#include <cstddef>
#include <string>

#include <afd/result.h>

namespace afd::cli {

/// @param path       "-": stdin
/// @param bytes_max  of a larger file so much is returned that its parser says how much is too much
/// @return kInvalidArgument  what is wrong with the file
Result<std::string> read_text_file(const std::string& path, std::size_t bytes_max);

}  // namespace afd::cli
