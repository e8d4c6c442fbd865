// What the fuzzers share: a folder in memory, and what a reader may throw.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"

namespace shardrun::fuzz {

/// A folder of this process, removed at its end.
inline const std::string& folder() {
  struct Folder {
    std::string path;
    Folder() {
      const char* memory = "/dev/shm";
      path =
          std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
      path += "/shardrun_fuzz_XXXXXX";
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder one;
  return one.path;
}

/// Its path, with these bytes.
inline std::string written(const std::string& name, const std::string& bytes) {
  std::string path = folder() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

/// Calls `read`, which may refuse what it reads: invalid_input or unsupported, in words. Anything
/// else ends the process, as libFuzzer wants.
template <class Read>
void expect_read_or_refused(const Read& read) {
  try {
    read();
  } catch (const Error& e) {
    const bool refused = e.kind() == ErrorKind::invalid_input || e.kind() == ErrorKind::unsupported;
    if (refused && e.what()[0] != '\0') return;
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(e.kind())).c_str(), e.what());
    std::abort();
  }
}

}  // namespace shardrun::fuzz
