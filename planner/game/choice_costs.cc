// Keeping a solution's costs.
#include "planner/game/choice_costs.h"

#include <algorithm>

#include "base/at.h"
#include "base/error.h"

namespace shardrun {

ChoiceCosts::ChoiceCosts(const FactoredProblem& problem, const std::vector<bool>& given,
                         size_t first_hub, bool counts_bytes)
    : problem_(problem),
      counts_bytes_(counts_bytes),
      star_of_(problem.nodes.size(), -1),
      edges_(problem.nodes.size()),
      held_(problem.nodes.size()),
      wanted_(problem.nodes.size(), 0),
      solution_(problem.nodes.size(), 0),
      is_changed_(problem.nodes.size(), false),
      node_cost_(problem.nodes.size(), 0),
      edge_cost_(problem.edges.size(), 0) {
  const auto is_leaf = [&](int i) { return !given[at(i)] && at(i) >= first_hub; };
  const auto is_root = [&](int i) { return !given[at(i)] && at(i) < first_hub; };
  for (size_t i = 0; i < first_hub; ++i) {
    if (given[i]) continue;
    star_of_[i] = static_cast<int>(stars_.size());
    stars_.push_back({static_cast<int>(i), {}, {}});
  }
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const FactoredProblem::Edge& edge = problem.edges[e];
    edges_[at(edge.from)].push_back(static_cast<int>(e));
    edges_[at(edge.to)].push_back(static_cast<int>(e));
    if (given[at(edge.from)] || given[at(edge.to)]) continue;
    const int root = is_root(edge.from) ? edge.from : edge.to;
    const int leaf = root == edge.from ? edge.to : edge.from;
    SR_REQUIRE(is_root(root) && is_leaf(leaf), internal, "free nodes '",
               problem.nodes[at(edge.from)].name, "' and '", problem.nodes[at(edge.to)].name,
               "' form no star");
    star_of_[at(leaf)] = star_of_[at(root)];
  }
  for (size_t i = first_hub; i < given.size(); ++i) {
    if (given[i]) continue;
    if (star_of_[i] < 0) {
      star_of_[i] = static_cast<int>(stars_.size());
      stars_.emplace_back();
    }
    Star& star = stars_[at(star_of_[i])];
    star.leaves.push_back(static_cast<int>(i));
    Edges& edges = star.to_root.emplace_back();
    for (int e : edges_[i]) {
      const FactoredProblem::Edge& edge = problem.edges[at(e)];
      if (star.root >= 0 && (edge.from == star.root || edge.to == star.root))
        edges.push_back(&edge);
    }
  }
  int64_t times = 0;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const FactoredProblem::Node& node = problem.nodes[i];
    held_[i].assign(given[i] ? 0 : node.cost.size(), 0);
    for (const Problem::Claim& claim : node.claims) {
      double length = 0;
      for (const Problem::Interval& live : claim.live) {
        length += live.last - live.first + 1;
        times = std::max<int64_t>(times, live.last + 2);
      }
      for (size_t a = 0; a < held_[i].size(); ++a)
        held_[i][a] += length * static_cast<double>(claim.bytes[a]);
    }
  }
  change_.assign(static_cast<size_t>(times), 0);
  star_cost_.assign(stars_.size(), 0);
  is_stale_.assign(stars_.size(), true);
  // As if all had been chosen anew: what nothing holds yet has no bytes to give back.
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    solution_[i] = -1;
    if (!given[i]) continue;
    is_changed_[i] = true;
    changed_.push_back(static_cast<int>(i));
  }
}

void ChoiceCosts::choose(int node, int strategy) {
  if (wanted_[at(node)] == strategy) return;
  wanted_[at(node)] = strategy;
  if (is_changed_[at(node)]) return;
  is_changed_[at(node)] = true;
  changed_.push_back(node);
}

/// Counts the bytes of another choice.
void ChoiceCosts::take(int node, int strategy) {
  const int before = std::exchange(solution_[at(node)], strategy);
  if (before == strategy || !counts_bytes_) return;
  for (const Problem::Claim& claim : problem_.nodes[at(node)].claims) {
    const int64_t more = claim.bytes[at(strategy)] - (before < 0 ? 0 : claim.bytes[at(before)]);
    if (more == 0) continue;
    stale_bytes_ = true;
    for (const Problem::Interval& live : claim.live) {
      if (live.first > live.last) continue;
      change_[at(live.first)] += more;
      change_[at(live.last) + 1] -= more;
    }
  }
}

