// FactoredBound: the bound of planner/solver/bound.h for FactoredProblems, with solutions.
#pragma once

#include <utility>
#include <vector>

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
  struct Node {
    size_t size = 0;                         // strategies
    size_t costs = 0;                        // where its costs begin
    size_t first = 0, middle = 0, last = 0;  // arcs to earlier nodes, then to later ones
  };
  /// An edge as one of its nodes sees it. Half as long as with 64 bits each, so that those of a
  /// step stay in cache.
  struct Arc {
    double scale = 1;  // times the table
    int other = 0;
    uint32_t size = 0;                      // the other's strategies
    uint32_t names = 0;                     // rows of the table: the other's
    uint32_t width = 0;                     // columns: own names, padded with infinity
    uint32_t table = 0;                     // in tables_
    uint32_t message = 0;                   // own: moved from the edge to the node, by strategy
    uint32_t reversed = 0;                  // the other's
    uint32_t own_name = 0, other_name = 0;  // by strategy, in names_
  };
  /// Of a matrix where its padded copies lie, by rows of one side and of the other.
  struct Tables {
    size_t by_row = 0, by_column = 0;
  };
  void lay_out(const FactoredProblem& problem);
  void add_arcs(const FactoredProblem& problem);
  Tables add_tables(const FactoredProblem::Matrix& matrix);
  void collect(const Arc& arc, size_t size);
  void visit(size_t node, bool forward);
  double least_costs() const;

  std::vector<int> order_;  // nodes by place
  std::vector<Node> nodes_;
  std::vector<Arc> arcs_;                      // of nodes in order
  std::vector<std::pair<int, size_t>> lower_;  // by edge: its earlier node, and the arc there
  std::vector<size_t> first_message_;          // by edge: from's strategies, then to's
  std::vector<float> tables_;
  std::vector<uint16_t> names_;
  std::vector<double> theta_, messages_;  // present costs of nodes, and what edges gave to them
  std::vector<std::vector<double>> slack_;
  Solution decoded_;
  std::vector<double> least_, out_, gathered_, given_;
  double sweep_work_ = 0;  // half of a sweep's
  double bound_, bound_before_;
};

}  // namespace shardrun
