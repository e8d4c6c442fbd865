// TreeDescent: better solutions of a FactoredProblem by optimal moves of whole trees.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "planner/solver/descent/forest.h"
#include "planner/solver/factored_problem.h"

namespace shardrun {

struct TreeDescentOptions {
  uint64_t seed = 0;
  double seconds = 0.1;      // of work (planner/solver/deadline.h) at most
  int patience = 40;         // ends after so many moves that gained nothing
  int64_t memory_limit = 0;  // of claims at once; 0: none
  double byte_seconds = 0;   // what a byte beyond the limit costs, at the fullest time
};

/// A move chooses anew, exactly, all nodes of a forest with the others as they are (Hamze and de
/// Freitas 2004, "From fields to trees"), as LocalSearch does on dense Problems; here an edge is
/// looked at by rows and columns, so nodes may have hundreds of strategies.
class TreeDescent {
 public:
  /// `problem` must outlive this.
  explicit TreeDescent(const FactoredProblem& problem);

  /// Seconds of a solution, and of its bytes beyond the limit. Each forbidden choice comes to a
  /// thousand million.
  double cost(const Solution& solution, const TreeDescentOptions& options) const;
  /// The cheapest that was seen: `start`, or what moves make of it. While it does not fit, bytes
  /// have a price at the times that are too full. Deterministic in its arguments.
  Solution improve(Solution start, const TreeDescentOptions& options) const;

 private:
  using Prices = std::vector<std::vector<double>>;  // by node, strategy; empty: none
  struct Arc {
    std::vector<int> edges;  // all between the two
    int other = 0;
  };
  /// Of a child the least by its names and by the parent's, and the choices that come to it.
  struct Message {
    std::vector<double> least, out;
    std::vector<int> who, best;
  };
  std::vector<int> order_of(int round, std::mt19937_64& random) const;
  std::vector<double> costs_given_rest(int node, const Forest& forest, const Solution& solution,
                                       const Prices& prices) const;
  const Arc& arc(int from, int to) const;
  void add_message(int child, const std::vector<double>& costs, const Arc& up,
                   std::vector<double>& above, std::vector<int>& choice, Message& message) const;
  void move(Solution& solution, const std::vector<int>& order, const Prices& prices) const;
  Prices priced(const std::vector<double>& by_time) const;

  const FactoredProblem& problem_;
  std::vector<std::vector<Arc>> arcs_;        // by node
  std::vector<std::vector<int>> neighbours_;  // the same, numbers only
  std::vector<int> by_place_;
};

}  // namespace shardrun
