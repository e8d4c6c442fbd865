// Coordinate descent, repair of memory, and optimal moves of whole trees.
#include "planner/solver/local_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

/// How long descents go on, and how often choices are kicked.
struct LocalSearchSettings {
  int passes = 50;       // over all nodes, of one descent at most
  double gain = 1e-15;   // seconds: a strategy that costs less by no more is not taken
  int kick_every = 4;    // moves of a forest
  int kicked_nodes = 3;  // whose strategies are drawn anew, so that the forest around them moves
};
constexpr LocalSearchSettings kLocalSearch;

}  // namespace

LocalSearch::LocalSearch(const Problem& problem)
    : problem_(problem), flat_(problem), neighbours_(problem.nodes.size()), memory_(flat_) {
  for (size_t i = 0; i < neighbours_.size(); ++i) {
    for (const FlatProblem::Arc& n : flat_.arcs(static_cast<int>(i)))
      neighbours_[i].push_back(n.other);
  }
}

void LocalSearch::local_costs(int node, const Solution& solution, std::vector<double>& out) const {
  out = problem_.nodes[static_cast<size_t>(node)].cost;
  count_visit(node);
  for (const FlatProblem::Arc& n : flat_.arcs(node)) {
    const double* row =
        n.by_other + static_cast<size_t>(solution[static_cast<size_t>(n.other)]) * out.size();
    for (size_t a = 0; a < out.size(); ++a) out[a] += row[a];
  }
}

void LocalSearch::count_visit(int node) const {
  count_work(static_cast<double>(problem_.nodes[static_cast<size_t>(node)].cost.size() *
                                 (flat_.arcs(node).size() + 2)));
}

void LocalSearch::note_peak(const Solution& solution) {
  if (!memory_.limited() || memory_.peak() >= least_peak_ ||
      raw_cost(problem_, solution) == kInfeasible)
    return;
  least_peak_ = memory_.peak();
  tightest_ = solution;
}

/// Changes one node at a time, the cheapest per byte of overflow removed, until everything fits.
bool LocalSearch::repair(Solution& solution) {
  if (!memory_.limited()) return true;
  std::vector<double> costs;
  double overflow = memory_.overflow();
  while (overflow > 0) {
    note_peak(solution);
    int best_node = -1, best_to = -1;
    double best_rate = kInfeasible, best_overflow = overflow;
    for (size_t i = 0; i < solution.size(); ++i) {
      if (problem_.nodes[i].claims.empty()) continue;
      if (late()) return false;
      local_costs(static_cast<int>(i), solution, costs);
      const double now = costs[static_cast<size_t>(solution[i])];
      for (size_t a = 0; a < costs.size(); ++a) {
        if (static_cast<int>(a) == solution[i] || costs[a] == kInfeasible) continue;
        const double after =
            memory_.overflow_after(overflow, static_cast<int>(i), solution[i], static_cast<int>(a));
        if (after >= overflow) continue;
        const double gain = now == kInfeasible ? -1.0 : costs[a] - now;
        const double rate = gain <= 0 ? gain * (overflow - after) : gain / (overflow - after);
        if (rate < best_rate) {
          best_rate = rate;
          best_node = static_cast<int>(i);
          best_to = static_cast<int>(a);
          best_overflow = after;
        }
      }
    }
    if (best_node < 0) return false;
    memory_.change(best_node, solution[static_cast<size_t>(best_node)], best_to);
    solution[static_cast<size_t>(best_node)] = best_to;
    overflow = best_overflow;
  }
  note_peak(solution);
  return true;
}

/// Nodes whose best choice may be another one than where a descent ended last: they or a neighbour
/// have another choice. What memory leaves of a node's choices depends on all others, so there all
/// nodes are stale.
std::vector<bool> LocalSearch::stale_nodes(const Solution& solution) const {
  std::vector<bool> stale(solution.size(), !settled_);
  for (size_t i = 0; settled_ && i < solution.size(); ++i) {
    if (solution[i] == (*settled_)[i]) continue;
    stale[i] = true;
    for (int other : neighbours_[i]) stale[static_cast<size_t>(other)] = true;
  }
  return stale;
}

