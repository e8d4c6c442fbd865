// Forests of a factored problem, chosen anew one after the other.
#include "planner/solver/descent/tree_descent.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/at.h"
#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

/// When a descent ends, and what breaks a rule.
struct TreeDescentSettings {
  double gain = 1e-7;        // relative: a move that gains less has gained nothing
  double forbidden = 1e9;    // seconds of what is forbidden: the least broken solution is the best
  double price_step = 0.05;  // with each look a byte too many gets this part of what it costs at
                             // the fullest time
};
constexpr TreeDescentSettings kTreeDescent;

}  // namespace

TreeDescent::TreeDescent(const FactoredProblem& problem)
    : problem_(problem),
      arcs_(problem.nodes.size()),
      neighbours_(problem.nodes.size()),
      by_place_(problem.nodes.size()) {
  std::map<std::pair<int, int>, std::vector<int>> edges;
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const FactoredProblem::Edge& edge = problem.edges[e];
    edges[std::minmax(edge.from, edge.to)].push_back(static_cast<int>(e));
  }
  for (const auto& [ends, all] : edges) {
    arcs_[at(ends.first)].push_back({all, ends.second});
    arcs_[at(ends.second)].push_back({all, ends.first});
  }
  for (size_t i = 0; i < arcs_.size(); ++i) {
    for (const Arc& arc : arcs_[i]) neighbours_[i].push_back(arc.other);
  }
  std::iota(by_place_.begin(), by_place_.end(), 0);
  std::stable_sort(by_place_.begin(), by_place_.end(), [&](int a, int b) {
    return problem.nodes[at(a)].place < problem.nodes[at(b)].place;
  });
}

double TreeDescent::cost(const Solution& solution, const TreeDescentOptions& options) const {
  double seconds = 0;
  for (size_t i = 0; i < solution.size(); ++i)
    seconds += std::min(problem_.nodes[i].cost[at(solution[i])], kTreeDescent.forbidden);
  for (const FactoredProblem::Edge& edge : problem_.edges)
    seconds += std::min(edge.cost(at(solution[at(edge.from)]), at(solution[at(edge.to)])),
                        kTreeDescent.forbidden);
  if (options.memory_limit <= 0) return seconds;
  const int64_t over = peak_bytes(problem_, solution) - options.memory_limit;
  return seconds + options.byte_seconds * static_cast<double>(std::max<int64_t>(0, over));
}

/// First along the graph, then against it; then in turns around a node and at random.
std::vector<int> TreeDescent::order_of(int round, std::mt19937_64& random) const {
  std::vector<int> out = by_place_;
  if (round == 1) std::reverse(out.begin(), out.end());
  if (round < 2) return out;
  shuffle(out, random);
  if (round % 2 == 1) return out;
  std::vector<int> around;
  std::vector<bool> seen(out.size(), false);
  for (int start : out) {
    if (seen[at(start)]) continue;
    seen[at(start)] = true;
    size_t next = around.size();
    around.push_back(start);
    for (; next < around.size(); ++next) {
      for (int other : neighbours_[at(around[next])]) {
        if (seen[at(other)]) continue;
        seen[at(other)] = true;
        around.push_back(other);
      }
    }
  }
  return around;
}

/// A member's costs given the choices outside the forest.
std::vector<double> TreeDescent::costs_given_rest(int node, const Forest& forest,
                                                  const Solution& solution,
                                                  const Prices& prices) const {
  std::vector<double> out = problem_.nodes[at(node)].cost;
  for (double& cost : out) cost = std::min(cost, kTreeDescent.forbidden);
  if (!prices.empty()) {
    for (size_t a = 0; a < out.size(); ++a) out[a] += prices[at(node)][a];
  }
  for (const Arc& arc : arcs_[at(node)]) {
    if (forest.member[at(arc.other)]) continue;
    const size_t other = at(solution[at(arc.other)]);
    for (int e : arc.edges) {
      const FactoredProblem::Edge& edge = problem_.edges[at(e)];
      const FactoredProblem::Matrix& m = *edge.matrix;
      const bool is_from = edge.from == node;
      const float* row = is_from ? m.transposed.data() + edge.column[other] * m.rows
                                 : m.cost.data() + edge.row[other] * m.columns;
      const uint16_t* name = (is_from ? edge.row : edge.column).data();
      count_work(kSearchWork.named * static_cast<double>(out.size()));
      for (size_t a = 0; a < out.size(); ++a)
        out[a] += std::min(edge.scale * static_cast<double>(row[name[a]]), kTreeDescent.forbidden);
    }
  }
  return out;
}

const TreeDescent::Arc& TreeDescent::arc(int from, int to) const {
  return *std::lower_bound(arcs_[at(from)].begin(), arcs_[at(from)].end(), to,
                           [](const Arc& one, int other) { return one.other < other; });
}

