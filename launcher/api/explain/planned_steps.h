// PlannedSteps: for every step of a rank's Program, how its operands lie and its predicted time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

struct PlannedStep {
  double seconds = 0;  // of a collective, on the largest shard
  /// Shardings of operands and results; of an exchange, one is what its node takes or makes.
  std::vector<std::string> in, out;
};

/// `graph`, `plan`, `cluster` and `program`, which was made from them, live as long as this.
class PlannedSteps {
 public:
  PlannedSteps(const Graph& graph, const Plan& plan, const Cluster& cluster,
               const Program& program);
  PlannedStep of(size_t step) const;

 private:
  PlannedStep of_kernel(const Step& step) const;
  PlannedStep of_collective(const Step& step) const;
  PlannedStep of_exchange(const Step& step) const;

  const Graph& graph_;
  const Plan& plan_;
  const Cluster& cluster_;
  const Program& program_;
  std::map<std::string, ValueId> values_;
  std::map<std::string, NodeId> nodes_;
  std::vector<Sharding> shardings_;  // per buffer
};

}  // namespace shardrun
