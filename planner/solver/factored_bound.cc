// Message passing over rows and columns.
#include "planner/solver/factored_bound.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/at.h"
#include "base/error.h"
#include "planner/solver/deadline.h"
#include "planner/solver/messages.h"

namespace shardrun {
namespace {

constexpr size_t kFactoredBlocks = 4;  // of lanes in registers

/// Of strategies, names and messages.
uint32_t number(size_t n) {
  SR_REQUIRE(n <= std::numeric_limits<uint32_t>::max(), internal, "a search of ", n, " numbers");
  return static_cast<uint32_t>(n);
}

}  // namespace

FactoredBound::FactoredBound(const FactoredProblem& problem) : order_(problem.nodes.size()) {
  decoded_.assign(order_.size(), 0);
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return problem.nodes[at(a)].place < problem.nodes[at(b)].place;
  });
  lay_out(problem);
}

/// Everything but the numbers that sweeps change, and these as before the first one.
void FactoredBound::lay_out(const FactoredProblem& problem) {
  nodes_.assign(problem.nodes.size(), {});
  theta_.clear();
  slack_.clear();
  for (int i : order_) set_costs(nodes_[at(i)], problem.nodes[at(i)].cost);
  first_message_.clear();
  size_t messages = 0;
  for (const FactoredProblem::Edge& edge : problem.edges) {
    first_message_.push_back(messages);
    messages += edge.row.size() + edge.column.size();
  }
  messages_.assign(messages, 0.0);
  add_arcs(problem);
}

FactoredBound::Tables FactoredBound::add_tables(const FactoredProblem::Matrix& matrix) {
  const auto add = [&](const std::vector<float>& cost, size_t rows, size_t columns) {
    const size_t place = tables_.size(), width = padded(columns);
    tables_.resize(place + rows * width, std::numeric_limits<float>::infinity());
    for (size_t r = 0; r < rows; ++r)
      std::copy_n(cost.data() + r * columns, columns, tables_.data() + place + r * width);
    return place;
  };
  least_.resize(std::max({least_.size(), matrix.rows, matrix.columns}));
  out_.resize(std::max({out_.size(), padded(matrix.rows), padded(matrix.columns)}));
  const size_t by_row = add(matrix.cost, matrix.rows, matrix.columns);
  return {by_row, add(matrix.transposed, matrix.columns, matrix.rows)};
}

void FactoredBound::add_arcs(const FactoredProblem& problem) {
  std::vector<int> rank(order_.size());
  for (size_t i = 0; i < order_.size(); ++i) rank[at(order_[i])] = static_cast<int>(i);
  // Arcs of a node lie together, in the order of edges.
  std::vector<size_t> earlier(nodes_.size(), 0), later(nodes_.size(), 0);
  for (const FactoredProblem::Edge& edge : problem.edges) {
    const bool in_order = rank[at(edge.from)] < rank[at(edge.to)];
    ++later[at(in_order ? edge.from : edge.to)];
    ++earlier[at(in_order ? edge.to : edge.from)];
  }
  size_t arcs = 0;
  for (int i : order_) {
    Node& node = nodes_[at(i)];
    node.first = arcs;
    node.middle = arcs += std::exchange(earlier[at(i)], node.first);
    node.last = arcs += std::exchange(later[at(i)], node.middle);
  }
  arcs_.assign(arcs, {});
  lower_.clear();
  names_.clear();
  tables_.clear();
  sweep_work_ = 0;
  std::unordered_map<const FactoredProblem::Matrix*, Tables> known;
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const FactoredProblem::Edge& edge = problem.edges[e];
    const FactoredProblem::Matrix& m = *edge.matrix;
    const auto [tables, fresh] = known.try_emplace(&m);
    if (fresh) tables->second = add_tables(m);
    const size_t rows = edge.row.size(), columns = edge.column.size(), name = names_.size();
    names_.insert(names_.end(), edge.row.begin(), edge.row.end());
    names_.insert(names_.end(), edge.column.begin(), edge.column.end());
    const size_t from = first_message_[e], to = from + rows;
    const FactoredArc at_from{edge.scale,
                              edge.to,
                              number(columns),
                              number(m.columns),
                              number(padded(m.rows)),
                              number(tables->second.by_column),
                              number(from),
                              number(to),
                              number(name),
                              number(name + rows)};
    const FactoredArc at_to{edge.scale,
                            edge.from,
                            number(rows),
                            number(m.rows),
                            number(padded(m.columns)),
                            number(tables->second.by_row),
                            number(to),
                            number(from),
                            number(name + rows),
                            number(name)};
    const bool in_order = rank[at(edge.from)] < rank[at(edge.to)];
    const int low = in_order ? edge.from : edge.to, high = in_order ? edge.to : edge.from;
    lower_.push_back({low, later[at(low)]});
    arcs_[later[at(low)]++] = in_order ? at_from : at_to;
    arcs_[earlier[at(high)]++] = in_order ? at_to : at_from;
    sweep_work_ += kSearchWork.far_edge +
                   kSearchWork.far_vectored * static_cast<double>(m.rows * m.columns) +
                   kSearchWork.named * static_cast<double>(rows + columns);
  }
}

