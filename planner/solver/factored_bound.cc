// Message passing over rows and columns.
#include "planner/solver/factored_bound.h"

#include <algorithm>
#include <numeric>

#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

FactoredBound::FactoredBound(const FactoredProblem& problem)
    : slack_(problem.nodes.size()),
      earlier_(problem.nodes.size()),
      later_(problem.nodes.size()),
      decoded_(problem.nodes.size(), 0),
      bound_(-kInfeasible),
      bound_before_(-kInfeasible) {
  for (const FactoredProblem::Node& node : problem.nodes) theta_.push_back(node.cost);
  order_.resize(problem.nodes.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return problem.nodes[at(a)].place < problem.nodes[at(b)].place;
  });
  std::vector<int> rank(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) rank[at(order_[i])] = static_cast<int>(i);
  for (const FactoredProblem::Edge& edge : problem.edges) {
    const FactoredProblem::Matrix& m = *edge.matrix;
    Side from{edge.from, &edge.row, m.rows, m.cost.data(),
              std::vector<double>(edge.row.size(), 0.0)};
    Side to{edge.to, &edge.column, m.columns, m.transposed.data(),
            std::vector<double>(edge.column.size(), 0.0)};
    const bool in_order = rank[at(edge.from)] < rank[at(edge.to)];
    Messages messages{edge.scale, in_order ? std::move(from) : std::move(to), {}, in_order};
    messages.high = in_order ? std::move(to) : std::move(from);
    later_[at(messages.low.node)].push_back(static_cast<int>(edges_.size()));
    earlier_[at(messages.high.node)].push_back(static_cast<int>(edges_.size()));
    edges_.push_back(std::move(messages));
  }
}

void FactoredBound::restrict(const FactoredProblem& less, const Kept& kept) {
  const auto filter = [](std::vector<double>& values, const std::vector<int>& keep) {
    std::vector<double> left;
    for (int a : keep) left.push_back(values[at(a)]);
    values = std::move(left);
  };
  for (size_t i = 0; i < theta_.size(); ++i) {
    filter(theta_[i], kept[i]);
    if (!slack_[i].empty()) filter(slack_[i], kept[i]);
    const auto found = std::lower_bound(kept[i].begin(), kept[i].end(), decoded_[i]);
    decoded_[i] = found != kept[i].end() && *found == decoded_[i]
                      ? static_cast<int>(found - kept[i].begin())
                      : 0;
  }
  for (size_t e = 0; e < edges_.size(); ++e) {
    const FactoredProblem::Edge& edge = less.edges[e];
    const FactoredProblem::Matrix& m = *edge.matrix;
    Messages& messages = edges_[e];
    Side &from = messages.low_is_from ? messages.low : messages.high,
         &to = messages.low_is_from ? messages.high : messages.low;
    filter(from.own, kept[at(edge.from)]);
    filter(to.own, kept[at(edge.to)]);
    from = {edge.from, &edge.row, m.rows, m.cost.data(), std::move(from.own)};
    to = {edge.to, &edge.column, m.columns, m.transposed.data(), std::move(to.own)};
  }
  bound_ = -kInfeasible;
}

void FactoredBound::add_cost(int node, const std::vector<double>& cost) {
  for (size_t a = 0; a < cost.size(); ++a) theta_[at(node)][a] += cost[a];
  bound_ = -kInfeasible;
}

/// min over `from`'s strategies of the edge's present costs, for each strategy of `to`.
const std::vector<double>& FactoredBound::collected(const Side& to, const Side& from,
                                                    double scale) {
  least_.assign(from.names, kInfeasible);
  for (size_t b = 0; b < from.own.size(); ++b) {
    double& least = least_[(*from.name)[b]];
    least = std::min(least, -from.own[b]);
  }
  out_.assign(to.names, kInfeasible);
  count_work(0.5 * static_cast<double>(from.names * to.names) +
             4 * static_cast<double>(from.own.size() + to.own.size()));
  double* out = out_.data();
  for (size_t name = 0; name < from.names; ++name) {
    const double least = least_[name];
    if (least == kInfeasible) continue;
    const float* row = from.table + name * to.names;
    for (size_t i = 0; i < to.names; ++i) {
      const double cost = scale * static_cast<double>(row[i]) + least;
      out[i] = cost < out[i] ? cost : out[i];
    }
  }
  gathered_.resize(to.own.size());
  for (size_t a = 0; a < to.own.size(); ++a) gathered_[a] = out_[(*to.name)[a]] - to.own[a];
  return gathered_;
}

