// Clusters as JSON files, and those that are built in.
#pragma once

#include <string>
#include <vector>

#include "planner/cost/cluster.h"

namespace shardrun {

/// What planner/cost/clusters/h100.json shows by example. Wanted are "name", "devices", "flops",
/// "memory_bandwidth" and "within"; everything else has the default of its struct, but "between" is
/// wanted with several "nodes". Throws invalid_input naming origin, field, what it got and what it
/// wanted; a field that is not known is such an error too.
Cluster parse_cluster(const std::string& text, const std::string& origin);
/// Read back equal.
std::string cluster_json(const Cluster& cluster);

/// "v100-32", "a100-80", "h100", "h200": one node of eight.
std::vector<std::string> builtin_clusters();
/// A built-in cluster by its name, or so many nodes of it: "h100:4". Throws invalid_input.
Cluster builtin_cluster(const std::string& name);

/// Throws invalid_input if the file cannot be read, and as parse_cluster does.
Cluster read_cluster_file(const std::string& path);

/// A file if `text` has a '/' or ends in .json, else built in.
Cluster load_cluster(const std::string& text);

}  // namespace shardrun
