// MeshTables: a mesh of a cluster, and what searches on it find out and share.
#pragma once

#include "planner/reshard/reshard_table.h"
#include "planner/space/strategy_table.h"

namespace shardrun {

struct MeshTables {
  /// Both must outlive this.
  MeshTables(const Mesh& its_mesh, const Cluster& its_cluster)
      : mesh(its_mesh),
        cluster(its_cluster),
        reshard_times(its_mesh, its_cluster),
        strategies(its_mesh, its_cluster) {}
  const Mesh& mesh;
  const Cluster& cluster;
  ReshardTimes reshard_times;
  StrategyTable strategies;
};

}  // namespace shardrun
