// The machine's own calibration file, or what else --cluster names.
#include "cluster.h"

#include <cstdlib>
#include <filesystem>

#include "base/cache_folder.h"
#include "base/error.h"
#include "planner/cluster_file.h"

namespace shardrun {

std::string calibration_path() {
  const char* set = std::getenv("SHARDRUN_CALIBRATION");
  if (const std::string path = set == nullptr ? "" : set; !path.empty())
    return path == "none" ? "" : path;
  const std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/host.json";
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
