// FactoredBound: the bound of planner/solver/bound.h for FactoredProblems, with solutions.
#pragma once

#include "planner/solver/factored_problem.h"

namespace shardrun {

/// Sequential reweighted message passing (see planner/solver/bound.h for the sources), edge by edge
/// over rows and columns instead of strategies: the least message of the strategies that share a
/// row is all that the edge needs to know. Every node must have a strategy, of finite cost, and
/// every strategy a finite partner along each edge (prune_impossible).
class FactoredBound {
 public:
  explicit FactoredBound(const FactoredProblem& problem);

  /// Goes on with fewer strategies: `less` is restricted(the problem so far, kept). Bounds hold for
  /// it.
  void restrict(const FactoredProblem& less, const Kept& kept);

  /// One forward and one backward sweep. Returns the bound.
  double sweep();
  /// Adds to a node's costs (a changed price of memory). The bound holds again after the next
  /// sweep.
  void add_cost(int node, const std::vector<double>& cost);
  /// Built during the last sweep, from the priced costs.
  const Solution& decoded() const { return decoded_; }
  /// Of the last sweep's forward half: a solution with that strategy costs at least
  /// bound_before_sweep() + slack.
  const std::vector<double>& slack(int node) const { return slack_[static_cast<size_t>(node)]; }
  double bound_before_sweep() const { return bound_before_; }

 private:
  struct Side {
    int node = 0;
    const std::vector<uint16_t>* name = nullptr;  // row or column by strategy
    size_t names = 0;
    const float* table = nullptr;  // by this side's name, then by the other's
    std::vector<double> own;       // moved from the edge to the node, by strategy
  };
  struct Messages {
    double scale = 1;
    Side low, high;           // by place
    bool low_is_from = true;  // of the problem's edge
  };
  const std::vector<double>& collected(const Side& to, const Side& from, double scale);
  void visit(size_t node, bool forward);

  std::vector<int> order_;
  std::vector<std::vector<double>> theta_, slack_;
  std::vector<Messages> edges_;
  std::vector<std::vector<int>> earlier_, later_;
  Solution decoded_;
  std::vector<double> least_, out_, gathered_, given_;
  double bound_, bound_before_;
};

/// Changes one node's choice at a time for as long as that gains. `prices`, per node and strategy,
/// is added to the costs if it is given.
void descend(const FactoredProblem& problem, Solution& solution,
             const std::vector<std::vector<double>>* prices = nullptr);

}  // namespace shardrun
