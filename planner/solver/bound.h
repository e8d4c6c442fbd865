// Bound: a lower bound of a Problem by message passing, with solutions and reduced costs.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "planner/solver/problem.h"

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

  /// Called for the pairs of an edge's strategies: slack[b * stride + a] for strategy a of `node`
  /// and b of `other`, whose number is the higher one. `edge` is its place in the Problem.
  using PairVisitor =
      std::function<void(int edge, int node, int other, const double* slack, size_t stride)>;
  /// A sweep that tells in its backward half how much more than bound_before_sweep() a solution
  /// with two strategies costs at least.
  double sweep(const PairVisitor& visit);
  double bound() const { return bound_; }

  /// Adds to a node's costs (a changed price of memory). The bound holds again after the next
  /// sweep.
  void add_cost(int node, const std::vector<double>& cost);

  /// A good solution for the priced costs, built during the last sweep.
  const Solution& decoded() const { return decoded_; }

  /// For each strategy of a node, found in the last sweep's forward half: a solution that uses it
  /// costs at least bound_before_sweep() + slack.
  std::span<const double> slack(int node) const {
    const Node& n = nodes_[static_cast<size_t>(node)];
    return {slack_.data() + n.costs, n.size};
  }
  /// Minus infinity, which makes no such claim, if costs were added before that sweep.
  double bound_before_sweep() const { return bound_before_; }

 private:
  struct Node {
    size_t size = 0;                         // strategies
    size_t width = 0;                        // the same rounded up: rows of tables
    size_t costs = 0;                        // where its costs and slacks begin
    size_t first = 0, middle = 0, last = 0;  // arcs to lower nodes, then to higher ones
  };
  struct Arc {
    int other = 0;
    size_t table = 0;  // rows: the other's strategies; columns: own, with infinity up to the width
    size_t message = 0;   // own: subtracted from the edge's costs
    size_t reversed = 0;  // the other's
    int edge = 0;
  };
  void collect(const Arc& arc, const Node& node);
  void visit(size_t i, bool forward, const PairVisitor* tell = nullptr);
  void tell_pairs(size_t i, const PairVisitor& tell);
  double sweep_once(const PairVisitor* tell);

  std::vector<Node> nodes_;
  std::vector<Arc> arcs_;
  std::vector<double> tables_, messages_;
  std::vector<double> theta_, slack_;  // nodes' present costs
  Solution decoded_;
  std::vector<double> collected_, given_, pairs_;
  double bound_ = -kInfeasible, bound_before_ = -kInfeasible;
};

}  // namespace shardrun