/// Adds to a parent's costs, by its choice, the least that a child comes to given it; `choice`:
/// the child's.
void TreeDescent::add_message(int child, const std::vector<double>& costs, const Arc& up,
                              std::vector<double>& above, std::vector<int>& choice,
                              Message& message) const {
  choice.assign(above.size(), 0);
  if (up.edges.size() > 1) {
    count_work(kSearchWork.named *
               static_cast<double>(costs.size() * above.size() * up.edges.size()));
    for (size_t b = 0; b < above.size(); ++b) {
      double least = kInfeasible;
      for (size_t a = 0; a < costs.size(); ++a) {
        double sum = costs[a];
        for (int e : up.edges) {
          const FactoredProblem::Edge& edge = problem_.edges[at(e)];
          sum += std::min(edge.from == child ? edge.cost(a, b) : edge.cost(b, a),
                          kTreeDescent.forbidden);
        }
        if (sum >= least) continue;
        least = sum;
        choice[b] = static_cast<int>(a);
      }
      above[b] += least;
    }
    return;
  }
  const FactoredProblem::Edge& edge = problem_.edges[at(up.edges[0])];
  const FactoredProblem::Matrix& matrix = *edge.matrix;
  const bool is_from = edge.from == child;
  const std::vector<uint16_t>&own = is_from ? edge.row : edge.column,
        &its = is_from ? edge.column : edge.row;
  const size_t names = is_from ? matrix.rows : matrix.columns,
               their_names = is_from ? matrix.columns : matrix.rows;
  const float* table = is_from ? matrix.cost.data() : matrix.transposed.data();
  count_work(static_cast<double>(names * their_names + 2 * (costs.size() + above.size())));
  auto& [least, out, who, best] = message;
  least.assign(names, kInfeasible);
  out.assign(their_names, kInfeasible);
  who.assign(names, 0);
  best.assign(their_names, 0);
  for (size_t a = 0; a < costs.size(); ++a) {
    if (costs[a] >= least[own[a]]) continue;
    least[own[a]] = costs[a];
    who[own[a]] = static_cast<int>(a);
  }
  for (size_t name = 0; name < names; ++name) {
    if (least[name] == kInfeasible) continue;
    const float* row = table + name * their_names;
    for (size_t b = 0; b < their_names; ++b) {
      const double cost = edge.scale * static_cast<double>(row[b]),
                   sum = least[name] + std::min(cost, kTreeDescent.forbidden);
      if (sum >= out[b]) continue;
      out[b] = sum;
      best[b] = who[name];
    }
  }
  for (size_t b = 0; b < above.size(); ++b) {
    above[b] += out[its[b]];
    choice[b] = best[its[b]];
  }
}

void TreeDescent::move(Solution& solution, const std::vector<int>& order,
                       const Prices& prices) const {
  const Forest forest = induced_forest(neighbours_, order);
  count_work(kSearchWork.node_vectors * static_cast<double>(solution.size()) +
             kSearchWork.table * static_cast<double>(problem_.edges.size()));
  std::vector<std::vector<double>> costs(solution.size());
  for (int i : forest.visit) costs[at(i)] = costs_given_rest(i, forest, solution, prices);
  std::vector<std::vector<int>> choice(solution.size());  // by the parent's
  Message message;
  for (size_t v = forest.visit.size(); v-- > 0;) {
    const int child = forest.visit[v], parent = forest.parent[at(child)];
    if (parent >= 0)
      add_message(child, costs[at(child)], arc(child, parent), costs[at(parent)], choice[at(child)],
                  message);
  }
  for (int i : forest.visit) {
    const int parent = forest.parent[at(i)];
    const std::vector<double>& own = costs[at(i)];
    solution[at(i)] =
        parent >= 0 ? choice[at(i)][at(solution[at(parent)])]
                    : static_cast<int>(std::min_element(own.begin(), own.end()) - own.begin());
  }
}

TreeDescent::Prices TreeDescent::priced(const std::vector<double>& by_time) const {
  std::vector<double> before = {0};  // sums
  for (double price : by_time) before.push_back(before.back() + price);
  const auto clamped = [&](int time) { return std::min(before.size() - 1, at(time)); };
  Prices out;
  for (const FactoredProblem::Node& node : problem_.nodes) {
    std::vector<double>& own = out.emplace_back(node.cost.size(), 0.0);
    for (const Problem::Claim& claim : node.claims) {
      double price = 0;
      for (const Problem::Interval& live : claim.live) {
        if (live.first <= live.last)
          price += before[clamped(live.last + 1)] - before[clamped(live.first)];
      }
      if (price == 0) continue;
      for (size_t a = 0; a < own.size(); ++a) own[a] += price * static_cast<double>(claim.bytes[a]);
    }
    count_work(static_cast<double>(own.size() * (node.claims.size() + 1)));
  }
  return out;
}

Solution TreeDescent::improve(Solution start, const TreeDescentOptions& options) const {
  std::mt19937_64 random(options.seed * 0x9E3779B97F4A7C15ull + 1);
  const Deadline end(options.seconds, Deadline::Clock::work);
  double least = cost(start, options);
  Solution best = start;
  std::vector<double> by_time;  // of a byte
  Prices prices;
  int idle = 0;
  for (int round = 0; idle < options.patience && !end.passed(); ++round) {
    if (options.memory_limit > 0) {
      const std::vector<int64_t> use = bytes_over_time(problem_, start);
      by_time.resize(use.size(), 0.0);
      bool too_full = false;
      for (size_t t = 0; t < use.size(); ++t) {
        const double over = static_cast<double>(use[t] - options.memory_limit) /
                            static_cast<double>(options.memory_limit);
        if (over <= 0) continue;
        too_full = true;
        by_time[t] += kTreeDescent.price_step * over * options.byte_seconds;
      }
      if (too_full) prices = priced(by_time);
    }
    move(start, order_of(round, random), prices);
    const double now = cost(start, options);
    idle = now < least * (1 - kTreeDescent.gain) ? 0 : idle + 1;
    if (now >= least) continue;
    least = now;
    best = start;
  }
  return best;
}

}  // namespace shardrun
