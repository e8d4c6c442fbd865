// The machine's own calibration file, or what else --cluster names.
#include "cluster.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "planner/cluster_file.h"

namespace shardrun {

std::string calibration_path() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string path = set("SHARDRUN_CALIBRATION"); !path.empty())
    return path == "none" ? "" : path;
  if (const std::string cache = set("XDG_CACHE_HOME"); !cache.empty())
    return cache + "/shardrun/host.json";
  if (const std::string home = set("HOME"); !home.empty())
    return home + "/.cache/shardrun/host.json";
  return "";
}

Cluster find_cluster(const std::string& text) {
  if (!text.empty() && text != "host") return load_cluster(text);
  const std::string path = calibration_path();
  std::error_code missing;
  if (path.empty() || !std::filesystem::exists(path, missing)) return host_cluster();
  try {
    return read_cluster_file(path);
  } catch (const Error& e) {
    throw Error(e.kind(), std::string(e.what()) +
                              "; 'shardrun calibrate' writes the file anew, and "
                              "SHARDRUN_CALIBRATION=none leaves it aside");
  }
}

}  // namespace shardrun
