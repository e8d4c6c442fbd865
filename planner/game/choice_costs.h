// ChoiceCosts: what a FactoredProblem's solution costs while some of its choices change.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/solver/factored_problem.h"

namespace shardrun {

/// Nodes are given or free. Given ones are chosen from outside; free ones take what is cheapest
/// given these, of equal choices the one that holds the fewest bytes. Exact where free nodes form
/// stars: a value that no node makes, and the hubs that redistribute it. Costs are those of the
/// problem's own tables; what did not change is not looked at again, and the sum does not depend on
/// what was chosen before.
class ChoiceCosts {
 public:
  /// `given`: by node. Of the others those from `first_hub` on are leaves of stars. `problem` must
  /// outlive this. Throws internal if two leaves, or two roots, are neighbours.
  ChoiceCosts(const FactoredProblem& problem, const std::vector<bool>& given, size_t first_hub,
              bool counts_bytes);

  void choose(int node, int strategy);
  /// Of the whole solution; kInfeasible if a choice is forbidden.
  double seconds();
  /// The most that claims hold at one time; 0 if bytes do not count. After seconds().
  int64_t peak_bytes();
  /// After seconds().
  const Solution& solution() const { return solution_; }

 private:
  using Edges = std::vector<const FactoredProblem::Edge*>;
  struct Star {
    int root = -1;  // -1: a hub of what nodes make
    std::vector<int> leaves;
    std::vector<Edges> to_root;  // by leaf
  };
  void update(Star& star, double& cost);
  void own_costs(int node, std::vector<double>& out) const;
  void best_leaf(int leaf, const std::vector<double>& own, const Edges& to_root, size_t at_root,
                 double& least, int& choice) const;
  void take(int node, int strategy);
  double held(int node, size_t strategy) const {
    return held_[static_cast<size_t>(node)][strategy];
  }

  const FactoredProblem& problem_;
  bool counts_bytes_ = false;
  std::vector<int> star_of_;             // by node; -1: given
  std::vector<std::vector<int>> edges_;  // by node
  std::vector<Star> stars_;
  std::vector<std::vector<double>> held_;  // by free node, choice: bytes x times
  Solution wanted_, solution_;             // as chosen, and as counted
  std::vector<int> changed_;
  std::vector<bool> is_changed_, is_stale_;  // by node, by star
  std::vector<double> node_cost_, edge_cost_, star_cost_;
  std::vector<int64_t> change_;  // of bytes, by time
  bool stale_bytes_ = true;
  int64_t peak_ = 0;
};

}  // namespace shardrun