void LocalSearch::descend(Solution& solution, std::mt19937_64& random) {
  std::vector<int> order(solution.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<double> costs;
  std::vector<bool> stale = stale_nodes(solution);
  const bool limited = memory_.limited();
  for (int pass = 0; pass < kLocalSearch.passes; ++pass) {
    shuffle(order, random);
    bool changed = false;
    for (int i : order) {
      if (late()) return;
      if (!stale[static_cast<size_t>(i)]) {
        count_visit(i);  // a pass is the same work, whatever is known already
        continue;
      }
      stale[static_cast<size_t>(i)] = limited;
      int& mine = solution[static_cast<size_t>(i)];
      local_costs(i, solution, costs);
      int best = mine;
      for (size_t a = 0; a < costs.size(); ++a) {
        if (costs[a] < costs[static_cast<size_t>(best)] - kLocalSearch.gain &&
            memory_.fits_after(i, mine, static_cast<int>(a))) {
          best = static_cast<int>(a);
        }
      }
      if (best == mine) continue;
      memory_.change(i, mine, best);
      mine = best;
      changed = true;
      for (int other : neighbours_[static_cast<size_t>(i)])
        stale[static_cast<size_t>(other)] = true;
    }
    if (changed) continue;
    if (!limited) settled_ = solution;
    return;
  }
}

std::vector<const FlatProblem::Arc*> LocalSearch::arcs_up(const Forest& forest) const {
  std::vector<const FlatProblem::Arc*> out(forest.parent.size(), nullptr);
  for (int i : forest.visit) {
    for (const FlatProblem::Arc& n : flat_.arcs(i)) {
      if (n.other == forest.parent[static_cast<size_t>(i)]) out[static_cast<size_t>(i)] = &n;
    }
  }
  return out;
}

void LocalSearch::cost_in_forest(int i, const Forest& forest, const Solution& solution,
                                 const std::vector<double>* prices, double* cost) const {
  const std::vector<double>& own = problem_.nodes[static_cast<size_t>(i)].cost;
  std::copy(own.begin(), own.end(), cost);
  if (prices != nullptr) {
    const std::vector<double> priced = memory_.priced(i, *prices);
    for (size_t a = 0; a < own.size(); ++a) cost[a] += priced[a];
  }
  for (const FlatProblem::Arc& n : flat_.arcs(i)) {
    if (forest.member[static_cast<size_t>(n.other)]) continue;
    const double* row =
        n.by_other + static_cast<size_t>(solution[static_cast<size_t>(n.other)]) * own.size();
    for (size_t a = 0; a < own.size(); ++a) cost[a] += row[a];
  }
}

void LocalSearch::forest_move(Solution& solution, std::mt19937_64& random,
                              const std::vector<double>* prices) const {
  const size_t count = solution.size();
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  shuffle(order, random);
  const Forest forest = induced_forest(neighbours_, order);
  const std::vector<int>& visit = forest.visit;
  const std::vector<const FlatProblem::Arc*> parent = arcs_up(forest);
  const auto size_of = [&](size_t i) { return problem_.nodes[i].cost.size(); };
  double work = kSearchWork.forest_node * static_cast<double>(count);
  for (const std::vector<int>& around : neighbours_)
    work += kSearchWork.neighbour * static_cast<double>(around.size());
  // Where a node's costs begin, and its choices by the parent's strategy.
  std::vector<size_t> first_cost(count), first_choice(count);
  size_t costs_end = 0, choices_end = 0;
  for (int v : visit) {
    const size_t i = static_cast<size_t>(v);
    first_cost[i] = std::exchange(costs_end, costs_end + size_of(i));
    if (parent[i] == nullptr) continue;
    first_choice[i] =
        std::exchange(choices_end, choices_end + size_of(static_cast<size_t>(parent[i]->other)));
    work += static_cast<double>(size_of(i) * size_of(static_cast<size_t>(parent[i]->other)));
  }
  count_work(work);
  std::vector<double> costs(costs_end);
  std::vector<int> choices(choices_end);
  for (int v : visit) {
    cost_in_forest(v, forest, solution, prices, costs.data() + first_cost[static_cast<size_t>(v)]);
  }
  for (size_t v = visit.size(); v-- > 0;) {
    const size_t i = static_cast<size_t>(visit[v]), size = size_of(i);
    if (parent[i] == nullptr) continue;
    const size_t up = static_cast<size_t>(parent[i]->other);
    double* above = costs.data() + first_cost[up];
    const double* cost = costs.data() + first_cost[i];
    for (size_t b = 0; b < size_of(up); ++b) {
      const double* row = parent[i]->by_other + b * size;
      double best = kInfeasible;
      int best_a = 0;
      for (size_t a = 0; a < size; ++a) {
        if (cost[a] + row[a] < best) {
          best = cost[a] + row[a];
          best_a = static_cast<int>(a);
        }
      }
      above[b] += best;
      choices[first_choice[i] + b] = best_a;
    }
  }
  for (int v : visit) {
    const size_t i = static_cast<size_t>(v);
    if (parent[i] == nullptr) {
      const double* cost = costs.data() + first_cost[i];
      solution[i] = static_cast<int>(std::min_element(cost, cost + size_of(i)) - cost);
    } else {
      const int above = solution[static_cast<size_t>(parent[i]->other)];
      solution[i] = choices[first_choice[i] + static_cast<size_t>(above)];
    }
  }
}

std::optional<Solution> LocalSearch::improve(Solution start, const LocalSearchOptions& options) {
  std::mt19937_64 random(options.seed * 0x9E3779B97F4A7C15ull + 1);
  out_of_time_ = options.out_of_time;
  std::optional<Solution> best;
  double best_cost = kInfeasible;
  const auto consider = [&](Solution solution) {
    memory_.reset(solution);
    if (raw_cost(problem_, solution) == kInfeasible) descend(solution, random);
    if (!repair(solution)) return false;
    descend(solution, random);
    note_peak(solution);
    const double cost = raw_cost(problem_, solution);
    if (cost >= best_cost || memory_.overflow() > 0) return false;
    const bool gained =
        best_cost == kInfeasible || cost < best_cost - kRounding * std::abs(best_cost);
    best_cost = cost;
    best = std::move(solution);
    return gained;
  };
  Solution current = start;
  consider(start);
  int idle = 0;
  for (int round = 0;
       round < options.rounds && idle < options.patience && best_cost > options.target; ++round) {
    if (late()) break;
    Solution next = best ? *best : current;
    if (round % kLocalSearch.kick_every == kLocalSearch.kick_every - 1) {
      // Kick: a few random choices, so that the forest around them is chosen anew.
      for (int k = 0; k < kLocalSearch.kicked_nodes; ++k) {
        const size_t i = random() % next.size();
        next[i] = static_cast<int>(random() % problem_.nodes[i].cost.size());
      }
    }
    forest_move(next, random, options.prices);
    if (!best) current = next;
    idle = consider(std::move(next)) ? 0 : idle + 1;
  }
  return best;
}

}  // namespace shardrun
