// Files that a command writes.
#pragma once

#include <string>

namespace shardrun::cli {

/// Throws Failure(call) naming the path if it cannot.
void write_file(const std::string& path, const std::string& text);

}  // namespace shardrun::cli