void FactoredBound::visit(size_t i, bool forward) {
  std::vector<double>& theta = theta_[i];
  const std::vector<int>& sources = forward ? earlier_[i] : later_[i];
  const std::vector<int>& targets = forward ? later_[i] : earlier_[i];
  if (forward) {
    // Given the choices of the nodes before, take the best.
    given_ = theta;
    for (int e : sources) {
      const Messages& m = edges_[at(e)];
      const float* row = m.low.table + (*m.low.name)[at(decoded_[at(m.low.node)])] * m.high.names;
      for (size_t a = 0; a < theta.size(); ++a)
        given_[a] += m.scale * static_cast<double>(row[(*m.high.name)[a]]) - m.high.own[a];
    }
    decoded_[i] = static_cast<int>(std::min_element(given_.begin(), given_.end()) - given_.begin());
  }
  for (int e : sources) {
    Messages& m = edges_[at(e)];
    Side &own = forward ? m.high : m.low, &other = forward ? m.low : m.high;
    const std::vector<double>& least = collected(own, other, m.scale);
    for (size_t a = 0; a < theta.size(); ++a) {
      theta[a] += least[a];
      own.own[a] += least[a];
    }
  }
  if (forward) {
    const double least = *std::min_element(theta.begin(), theta.end());
    slack_[i].resize(theta.size());
    for (size_t a = 0; a < theta.size(); ++a) slack_[i][a] = theta[a] - least;
  }
  if (targets.empty()) return;
  const double fraction = 1.0 / static_cast<double>(std::max(sources.size(), targets.size()));
  for (int e : targets) {
    Messages& m = edges_[at(e)];
    std::vector<double>& own = (forward ? m.low : m.high).own;
    for (size_t a = 0; a < theta.size(); ++a) own[a] -= fraction * theta[a];
  }
  const double left = 1.0 - fraction * static_cast<double>(targets.size());
  for (double& cost : theta) cost = targets.size() >= sources.size() ? 0.0 : cost * left;
}

double FactoredBound::sweep() {
  bound_before_ = bound_;
  if (bound_ == -kInfeasible) {
    // First sweep, or prices changed: the sum of all minima as things stand.
    bound_before_ = 0;
    for (const std::vector<double>& theta : theta_)
      bound_before_ += *std::min_element(theta.begin(), theta.end());
    for (const Messages& m : edges_) {
      const std::vector<double>& least = collected(m.low, m.high, m.scale);
      bound_before_ += *std::min_element(least.begin(), least.end());
    }
  }
  for (int i : order_) visit(at(i), true);
  for (size_t i = order_.size(); i-- > 0;) visit(at(order_[i]), false);
  bound_ = 0;
  for (const std::vector<double>& theta : theta_)
    bound_ += *std::min_element(theta.begin(), theta.end());
  return bound_;
}

void descend(const FactoredProblem& problem, Solution& solution,
             const std::vector<std::vector<double>>* prices) {
  std::vector<std::vector<int>> around(problem.nodes.size());
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    around[at(problem.edges[e].from)].push_back(static_cast<int>(e));
    around[at(problem.edges[e].to)].push_back(static_cast<int>(e));
  }
  constexpr int kMostRounds = 50;   // over all nodes
  constexpr double kExact = 1e-12;  // relative: a gain that is no more is rounding
  std::vector<bool> stale(problem.nodes.size(), true);
  std::vector<double> cost;
  for (int round = 0; round < kMostRounds; ++round) {
    bool changed = false;
    for (size_t i = 0; i < problem.nodes.size(); ++i) {
      if (!stale[i]) continue;
      stale[i] = false;
      cost = problem.nodes[i].cost;
      if (prices != nullptr) {
        for (size_t a = 0; a < cost.size(); ++a) cost[a] += (*prices)[i][a];
      }
      for (int e : around[i]) {
        const FactoredProblem::Edge& edge = problem.edges[at(e)];
        const bool is_from = edge.from == static_cast<int>(i);
        const size_t other = at(solution[at(is_from ? edge.to : edge.from)]);
        count_work(4 * static_cast<double>(cost.size()));
        for (size_t a = 0; a < cost.size(); ++a)
          cost[a] += is_from ? edge.cost(a, other) : edge.cost(other, a);
      }
      const auto best = std::min_element(cost.begin(), cost.end());
      if (!(*best < cost[at(solution[i])] * (1 - kExact))) continue;
      solution[i] = static_cast<int>(best - cost.begin());
      changed = true;
      for (int e : around[i]) {
        stale[at(problem.edges[at(e)].from)] = true;
        stale[at(problem.edges[at(e)].to)] = true;
      }
      stale[i] = false;
    }
    if (!changed) return;
  }
}

}  // namespace shardrun
