// The machine's own calibration file, or what else --cluster names.
#include "measure/cluster.h"

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/files/cache_folder.h"
#include "planner/cost/cluster_file.h"
#include "ranks/backend.h"

namespace shardrun {

std::string calibration_path() {
  const char* set = std::getenv("SHARDRUN_CALIBRATION");
  if (const std::string path = set == nullptr ? "" : set; !path.empty())
    return path == "none" ? "" : path;
  const std::string folder = cache_folder();
  return folder.empty() ? "" : str(folder, "/", backend().measured_name, ".json");
}

namespace {

/// A core's figures say nothing of a GPU, nor the other way round.
Cluster measured_of_backend(Cluster cluster, const std::string& origin) {
  for (const Backend* other : {&cpu_backend(), cuda_backend()}) {
    SR_REQUIRE(other == nullptr || other == &backend() || cluster.name != other->measured_name,
               invalid_input, origin, ": was measured with --device ", other->name,
               " and this is --device ", backend().name);
  }
  return cluster;
}

/// A file has as many nodes as its field says, whatever built-in cluster has its name.
Cluster with_devices_for(Cluster cluster, const std::string& file, int64_t ranks) {
  SR_REQUIRE(file.empty() || cluster.oversubscribes || ranks <= cluster.size(), invalid_input, file,
             ": fields 'nodes' and 'devices' are ", cluster.nodes, " and ", cluster.devices,
             ", wanted ", ranks, " devices for as many ranks; let 'nodes' be ",
             (ranks + cluster.devices - 1) / cluster.devices);
  return cluster;
}

}  // namespace

Cluster find_cluster(const std::string& text, int64_t ranks) {
  if (!text.empty() && text != "host") {
    const Cluster named = with_devices_for(load_cluster(text), cluster_file_in(text), ranks);
    // Plans for GPUs are also looked at without one.
    return backend().name == "cpu" ? named : measured_of_backend(named, text);
  }
  const std::string path = calibration_path();
  std::error_code missing;
  if (path.empty() || !std::filesystem::exists(path, missing)) return backend().cluster(ranks);
  try {
    return with_devices_for(measured_of_backend(read_cluster_file(path), path), path, ranks);
  } catch (const Error& e) {
    throw Error(e.kind(), std::string(e.what()) +
                              "; 'shardrun calibrate' writes the file anew, and "
                              "SHARDRUN_CALIBRATION=none leaves it aside");
  }
}

}  // namespace shardrun
