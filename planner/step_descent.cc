// Moves of a node and those around it, judged by the step.
#include "planner/step_descent.h"

#include <algorithm>

#include "base/at.h"

namespace shardrun {
namespace {

/// Relative: a step that is less than that shorter is no shorter.
constexpr double kShorter = 1e-5;
/// Nodes around that choose anew in a move, and how often one of them, at most.
constexpr size_t kAround = 200;
constexpr int kTurns = 2;

/// The problem with only what the longest chain takes.
FactoredProblem of_chain(const FactoredProblem& problem, const ChainFractions& fractions) {
  FactoredProblem out = problem;
  for (size_t i = 0; i < out.nodes.size(); ++i) {
    for (double& cost : out.nodes[i].cost) {
      if (cost != kInfeasible) cost *= fractions.kernels[i];
    }
  }
  for (FactoredProblem::Edge& edge : out.edges) {
    if (!edge.matrix->forbids) edge.scale *= fractions.reshardings[at(edge.from)];
  }
  return out;
}

class Moves {
 public:
  explicit Moves(const FactoredProblem& problem)
      : problem_(problem), edges_(problem.nodes.size()), turns_(problem.nodes.size()) {
    for (const FactoredProblem::Edge& edge : problem.edges) {
      edges_[at(edge.from)].push_back(&edge);
      edges_[at(edge.to)].push_back(&edge);
    }
  }

  Solution move(Solution solution, size_t node, int choice) {
    solution[node] = choice;
    std::fill(turns_.begin(), turns_.end(), 0);
    around_.clear();
    add_around(node);
    for (size_t k = 0; k < around_.size() && k < kAround; ++k) {
      const size_t other = around_[k];
      if (other == node || turns_[other] == kTurns) continue;
      const int best = cheapest(solution, other);
      if (best == solution[other]) continue;
      solution[other] = best;
      ++turns_[other];
      add_around(other);
    }
    return solution;
  }

 private:
  void add_around(size_t node) {
    for (const FactoredProblem::Edge* edge : edges_[node])
      around_.push_back(at(at(edge->from) == node ? edge->to : edge->from));
  }

  /// Given all others. What it has, where nothing is cheaper.
  int cheapest(const Solution& solution, size_t node) {
    costs_ = problem_.nodes[node].cost;
    for (const FactoredProblem::Edge* edge : edges_[node]) {
      const bool from = at(edge->from) == node;
      const size_t other = at(solution[at(from ? edge->to : edge->from)]);
      for (size_t c = 0; c < costs_.size(); ++c)
        costs_[c] += from ? edge->cost(c, other) : edge->cost(other, c);
    }
    const auto least = std::min_element(costs_.begin(), costs_.end());
    const int has = solution[node];
    return *least < costs_[at(has)] * (1 - kRounding) ? static_cast<int>(least - costs_.begin())
                                                      : has;
  }

  const FactoredProblem& problem_;
  std::vector<std::vector<const FactoredProblem::Edge*>> edges_;  // by node
  std::vector<int> turns_;
  std::vector<size_t> around_;
  std::vector<double> costs_;
};

}  // namespace

Solution step_descent(const FactoredProblem& problem, const StepModel& step, Solution start,
                      int64_t most) {
  Moves moves(problem);
  FactoredProblem chain;
  double seconds = 0, chain_seconds = 0;
  const auto look = [&] {
    const auto [its, fractions] = step.chain(start);
    seconds = its;
    chain = of_chain(problem, fractions);
    chain_seconds = raw_cost(chain, start);
  };
  look();
  for (bool moved = true; moved && most > 0;) {
    moved = false;
    for (size_t i = 0; i < start.size() && most > 0; ++i) {
      const std::vector<double>& costs = problem.nodes[i].cost;
      for (size_t c = 0; c < costs.size() && most > 0; ++c) {
        if (start[i] == static_cast<int>(c) || costs[c] == kInfeasible) continue;
        Solution next = moves.move(start, i, static_cast<int>(c));
        if (raw_cost(chain, next) >= chain_seconds * (1 - kShorter)) continue;
        --most;
        if (step.seconds(next) >= seconds * (1 - kShorter)) continue;
        start = std::move(next);
        moved = true;
        look();
      }
    }
  }
  return start;
}

}  // namespace shardrun
