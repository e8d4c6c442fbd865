// Coordinate descent: better solutions of a FactoredProblem, one node's choice at a time.
#pragma once

#include <span>
#include <vector>

#include "base/at.h"
#include "planner/solver/deadline.h"
#include "planner/solver/factored_problem.h"

namespace shardrun {

/// What a node's choices cost along its edges while all other nodes stay.
class EdgeCosts {
 public:
  /// `problem` must outlive this.
  explicit EdgeCosts(const FactoredProblem& problem);

  using Edges = std::span<const FactoredProblem::Edge* const>;
  Edges edges(size_t node) const {
    return Edges(edges_).subspan(first_[node], first_[node + 1] - first_[node]);
  }
  size_t listed() const { return edges_.size(); }  // of all nodes: twice the problem's

  /// Adds to the costs of some of a node's choices, the k-th of which is choice(k), what the edges
  /// cost with the others' choices.
  template <class Choice>
  void add(size_t node, const Solution& solution, const Choice& choice,
           std::vector<double>& cost) const {
    for (const FactoredProblem::Edge* edge : edges(node)) {
      const FactoredProblem::Matrix& m = *edge->matrix;
      const bool is_from = at(edge->from) == node;
      const size_t other = at(solution[at(is_from ? edge->to : edge->from)]);
      const float* row = is_from ? m.transposed.data() + edge->column[other] * m.rows
                                 : m.cost.data() + edge->row[other] * m.columns;
      const uint16_t* name = (is_from ? edge->row : edge->column).data();
      count_work(kSearchWork.named * static_cast<double>(cost.size()));
      for (size_t k = 0; k < cost.size(); ++k)
        cost[k] += edge->scale * static_cast<double>(row[name[choice(k)]]);
    }
  }

 private:
  std::vector<size_t> first_;  // by node: where its edges begin
  std::vector<const FactoredProblem::Edge*> edges_;
};

/// Changes one node's choice at a time for as long as that gains. `edge_costs`: the problem's;
/// `prices`, per node and strategy, is added to the costs if it is given.
void descend(const FactoredProblem& problem, const EdgeCosts& edge_costs, Solution& solution,
             const std::vector<std::vector<double>>* prices = nullptr);

}  // namespace shardrun