void FactoredBound::restrict(const FactoredProblem& less, const Kept& kept) {
  const std::vector<Node> nodes = nodes_;
  const std::vector<size_t> first_message = first_message_;
  const std::vector<double> theta = std::move(theta_), messages = std::move(messages_),
                            slack = std::move(slack_);
  lay_out(less);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    for (size_t a = 0; a < kept[i].size(); ++a) {
      theta_[nodes_[i].costs + a] = theta[nodes[i].costs + at(kept[i][a])];
      slack_[nodes_[i].costs + a] = slack[nodes[i].costs + at(kept[i][a])];
    }
    const auto found = std::lower_bound(kept[i].begin(), kept[i].end(), decoded_[i]);
    decoded_[i] = found != kept[i].end() && *found == decoded_[i]
                      ? static_cast<int>(found - kept[i].begin())
                      : 0;
  }
  for (size_t e = 0; e < less.edges.size(); ++e) {
    double* message = messages_.data() + first_message_[e];
    const double* before = messages.data() + first_message[e];
    for (int a : kept[at(less.edges[e].from)]) *message++ = before[at(a)];
    before += nodes[at(less.edges[e].from)].size;
    for (int a : kept[at(less.edges[e].to)]) *message++ = before[at(a)];
  }
  bound_ = -kInfeasible;
}

/// min over the other's strategies of the edge's present costs, for each of `size` own strategies.
void FactoredBound::collect(const FactoredArc& arc, size_t size) {
  double* least = least_.data();
  std::fill_n(least, arc.names, kInfeasible);
  const double* others = messages_.data() + arc.reversed;
  const uint16_t* name = names_.data() + arc.other_name;
  for (size_t b = 0; b < arc.size; ++b) least[name[b]] = std::min(least[name[b]], -others[b]);
  double* out = out_.data();
  const auto cost_of = [scale = arc.scale, least](CostLanes cost, size_t name) {
    return scale * cost + least[name];
  };
  least_per_column<kFactoredBlocks>(tables_.data() + arc.table, arc.width, arc.names, cost_of, out);
  const double* own = messages_.data() + arc.message;
  name = names_.data() + arc.own_name;
  for (size_t a = 0; a < size; ++a) collected_[a] = out[name[a]] - own[a];
}

void FactoredBound::visit_node(int node, bool forward, bool decodes) {
  const auto cost_of = [&](const FactoredArc& arc) {
    const float* row = tables_.data() + arc.table +
                       names_[arc.other_name + at(decoded_[at(arc.other)])] * arc.width;
    return [scale = arc.scale, row, name = names_.data() + arc.own_name](size_t a) {
      return scale * static_cast<double>(row[name[a]]);
    };
  };
  const auto collect_of = [&](const FactoredArc& arc) { collect(arc, nodes_[at(node)].size); };
  visit(at(node), forward, decodes, cost_of, collect_of, [] {});
}

void FactoredBound::find_bound() {
  if (bound_ != -kInfeasible) return;
  bound_ = least_costs();
  for (const auto& [low, arc] : lower_) {
    const size_t size = nodes_[at(low)].size;
    collect(arcs_[arc], size);
    bound_ += least_of(collected_.data(), size);
  }
  count_work(sweep_work_);
}

double FactoredBound::sweep(bool decodes) {
  bound_before_ = bound_;
  for (int i : order_) visit_node(i, true, decodes);
  for (size_t i = order_.size(); i-- > 0;) visit_node(order_[i], false, false);
  count_work(2 * sweep_work_);
  bound_ = least_costs();
  return bound_;
}

}  // namespace shardrun
