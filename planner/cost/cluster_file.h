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

/// "p100", "v100-32", "a100-40", "a100-80", "h100", "h200", "tpu-v3": one node of eight.
std::vector<std::string> builtin_clusters();
/// A built-in cluster by its name, or so many nodes of it: "h100:4". Throws invalid_input.
Cluster builtin_cluster(const std::string& name);

/// Throws invalid_input if the file cannot be read, and as parse_cluster does.
Cluster read_cluster_file(const std::string& path);

/// The file that --cluster's `text` names, without factors; "": it names a built-in cluster.
std::string cluster_file_in(const std::string& text);

/// A file if its name has a '/' or ends in .json, else built in. Behind the name may stand factors
/// of its figures: "a100-80:2,memory=2x,within=2x" is two nodes of devices with twice the memory
/// whose links in a node carry twice the bytes. The fields: memory, flops (of every type),
/// memory_bandwidth, within, between (bandwidths). Its name is then `text`, and `sources` say what
/// was multiplied. Throws invalid_input: also for a field that is none of these, one that is there
/// twice, a factor that is not above 0, and a cluster that was measured, and for 'host'.
Cluster load_cluster(const std::string& text);

}  // namespace shardrun
