// Bound: a lower bound of a Problem by message passing, with solutions and reduced costs.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "planner/solver/messages.h"

namespace shardrun {

/// An edge as one of its nodes sees it.
struct BoundArc {
  int other = 0;
  size_t table = 0;     // rows: the other's strategies; columns: own, with infinity up to the width
  size_t message = 0;   // own: subtracted from the edge's costs
  size_t reversed = 0;  // the other's
  int edge = 0;
};

/// Sequential reweighted message passing: TRW-S (Kolmogorov 2006, "Convergent tree-reweighted
/// message passing for energy minimization") in the form of SRMP (Kolmogorov 2015). Costs are moved
/// between nodes and edges without changing any solution's cost, so that the sum of all minima, a
/// lower bound, never falls. Memory is priced by the caller with add_cost (a Lagrangian), not known
/// here. Every node must have a strategy and every strategy a finite partner along each edge.
class Bound : public MessagePassing<BoundArc> {
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

 private:
  void collect(const BoundArc& arc, const Node& node);
  void tell_pairs(size_t i, const PairVisitor& tell);
  double sweep_once(const PairVisitor* tell);

  std::vector<double> tables_, pairs_;
};

}  // namespace shardrun
