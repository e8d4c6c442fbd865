// Files are written under a temporary name and renamed.
#include "base/files/cache_folder.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace shardrun {

std::string cache_folder() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (std::string own = set("SHARDRUN_CACHE"); !own.empty()) return own == "off" ? "" : own;
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty()) return cache + "/shardrun";
  if (const std::string home = set("HOME"); !home.empty()) return home + "/.cache/shardrun";
  return "";
}

std::string read_cached(const std::string& path) {
  std::error_code missing;
  const auto size = std::filesystem::file_size(path, missing);
  if (missing) return "";
  std::string bytes(size, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(bytes.data(), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

void write_cached(const std::string& path, const std::string& bytes) {
  static std::atomic<int> written{0};  // ranks of one process write at the same time
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  const std::string temporary = str(path, ".", getpid(), ".", written++);
  std::ofstream out(temporary, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  using std::filesystem::perms;
  std::filesystem::permissions(temporary, perms::group_write | perms::others_write,
                               std::filesystem::perm_options::remove, ignored);
  if (out) std::filesystem::rename(temporary, path, ignored);
  if (!out || ignored) std::filesystem::remove(temporary, ignored);
}

}  // namespace shardrun
