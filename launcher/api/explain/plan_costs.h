// PlanCosts: a plan's predicted step, node by node and by what takes it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "planner/cost/cluster.h"

namespace shardrun {

/// Seconds of a step, all its micro-batches, by the planner's own prices of each node's kernel and
/// collective; what collectives in one call take less, and what is hidden, are parts of their own.
/// A Program runs several nodes as one kernel, and has some of no node: Plan::seconds is of these.
struct PlanCosts {
  struct Node {
    double compute = 0;     // the largest rank's kernel
    double exchange = 0;    // of windows, blocks and rows, before and after it
    double resharding = 0;  // of its operands, where it is the first that wants them so
  };
  std::vector<Node> nodes;              // by the Graph's node
  std::map<std::string, double> parts;  // "compute", "all_gather", "sums in one call", …
};

/// `plan` is for `graph`.
PlanCosts plan_costs(const Graph& graph, const Plan& plan, const Cluster& cluster);

}  // namespace shardrun
