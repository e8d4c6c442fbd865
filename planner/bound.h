// A lower bound of a Problem by message passing, with solutions and reduced costs as by-products.
#pragma once

#include <vector>

#include "planner/problem.h"

namespace shardrun {

/// Sequential reweighted message passing: TRW-S (Kolmogorov 2006, "Convergent tree-reweighted
/// message passing for energy minimization") in the form of SRMP (Kolmogorov 2015). Costs are moved
/// between nodes and edges without changing any solution's cost, so that the sum of all minima, a
/// lower bound, never falls. Memory is priced by the caller with add_cost (a Lagrangian), not known
/// here. Every node must have a strategy and every strategy a finite partner along each edge.
class Bound {
 public:
  explicit Bound(const Problem& problem);

  /// One forward and one backward sweep. Returns the bound.
  double sweep();
  double bound() const { return bound_; }

  /// Adds to a node's costs (a changed price of memory). The bound holds again after the next
  /// sweep.
  void add_cost(int node, const std::vector<double>& cost);

  /// A good solution for the priced costs, built during the last sweep.
  const Solution& decoded() const { return decoded_; }

  /// For each strategy of a node, found in the last sweep's forward half: a solution that uses it
  /// costs at least bound_before_sweep() + slack.
  const std::vector<double>& slack(int node) const { return slack_[static_cast<size_t>(node)]; }
  double bound_before_sweep() const { return bound_before_; }

 private:
  struct Side {
    int edge = 0;
    bool is_from = false;
  };
  struct Messages {
    std::vector<double> cost, transposed;
    std::vector<double> from, to;  // subtracted from the edge's costs
    int low = 0, high = 0;
  };
  const std::vector<double>& collected(const Side& side);

  size_t count_;
  std::vector<std::vector<double>> theta_;         // nodes' present costs
  std::vector<Messages> edges_;                    // `from` is the node of lower number
  std::vector<std::vector<int>> earlier_, later_;  // edges to lower and higher nodes
  std::vector<std::vector<double>> slack_;
  Solution decoded_;
  std::vector<double> scratch_;
  double bound_ = -kInfeasible, bound_before_ = -kInfeasible;
};

}  // namespace shardrun
