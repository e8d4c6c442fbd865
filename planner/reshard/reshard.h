// Resharding: the cheapest sequence of collectives that turns one Sharding of a value into another.
#pragma once

#include <vector>

#include "graph/program.h"
#include "graph/sharding.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// One collective over `axes` of the mesh, and the Sharding that it leaves.
/// all_gather undoes the innermost cuts of `dim`, and may undo those of dims before it in the same
/// call: every member's piece is then put in its place. reduce_scatter and slice append cuts to
/// `dim`; all_to_all moves the innermost cut of `dim` behind the cuts of `to_dim`.
struct ReshardStep {
  Collective::Kind kind = Collective::Kind::all_gather;
  std::vector<int> axes;
  int dim = 0, to_dim = 0;
  ReduceOp op = ReduceOp::sum;
  Sharding after;
  double seconds = 0;
};

/// Dijkstra over shardings. Empty if from == to. Deterministic: ties go to the first found.
std::vector<ReshardStep> cheapest_reshard(const TensorType& type, const Sharding& from,
                                          const Sharding& to, const Mesh& mesh,
                                          const Cluster& cluster);
double reshard_seconds(const std::vector<ReshardStep>& steps);

/// `step`, taken from a value of `shape` in sharding `before`, as `rank` runs it: its group and
/// boxes.
Collective collective_of(const ReshardStep& step, const Shape& shape, const Sharding& before,
                         const Mesh& mesh, int64_t rank);

}  // namespace shardrun
