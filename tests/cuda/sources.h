// The sources that call the vendors' libraries, as text.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace shardrun::cuda {

/// visit(path, text) of each.
template <class Visit>
void each_source(Visit visit) {
  for (const char* folder : {"runtime/device/cuda", "kernels/cuda", "collectives/nccl"}) {
    const auto root = std::filesystem::path(SHARDRUN_SOURCE_DIR) / folder;
    for (const auto& file : std::filesystem::recursive_directory_iterator(root)) {
      if (!file.is_regular_file()) continue;
      std::ifstream in(file.path());
      visit(file.path(), std::string{std::istreambuf_iterator<char>(in), {}});
    }
  }
}

}  // namespace shardrun::cuda
