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
  /// Of a collective, on the largest shard; of one of several in one call, its fraction of that, by
  /// bytes.
  double seconds = 0;
  /// Shardings of operands and results; of an exchange, one is what its node takes or makes.
  std::vector<std::string> in, out;
};

/// Seconds; hidden: of collectives, behind kernels.
struct PlannedTimes {
  double compute = 0, comm = 0, hidden = 0;
  double step() const { return compute + comm - hidden; }
};

/// `graph`, `plan`, `cluster` and `program`, which was made from them, live as long as this.
class PlannedSteps {
 public:
  PlannedSteps(const Graph& graph, const Plan& plan, const Cluster& cluster,
               const Program& program);
  PlannedStep of(size_t step) const;
  /// Seconds of all kernels of a training step, as often as each runs.
  double seconds_of_kernels() const;
  /// Of a training step by these steps. The planner's search knows nodes, not which of them are one
  /// kernel; of a sum which others could be of its call (planner/reshard/sum_price.h), not which
  /// ones are; and not what overlaps with kernels (explain/critical_path.h).
  PlannedTimes times() const;

 private:
  PlannedStep of_kernel(const Step& step) const;
  PlannedStep of_collective(size_t step) const;
  double kernel_seconds_of(const Step& kernel) const;
  double collective_seconds_of(const Step& collective, double call) const;
  /// Of all that the call of this step sums; 0: of it alone.
  double bytes_of_call(size_t step) const;
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
