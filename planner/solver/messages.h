// MessagePassing: what is alike over strategies (Bound) and over rows and columns (FactoredBound).
#pragma once

#ifdef __AVX__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "planner/solver/problem.h"

namespace shardrun {

inline constexpr size_t kLanes = 4;  // rows of tables are padded to multiples of so many

inline size_t padded(size_t columns) { return (columns + kLanes - 1) / kLanes * kLanes; }

/// The least of `size` values; kInfeasible of none.
inline double least_of(const double* values, size_t size) {
  double least = kInfeasible;
  for (size_t a = 0; a < size; ++a) least = values[a] < least ? values[a] : least;
  return least;
}

/// Doubles that are computed together.
using CostLanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;

inline CostLanes load_costs(const double* from) {
  CostLanes out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
inline CostLanes load_costs(const float* from) {
#ifdef __AVX__
  return _mm256_cvtps_pd(_mm_loadu_ps(from));  // of a conversion of lanes GCC 12 makes two
#else
  using Stored [[gnu::vector_size(kLanes * sizeof(float))]] = float;
  Stored stored;
  std::memcpy(&stored, from, sizeof stored);
  return __builtin_convertvector(stored, CostLanes);
#endif
}

/// out[a] = min over rows b of cost_of(table[b][a], b), for all columns of a padded table; cost_of
/// gets lanes of them. `kBlocks`: so many groups of lanes stay in registers.
template <size_t kBlocks, class T, class CostOf>
void least_per_column(const T* table, size_t width, size_t rows, const CostOf& cost_of,
                      double* out) {
  const auto columns = [&]<size_t kGroups>(std::integral_constant<size_t, kGroups>, size_t from) {
    CostLanes least[kGroups];
    for (CostLanes& lanes : least) lanes = CostLanes{} + kInfeasible;
    const T* row = table + from;
    for (size_t b = 0; b < rows; ++b, row += width) {
      for (size_t g = 0; g < kGroups; ++g) {
        const CostLanes cost = cost_of(load_costs(row + g * kLanes), b);
        least[g] = cost < least[g] ? cost : least[g];
      }
    }
    std::memcpy(out + from, least, sizeof least);
  };
  size_t done = 0;
  for (; done + kLanes * kBlocks <= width; done += kLanes * kBlocks)
    columns(std::integral_constant<size_t, kBlocks>(), done);
  const size_t left = (width - done) / kLanes;
  [&]<size_t... kLess>(std::index_sequence<kLess...>) {
    ((left == kLess + 1 ? columns(std::integral_constant<size_t, kLess + 1>(), done) : void()),
     ...);
  }
  (std::make_index_sequence<kBlocks - 1>());
}

/// Costs of nodes, and what edges gave to them. `Arc`, an edge as one of its nodes sees it, says
/// which the `other` is, and where its own `message` begins: what it gave to the node, by strategy.
template <class Arc>
class MessagePassing {
 public:
  /// Adds to a node's costs (a changed price of memory). The bound holds again after the next
  /// sweep.
  void add_cost(int node, const std::vector<double>& cost) {
    double* theta = theta_.data() + nodes_[static_cast<size_t>(node)].costs;
    for (size_t a = 0; a < cost.size(); ++a) theta[a] += cost[a];
    bound_ = -kInfeasible;
  }
  /// A good solution for the priced costs, built during the last sweep.
  const Solution& decoded() const { return decoded_; }
  /// For each strategy of a node, found in the last sweep's forward half: a solution that uses it
  /// costs at least bound_before_sweep() + slack.
  std::span<const double> slack(int node) const {
    const Node& n = nodes_[static_cast<size_t>(node)];
    return {slack_.data() + n.costs, n.size};
  }
  /// Minus infinity, which claims nothing, if costs were added before that sweep.
  double bound_before_sweep() const { return bound_before_; }

 protected:
  struct Node {
    size_t size = 0;                         // strategies
    size_t costs = 0;                        // where its costs and slacks begin
    size_t first = 0, middle = 0, last = 0;  // arcs to earlier nodes, then to later ones
  };

  /// Appends a node's costs. Sets its size.
  void set_costs(Node& node, const std::vector<double>& cost) {
    node.size = cost.size();
    node.costs = theta_.size();
    theta_.insert(theta_.end(), cost.begin(), cost.end());
    slack_.resize(theta_.size(), 0.0);
    collected_.resize(std::max(collected_.size(), padded(node.size)));
    given_.resize(collected_.size());
  }

  double least_costs() const {
    double sum = 0;
    for (const Node& node : nodes_) sum += least_of(theta_.data() + node.costs, node.size);
    return sum;
  }

  /// A node in half a sweep. What edges to nodes that were visited can give, which collect(arc)
  /// leaves in collected_, is added to its costs; when `seen` has been called these are given to
  /// the other edges, in equal parts, and some stay where more edges gave. `decodes`: the node
  /// takes its best choice first, and slacks are kept: cost_of(arc)(a) is the edge's cost with the
  /// other's choice.
  template <class CostOf, class Collect, class Seen>
  void visit(size_t i, bool forward, bool decodes, const CostOf& cost_of, const Collect& collect,
             const Seen& seen) {
    const Node& node = nodes_[i];
    const std::span<const Arc> arcs(arcs_);
    std::span<const Arc> sources = arcs.subspan(node.first, node.middle - node.first),
                         targets = arcs.subspan(node.middle, node.last - node.middle);
    if (!forward) std::swap(sources, targets);
    const size_t size = node.size;
    double *theta = theta_.data() + node.costs, *messages = messages_.data();
    if (decodes) {
      std::copy_n(theta, size, given_.data());
      for (const Arc& arc : sources) {
        const auto cost = cost_of(arc);
        const double* own = messages + arc.message;
        for (size_t a = 0; a < size; ++a) given_[a] += cost(a) - own[a];
      }
      decoded_[i] =
          static_cast<int>(std::min_element(given_.data(), given_.data() + size) - given_.data());
    }
    for (const Arc& arc : sources) {
      collect(arc);
      double* own = messages + arc.message;
      for (size_t a = 0; a < size; ++a) {
        theta[a] += collected_[a];
        own[a] += collected_[a];
      }
    }
    if (decodes) {
      const double least = least_of(theta, size);
      for (size_t a = 0; a < size; ++a) slack_[node.costs + a] = theta[a] - least;
    }
    seen();
    if (targets.empty()) return;
    const size_t most = std::max(sources.size(), targets.size());
    const double fraction = 1.0 / static_cast<double>(most);
    for (const Arc& arc : targets) {
      double* own = messages + arc.message;
      for (size_t a = 0; a < size; ++a) own[a] -= fraction * theta[a];
    }
    const double left = 1.0 - fraction * static_cast<double>(targets.size());
    for (size_t a = 0; a < size; ++a) theta[a] = targets.size() == most ? 0.0 : theta[a] * left;
  }

  std::vector<Node> nodes_;
  std::vector<Arc> arcs_;              // of a node together
  std::vector<double> theta_, slack_;  // of all nodes' strategies; theta: present costs
  std::vector<double> messages_;
  Solution decoded_;
  std::vector<double> collected_, given_;  // of the node that is visited
  double bound_ = -kInfeasible, bound_before_ = -kInfeasible;
};

}  // namespace shardrun
