// Sequential reweighted message passing.
#include "planner/solver/bound.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "planner/solver/deadline.h"
#include "planner/solver/messages.h"

namespace shardrun {
namespace {

constexpr size_t kBoundBlocks = 8;  // of lanes in registers

/// Rows of the second node's strategies (by_column) or of the first's, padded with infinity.
void append_rows(std::vector<double>& tables, const std::vector<double>& cost, size_t rows,
                 size_t columns, bool by_column) {
  const size_t count = by_column ? columns : rows, size = by_column ? rows : columns;
  for (size_t b = 0; b < count; ++b) {
    for (size_t a = 0; a < size; ++a)
      tables.push_back(by_column ? cost[a * columns + b] : cost[b * columns + a]);
    tables.resize(padded(tables.size()), kInfeasible);
  }
}

size_t hash_of(const std::vector<double>& values) {
  size_t hash = values.size();
  for (double v : values) hash = (hash ^ std::bit_cast<uint64_t>(v)) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

Bound::Bound(const Problem& problem) : nodes_(problem.nodes.size()) {
  std::vector<size_t> lower(nodes_.size(), 0), higher(nodes_.size(), 0);
  for (const Problem::Edge& edge : problem.edges) {
    ++higher[static_cast<size_t>(std::min(edge.from, edge.to))];
    ++lower[static_cast<size_t>(std::max(edge.from, edge.to))];
  }
  size_t arcs = 0, widest = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    node.size = problem.nodes[i].cost.size();
    node.width = padded(node.size);
    node.costs = theta_.size();
    theta_.insert(theta_.end(), problem.nodes[i].cost.begin(), problem.nodes[i].cost.end());
    node.first = arcs;
    node.middle = arcs += lower[i];
    node.last = arcs += higher[i];
    lower[i] = node.first;
    higher[i] = node.middle;
    widest = std::max(widest, node.width);
  }
  slack_.assign(theta_.size(), 0.0);
  decoded_.assign(nodes_.size(), 0);
  collected_.resize(widest);
  given_.resize(widest);
  arcs_.resize(arcs);
  // Repeated layers have equal edges: their tables are kept once, which is what fits into caches.
  size_t messages = 0;
  std::unordered_map<size_t, std::vector<std::pair<const Problem::Edge*, size_t>>> known;
  const auto tables_of = [&](const Problem::Edge& edge, size_t rows, size_t columns) {
    auto& alike = known[hash_of(edge.cost) * 31 + rows];
    for (const auto& [other, place] : alike) {
      if (problem.nodes[static_cast<size_t>(other->from)].cost.size() == rows &&
          other->cost == edge.cost)
        return place;
    }
    const size_t place = tables_.size();
    alike.push_back({&edge, place});
    append_rows(tables_, edge.cost, rows, columns, true);
    append_rows(tables_, edge.cost, rows, columns, false);
    return place;
  };
  for (const Problem::Edge& edge : problem.edges) {
    const Node &from = nodes_[static_cast<size_t>(edge.from)],
               &to = nodes_[static_cast<size_t>(edge.to)];
    const bool in_order = edge.from < edge.to;
    Arc& at_from = arcs_[in_order ? higher[static_cast<size_t>(edge.from)]++
                                  : lower[static_cast<size_t>(edge.from)]++];
    Arc& at_to = arcs_[in_order ? lower[static_cast<size_t>(edge.to)]++
                                : higher[static_cast<size_t>(edge.to)]++];
    const size_t table = tables_of(edge, from.size, to.size);
    const int number = static_cast<int>(&edge - problem.edges.data());
    at_from = {edge.to, table, messages, messages + from.size, number};
    at_to = {edge.from, table + to.size * from.width, at_from.reversed, at_from.message, number};
    messages += from.size + to.size;
  }
  messages_.assign(messages, 0.0);
}

void Bound::add_cost(int node, const std::vector<double>& cost) {
  double* theta = theta_.data() + nodes_[static_cast<size_t>(node)].costs;
  for (size_t a = 0; a < cost.size(); ++a) theta[a] += cost[a];
  bound_ = -kInfeasible;
}

/// min over the other side's strategies of the edge's present costs, for each strategy of `node`.
void Bound::collect(const Arc& arc, const Node& node) {
  const auto cost_of = [given = messages_.data() + arc.reversed](CostLanes cost, size_t strategy) {
    return cost - given[strategy];
  };
  least_per_column<kBoundBlocks>(tables_.data() + arc.table, node.width,
                                 nodes_[static_cast<size_t>(arc.other)].size, cost_of,
                                 collected_.data());
  count_work(kSearchWork.message +
             kSearchWork.vectored *
                 static_cast<double>(node.width * nodes_[static_cast<size_t>(arc.other)].size));
  const double* own = messages_.data() + arc.message;
  for (size_t a = 0; a < node.size; ++a) collected_[a] -= own[a];
}

void Bound::visit(size_t i, bool forward, const PairVisitor* tell) {
  const Node& node = nodes_[i];
  double* theta = theta_.data() + node.costs;
  const size_t size = node.size;
  const size_t sources = forward ? node.first : node.middle;
  const size_t sources_end = forward ? node.middle : node.last;
  const size_t targets = forward ? node.middle : node.first;
  const size_t targets_end = forward ? node.last : node.middle;
  if (forward) {
    // Given the choices of the nodes before, take the best.
    std::copy_n(theta, size, given_.begin());
    for (size_t k = sources; k < sources_end; ++k) {
      const Arc& arc = arcs_[k];
      const double* row =
          tables_.data() + arc.table +
          static_cast<size_t>(decoded_[static_cast<size_t>(arc.other)]) * node.width;
      const double* own = messages_.data() + arc.message;
      for (size_t a = 0; a < size; ++a) given_[a] += row[a] - own[a];
    }
    decoded_[i] = static_cast<int>(
        std::min_element(given_.begin(), given_.begin() + static_cast<std::ptrdiff_t>(size)) -
        given_.begin());
  }
  for (size_t k = sources; k < sources_end; ++k) {
    collect(arcs_[k], node);
    double* own = messages_.data() + arcs_[k].message;
    for (size_t a = 0; a < size; ++a) {
      theta[a] += collected_[a];
      own[a] += collected_[a];
    }
  }
  if (forward) {
    const double least = least_of(theta, size);
    for (size_t a = 0; a < size; ++a) slack_[node.costs + a] = theta[a] - least;
  } else if (tell != nullptr) {
    tell_pairs(i, *tell);
  }
  give_costs(std::span(theta, size), sources_end - sources,
             std::span<const Arc>(arcs_).subspan(targets, targets_end - targets), messages_.data());
}

/// With all that is known at node i and what the pair itself costs; the other node was visited.
void Bound::tell_pairs(size_t i, const PairVisitor& tell) {
  const Node& node = nodes_[i];
  const double* theta = theta_.data() + node.costs;
  const double least = least_of(theta, node.size);
  for (size_t k = node.middle; k < node.last; ++k) {
    const Arc& arc = arcs_[k];
    const Node& other = nodes_[static_cast<size_t>(arc.other)];
    const double* others = theta_.data() + other.costs;
    const double others_least = least_of(others, other.size);
    const double *own = messages_.data() + arc.message, *reversed = messages_.data() + arc.reversed;
    pairs_.resize(other.size * node.size);
    for (size_t b = 0; b < other.size; ++b) {
      const double* row = tables_.data() + arc.table + b * node.width;
      const double more = others[b] - others_least - least - reversed[b];
      for (size_t a = 0; a < node.size; ++a)
        pairs_[b * node.size + a] = row[a] - own[a] + theta[a] + more;
    }
    tell(arc.edge, static_cast<int>(i), arc.other, pairs_.data(), node.size);
  }
}

double Bound::sweep() { return sweep_once(nullptr); }

double Bound::sweep(const PairVisitor& visit) { return sweep_once(&visit); }

double Bound::sweep_once(const PairVisitor* tell) {
  bound_before_ = bound_;
  // On the very first forward pass edges to later nodes may hold negative row minima; they are
  // collected in the backward pass, which keeps the bound right from then on.
  for (size_t i = 0; i < nodes_.size(); ++i) visit(i, true);
  for (size_t i = nodes_.size(); i-- > 0;) visit(i, false, tell);
  bound_ = 0;
  for (const Node& node : nodes_) bound_ += least_of(theta_.data() + node.costs, node.size);
  return bound_;
}

}  // namespace shardrun
