// FactoredBound: the bound of planner/solver/bound.h for FactoredProblems, with solutions.
#pragma once

#include <utility>
#include <vector>

#include "planner/solver/factored_problem.h"
#include "planner/solver/messages.h"

namespace shardrun {

/// An edge as one of its nodes sees it. Half as long as with 64 bits each, so that those of a step
/// stay in cache.
struct FactoredArc {
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

/// Sequential reweighted message passing (see planner/solver/bound.h for the sources), edge by edge
/// over rows and columns instead of strategies: the least message of the strategies that share a
/// row is all that the edge needs to know. Every node must have a strategy, of finite cost, and
/// every strategy a finite partner along each edge (prune_impossible).
class FactoredBound : public MessagePassing<FactoredArc> {
 public:
  explicit FactoredBound(const FactoredProblem& problem);

  /// Goes on with fewer strategies: `less` is restricted(the problem so far, kept). Bounds hold for
  /// it.
  void restrict(const FactoredProblem& less, const Kept& kept);

  /// One forward and one backward sweep. Returns the bound. `decodes`: finds decoded() and slacks
  /// anew.
  double sweep(bool decodes = true);
  /// Where costs were added, or strategies removed, since the last sweep: the bound as things
  /// stand, which bound_before_sweep() then is behind the next one.
  void find_bound();

 private:
  /// Of a matrix where its padded copies lie, by rows of one side and of the other.
  struct Tables {
    size_t by_row = 0, by_column = 0;
  };
  void lay_out(const FactoredProblem& problem);
  void add_arcs(const FactoredProblem& problem);
  Tables add_tables(const FactoredProblem::Matrix& matrix);
  void collect(const FactoredArc& arc, size_t size);
  void visit_node(int node, bool forward, bool decodes);

  std::vector<int> order_;                     // nodes by place
  std::vector<std::pair<int, size_t>> lower_;  // by edge: its earlier node, and the arc there
  std::vector<size_t> first_message_;          // by edge: from's strategies, then to's
  std::vector<float> tables_;
  std::vector<uint16_t> names_;
  std::vector<double> least_, out_;
  double sweep_work_ = 0;  // half of a sweep's
};

}  // namespace shardrun