/// A free node's costs by choice, with those of edges to given nodes.
void ChoiceCosts::own_costs(int node, std::vector<double>& out) const {
  out = problem_.nodes[at(node)].cost;
  for (int e : edges_[at(node)]) {
    const FactoredProblem::Edge& edge = problem_.edges[at(e)];
    const bool forth = edge.from == node;
    const int other = forth ? edge.to : edge.from;
    if (star_of_[at(other)] >= 0) continue;
    const FactoredProblem::Matrix& matrix = *edge.matrix;
    const auto choice = at(solution_[at(other)]);
    const float* costs = forth ? matrix.transposed.data() + edge.column[choice] * matrix.rows
                               : matrix.cost.data() + edge.row[choice] * matrix.columns;
    const std::vector<uint16_t>& own = forth ? edge.row : edge.column;
    for (size_t a = 0; a < out.size(); ++a)
      out[a] += edge.scale * static_cast<double>(costs[own[a]]);
  }
}

/// A leaf's cheapest choice given the root's, if it has one.
void ChoiceCosts::best_leaf(int leaf, const std::vector<double>& own, const Edges& to_root,
                            size_t at_root, double& least, int& choice) const {
  least = kInfeasible;
  choice = 0;
  for (size_t b = 0; b < own.size(); ++b) {
    double cost = own[b];
    for (const FactoredProblem::Edge* edge : to_root)
      cost += edge->to == leaf ? edge->cost(at_root, b) : edge->cost(b, at_root);
    if (cost < least || (cost == least && held(leaf, b) < held(leaf, at(choice)))) {
      least = cost;
      choice = static_cast<int>(b);
    }
  }
}

void ChoiceCosts::update(Star& star, double& cost) {
  std::vector<std::vector<double>> own(star.leaves.size());
  for (size_t i = 0; i < star.leaves.size(); ++i) own_costs(star.leaves[i], own[i]);
  std::vector<int> choices(star.leaves.size(), 0), best;
  if (star.root < 0) {
    double least = 0;
    cost = 0;
    for (size_t i = 0; i < own.size(); ++i) {
      best_leaf(star.leaves[i], own[i], {}, 0, least, choices[i]);
      cost += least;
    }
    best = choices;
  } else {
    std::vector<double> of_root;
    own_costs(star.root, of_root);
    double least_held = 0;
    int chosen = -1;
    for (size_t a = 0; a < of_root.size(); ++a) {
      double sum = of_root[a], bytes = held(star.root, a), least = 0;
      for (size_t i = 0; i < own.size(); ++i) {
        best_leaf(star.leaves[i], own[i], star.to_root[i], a, least, choices[i]);
        sum += least;
        bytes += held(star.leaves[i], at(choices[i]));
      }
      if (chosen >= 0 && (sum > cost || (sum == cost && bytes >= least_held))) continue;
      cost = sum;
      least_held = bytes;
      chosen = static_cast<int>(a);
      best = choices;
    }
    take(star.root, chosen);
  }
  for (size_t i = 0; i < star.leaves.size(); ++i) take(star.leaves[i], best[i]);
}

double ChoiceCosts::seconds() {
  for (int node : changed_) {
    is_changed_[at(node)] = false;
    if (solution_[at(node)] == wanted_[at(node)]) continue;
    take(node, wanted_[at(node)]);
    node_cost_[at(node)] = problem_.nodes[at(node)].cost[at(wanted_[at(node)])];
    is_changed_[at(node)] = true;
  }
  for (int node : changed_) {
    if (!is_changed_[at(node)]) continue;
    is_changed_[at(node)] = false;
    for (int e : edges_[at(node)]) {
      const FactoredProblem::Edge& edge = problem_.edges[at(e)];
      const int star = star_of_[at(edge.from == node ? edge.to : edge.from)];
      if (star >= 0) {
        is_stale_[at(star)] = true;
      } else {
        edge_cost_[at(e)] = edge.cost(at(wanted_[at(edge.from)]), at(wanted_[at(edge.to)]));
      }
    }
  }
  changed_.clear();
  double sum = 0;
  for (size_t s = 0; s < stars_.size(); ++s) {
    if (is_stale_[s]) update(stars_[s], star_cost_[s]);
    is_stale_[s] = false;
    sum += star_cost_[s];
  }
  for (double cost : node_cost_) sum += cost;
  for (double cost : edge_cost_) sum += cost;
  return sum;
}

int64_t ChoiceCosts::peak_bytes() {
  if (!counts_bytes_ || !std::exchange(stale_bytes_, false)) return peak_;
  int64_t now = 0;
  peak_ = 0;
  for (int64_t more : change_) peak_ = std::max(peak_, now += more);
  return peak_;
}

}  // namespace shardrun
