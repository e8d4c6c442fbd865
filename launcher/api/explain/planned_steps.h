// PlannedSteps: for every step of a rank's Program, how its operands lie and its predicted time.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/plan.h"
#include "graph/program.h"
#include "planner/cost/cluster.h"

namespace shardrun {

struct PlannedStep {
  /// Of a collective, on the largest shard; of one of several in one call, its fraction of that, by
  /// bytes.
  double seconds = 0;
  /// Shardings of operands and results; of an exchange, one is what its node takes or makes.
  std::vector<std::string> in, out;
};

/// `graph`, `plan`, `cluster` and `program`, which was made from them, live as long as this.
class PlannedSteps {
 public:
  PlannedSteps(const Graph& graph, const Plan& plan, const Cluster& cluster,
               const Program& program);
  PlannedStep of(size_t step) const;
  /// Of a training step: what collectives that are one call (Step::call) would take more each
  /// by itself, as the planner's search counts them.
  double seconds_saved() const;

 private:
  PlannedStep of_kernel(const Step& step) const;
  PlannedStep of_collective(size_t step) const;
  double alone(const Step& collective) const;     // seconds by itself
  double bytes_of(const Step& collective) const;  // of the largest shard before it
  /// Of the call of `size` steps from `first` on: its seconds, and those steps' bytes.
  std::pair<double, double> call(size_t first, size_t size) const;
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
