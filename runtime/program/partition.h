// Partition: Graph and Plan into every rank's Program.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

struct Skeleton;

/// Extents of dims that are cut, with the axes that cut them, outermost first.
using Cuts = std::set<std::pair<int64_t, Axes>>;

/// A Graph cut as a Plan says. Local nodes with local shapes and localised attributes, and the
/// collectives between shardings. A value resharded to one Sharding for several users is resharded
/// once. What is the same on all ranks is found once. Collectives stand where what they move is
/// made or read; order_collectives moves them. Buffers are not placed yet.
class Partition {
 public:
  /// `graph` and `plan` must live as long as this.
  Partition(const Graph& graph, const Plan& plan, const Cluster& cluster);
  ~Partition();
  Program program(int64_t rank) const;
  const Cuts& cuts() const { return cuts_; }                // all there are, the same on every rank
  Collectives collectives() const { return collectives_; }  // the cluster's
  /// By buffer of the Programs: the most bytes that it has on any rank.
  const std::vector<int64_t>& most_bytes() const { return most_bytes_; }

 private:
  std::unique_ptr<const Skeleton> skeleton_;
  Cuts cuts_;
  Collectives collectives_;
  std::vector<int64_t> most_bytes_;
};

}  // namespace shardrun
