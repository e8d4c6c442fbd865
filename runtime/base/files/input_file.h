// Input files: texts that users name, such as plans, clusters and problems.
#pragma once

#include <cstdint>
#include <string>

namespace shardrun {

/// The whole of a regular file of at most `most` bytes; `what` it ought to be: "a plan". Throws
/// invalid_input, with the path in front, for any other file: a device or a pipe may have no end.
std::string read_input_file(const std::string& path, const char* what, int64_t most);

/// Throws as the above does for what is not a regular file.
void require_regular_file(const std::string& path, const char* what);

}  // namespace shardrun
