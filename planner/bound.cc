// Sequential reweighted message passing.
#include "planner/bound.h"

#include <algorithm>

namespace shardrun {

Bound::Bound(const Problem& problem)
    : count_(problem.nodes.size()), earlier_(count_), later_(count_), slack_(count_) {
  for (const Problem::Node& node : problem.nodes) theta_.push_back(node.cost);
  decoded_.assign(count_, 0);
  for (const Problem::Edge& edge : problem.edges) {
    Messages m;
    const size_t rows = problem.nodes[static_cast<size_t>(edge.from)].cost.size();
    const size_t columns = problem.nodes[static_cast<size_t>(edge.to)].cost.size();
    std::vector<double> transposed(edge.cost.size());
    for (size_t x = 0; x < rows; ++x) {
      for (size_t y = 0; y < columns; ++y) transposed[y * rows + x] = edge.cost[x * columns + y];
    }
    const bool in_order = edge.from < edge.to;
    m.low = std::min(edge.from, edge.to);
    m.high = std::max(edge.from, edge.to);
    m.cost = in_order ? edge.cost : transposed;
    m.transposed = in_order ? std::move(transposed) : edge.cost;
    m.from.assign(problem.nodes[static_cast<size_t>(m.low)].cost.size(), 0.0);
    m.to.assign(problem.nodes[static_cast<size_t>(m.high)].cost.size(), 0.0);
    later_[static_cast<size_t>(m.low)].push_back(static_cast<int>(edges_.size()));
    earlier_[static_cast<size_t>(m.high)].push_back(static_cast<int>(edges_.size()));
    edges_.push_back(std::move(m));
  }
}

void Bound::add_cost(int node, const std::vector<double>& cost) {
  std::vector<double>& theta = theta_[static_cast<size_t>(node)];
  for (size_t a = 0; a < theta.size(); ++a) theta[a] += cost[a];
  bound_ = -kInfeasible;
}

/// min over the other side's strategies of the edge's present costs, for each strategy of this
/// side.
const std::vector<double>& Bound::collected(const Side& side) {
  const Messages& m = edges_[static_cast<size_t>(side.edge)];
  const std::vector<double>& own = side.is_from ? m.from : m.to;
  const std::vector<double>& other = side.is_from ? m.to : m.from;
  const double* table = side.is_from ? m.transposed.data() : m.cost.data();  // rows: other side
  const size_t width = own.size();
  scratch_.assign(width, kInfeasible);
  double* out = scratch_.data();
  for (size_t b = 0; b < other.size(); ++b) {
    const double shift = other[b];
    const double* row = table + b * width;
    for (size_t a = 0; a < width; ++a) {
      const double cost = row[a] - shift;
      out[a] = cost < out[a] ? cost : out[a];
    }
  }
  for (size_t a = 0; a < width; ++a) out[a] -= own[a];
  return scratch_;
}

double Bound::sweep() {
  bound_before_ = bound_;
  if (bound_ == -kInfeasible) {
    // First sweep, or prices changed: the sum of all minima as things stand.
    bound_before_ = 0;
    for (const std::vector<double>& theta : theta_)
      bound_before_ += *std::min_element(theta.begin(), theta.end());
    for (size_t e = 0; e < edges_.size(); ++e) {
      const std::vector<double>& least = collected({static_cast<int>(e), true});
      bound_before_ += *std::min_element(least.begin(), least.end());
    }
  }
  const auto visit = [&](size_t i, bool forward) {
    std::vector<double>& theta = theta_[i];
    const std::vector<int>& sources = forward ? earlier_[i] : later_[i];
    const std::vector<int>& targets = forward ? later_[i] : earlier_[i];
    if (forward) {
      // Given the choices of the nodes before, take the best.
      std::vector<double> given = theta;
      for (int e : sources) {
        const Messages& m = edges_[static_cast<size_t>(e)];
        const size_t chosen = static_cast<size_t>(decoded_[static_cast<size_t>(m.low)]);
        const double* row = m.cost.data() + chosen * theta.size();
        for (size_t a = 0; a < theta.size(); ++a) given[a] += row[a] - m.to[a];
      }
      decoded_[i] = static_cast<int>(std::min_element(given.begin(), given.end()) - given.begin());
    }
    for (int e : sources) {
      const std::vector<double>& least = collected({e, !forward});
      Messages& m = edges_[static_cast<size_t>(e)];
      std::vector<double>& own = forward ? m.to : m.from;
      for (size_t a = 0; a < theta.size(); ++a) {
        theta[a] += least[a];
        own[a] += least[a];
      }
    }
    if (forward) {
      const double least = *std::min_element(theta.begin(), theta.end());
      slack_[i].resize(theta.size());
      for (size_t a = 0; a < theta.size(); ++a) slack_[i][a] = theta[a] - least;
    }
    if (targets.empty()) return;
    const double share = 1.0 / static_cast<double>(std::max(sources.size(), targets.size()));
    for (int e : targets) {
      Messages& m = edges_[static_cast<size_t>(e)];
      std::vector<double>& own = forward ? m.from : m.to;
      for (size_t a = 0; a < theta.size(); ++a) own[a] -= share * theta[a];
    }
    const double left = 1.0 - share * static_cast<double>(targets.size());
    for (double& cost : theta) cost = targets.size() >= sources.size() ? 0.0 : cost * left;
  };
  // On the very first forward pass edges to later nodes may hold negative row minima; they are
  // collected in the backward pass, which keeps the bound right from then on.
  for (size_t i = 0; i < count_; ++i) visit(i, true);
  for (size_t i = count_; i-- > 0;) visit(i, false);
  bound_ = 0;
  for (const std::vector<double>& theta : theta_)
    bound_ += *std::min_element(theta.begin(), theta.end());
  return bound_;
}

}  // namespace shardrun
