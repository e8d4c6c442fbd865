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

/// Rows of so many costs, each padded with infinity.
void append_rows(std::vector<double>& tables, const std::vector<double>& cost, size_t size) {
  for (auto row = cost.begin(); row != cost.end(); row += static_cast<std::ptrdiff_t>(size)) {
    tables.insert(tables.end(), row, row + static_cast<std::ptrdiff_t>(size));
    tables.resize(padded(tables.size()), kInfeasible);
  }
}

size_t hash_of(const std::vector<double>& values) {
  size_t hash = values.size();
  for (double v : values) hash = (hash ^ std::bit_cast<uint64_t>(v)) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

Bound::Bound(const Problem& problem) {
  nodes_.resize(problem.nodes.size());
  std::vector<size_t> lower(nodes_.size(), 0), higher(nodes_.size(), 0);
  for (const Problem::Edge& edge : problem.edges) {
    ++higher[static_cast<size_t>(std::min(edge.from, edge.to))];
    ++lower[static_cast<size_t>(std::max(edge.from, edge.to))];
  }
  size_t arcs = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = nodes_[i];
    set_costs(node, problem.nodes[i].cost);
    node.first = arcs;
    node.middle = arcs += lower[i];
    node.last = arcs += higher[i];
    lower[i] = node.first;
    higher[i] = node.middle;
  }
  decoded_.assign(nodes_.size(), 0);
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
    append_rows(tables_, transposed(edge.cost, rows, columns), rows);
    append_rows(tables_, edge.cost, columns);
    return place;
  };
  for (const Problem::Edge& edge : problem.edges) {
    const Node &from = nodes_[static_cast<size_t>(edge.from)],
               &to = nodes_[static_cast<size_t>(edge.to)];
    const bool in_order = edge.from < edge.to;
    BoundArc& at_from = arcs_[in_order ? higher[static_cast<size_t>(edge.from)]++
                                       : lower[static_cast<size_t>(edge.from)]++];
    BoundArc& at_to = arcs_[in_order ? lower[static_cast<size_t>(edge.to)]++
                                     : higher[static_cast<size_t>(edge.to)]++];
    const size_t table = tables_of(edge, from.size, to.size);
    const int number = static_cast<int>(&edge - problem.edges.data());
    at_from = {edge.to, table, messages, messages + from.size, number};
    at_to = {edge.from, table + to.size * padded(from.size), at_from.reversed, at_from.message,
             number};
    messages += from.size + to.size;
  }
  messages_.assign(messages, 0.0);
}

/// min over the other side's strategies of the edge's present costs, for each strategy of `node`.
void Bound::collect(const BoundArc& arc, const Node& node) {
  const auto cost_of = [given = messages_.data() + arc.reversed](CostLanes cost, size_t strategy) {
    return cost - given[strategy];
  };
  const size_t width = padded(node.size), rows = nodes_[static_cast<size_t>(arc.other)].size;
  least_per_column<kBoundBlocks>(tables_.data() + arc.table, width, rows, cost_of,
                                 collected_.data());
  count_work(kSearchWork.message + kSearchWork.vectored * static_cast<double>(width * rows));
  const double* own = messages_.data() + arc.message;
  for (size_t a = 0; a < node.size; ++a) collected_[a] -= own[a];
}

/// With all that is known at node i and what the pair itself costs; the other node was visited.
void Bound::tell_pairs(size_t i, const PairVisitor& tell) {
  const Node& node = nodes_[i];
  const double* theta = theta_.data() + node.costs;
  const double least = least_of(theta, node.size);
  for (size_t k = node.middle; k < node.last; ++k) {
    const BoundArc& arc = arcs_[k];
    const Node& other = nodes_[static_cast<size_t>(arc.other)];
    const double* others = theta_.data() + other.costs;
    const double others_least = least_of(others, other.size);
    const double *own = messages_.data() + arc.message, *reversed = messages_.data() + arc.reversed;
    pairs_.resize(other.size * node.size);
    for (size_t b = 0; b < other.size; ++b) {
      const double* row = tables_.data() + arc.table + b * padded(node.size);
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
  const auto turn = [&](size_t i, bool forward) {
    const Node& node = nodes_[i];
    const auto cost_of = [&, width = padded(node.size)](const BoundArc& arc) {
      const auto chosen = static_cast<size_t>(decoded_[static_cast<size_t>(arc.other)]);
      return [row = tables_.data() + arc.table + chosen * width](size_t a) { return row[a]; };
    };
    const auto seen = [&] {
      if (!forward && tell != nullptr) tell_pairs(i, *tell);
    };
    visit(
        i, forward, forward, cost_of, [&](const BoundArc& arc) { collect(arc, node); }, seen);
  };
  // On the very first forward pass edges to later nodes may hold negative row minima; they are
  // collected in the backward pass, which keeps the bound right from then on.
  for (size_t i = 0; i < nodes_.size(); ++i) turn(i, true);
  for (size_t i = nodes_.size(); i-- > 0;) turn(i, false);
  return bound_ = least_costs();
}

}  // namespace shardrun
