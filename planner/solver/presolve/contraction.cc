// Nodes joined to those that decide them, and edges of nodes without a choice priced at the others.
#include "planner/solver/presolve/contraction.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/at.h"

namespace shardrun {
namespace {

using Edge = FactoredProblem::Edge;

class Contracting {
 public:
  explicit Contracting(FactoredProblem& problem)
      : problem_(problem), decided_by_(problem.nodes.size()), choices_(problem.nodes.size()) {
    std::iota(decided_by_.begin(), decided_by_.end(), 0);
    for (size_t i = 0; i < choices_.size(); ++i) {
      choices_[i].resize(problem.nodes[i].cost.size());
      std::iota(choices_[i].begin(), choices_[i].end(), 0);
    }
  }

  void run() {
    while (join_some()) {
    }
    price_single();
    join_parallel();
  }

  const std::vector<int>& decided_by() const { return decided_by_; }
  const std::vector<std::vector<int>>& choices() const { return choices_; }

 private:
  size_t count(int node) const { return problem_.nodes[at(node)].cost.size(); }

  /// By the choices of one end the only one of the other's that these edges allow; empty where they
  /// allow several.
  std::vector<int> deciding(int node, int other, const std::vector<size_t>& between) const {
    std::vector<int> out;
    for (size_t a = 0; a < count(node); ++a) {
      int only = -1;
      for (size_t b = 0; b < count(other); ++b) {
        const bool allowed = std::all_of(between.begin(), between.end(), [&](size_t e) {
          const Edge& edge = problem_.edges[e];
          return (edge.from == node ? edge.cost(a, b) : edge.cost(b, a)) < kInfeasible;
        });
        if (!allowed) continue;
        if (only >= 0) return {};
        only = static_cast<int>(b);
      }
      out.push_back(std::max(only, 0));  // of none, the edge forbids a choice of the node itself
    }
    return out;
  }

  /// One round over pairs of neighbours. A node without a choice decides nothing, and is not worth
  /// deciding.
  bool join_some() {
    std::map<std::pair<int, int>, std::vector<size_t>> between;
    for (size_t e = 0; e < problem_.edges.size(); ++e) {
      const Edge& edge = problem_.edges[e];
      if (count(edge.from) > 1 && count(edge.to) > 1)
        between[std::minmax(edge.from, edge.to)].push_back(e);
    }
    bool any = false;
    for (const auto& [ends, edges] : between) {
      auto [node, other] = ends;
      if (decided_by_[at(node)] != node || decided_by_[at(other)] != other ||
          std::none_of(edges.begin(), edges.end(),
                       [&](size_t e) { return problem_.edges[e].matrix->forbids; }))
        continue;
      std::vector<int> decided = deciding(node, other, edges);
      if (decided.empty()) {
        std::swap(node, other);
        decided = deciding(node, other, edges);
      }
      if (decided.empty()) continue;
      join(node, other, decided);
      any = true;
    }
    std::erase_if(problem_.edges, [](const Edge& edge) { return edge.from < 0; });
    return any;
  }

  /// Makes `other`, as `node` decides it, a part of that. Edges between them become its cost.
  void join(int node, int other, const std::vector<int>& decided) {
    FactoredProblem::Node& into = problem_.nodes[at(node)];
    const FactoredProblem::Node& from = problem_.nodes[at(other)];
    for (size_t a = 0; a < decided.size(); ++a) into.cost[a] += from.cost[at(decided[a])];
    for (Problem::Claim& claim : restricted(from.claims, decided))
      into.claims.push_back(std::move(claim));
    into.place = std::max(into.place, from.place);
    for (Edge& edge : problem_.edges) {
      for (auto [end, names] : {std::pair(&edge.from, &edge.row), {&edge.to, &edge.column}}) {
        if (*end != other) continue;
        *end = node;
        std::vector<uint16_t> named;
        for (int b : decided) named.push_back((*names)[at(b)]);
        *names = std::move(named);
      }
      if (edge.from != edge.to || edge.from != node) continue;
      for (size_t a = 0; a < decided.size(); ++a) into.cost[a] += edge.cost(a, a);
      edge.from = edge.to = -1;
    }
    for (size_t i = 0; i < decided_by_.size(); ++i) {
      if (decided_by_[i] != other) continue;
      decided_by_[i] = node;
      std::vector<int> its;
      for (int b : decided) its.push_back(choices_[i][at(b)]);
      choices_[i] = std::move(its);
    }
  }

  /// An edge of a node without a choice is a cost of its other end.
  void price_single() {
    std::erase_if(problem_.edges, [&](const Edge& edge) {
      const bool single = count(edge.from) == 1;
      if (!single && count(edge.to) > 1) return false;
      std::vector<double>& cost = problem_.nodes[at(single ? edge.to : edge.from)].cost;
      for (size_t a = 0; a < cost.size(); ++a)
        cost[a] += single ? edge.cost(0, a) : edge.cost(a, 0);
      return true;
    });
  }

  /// Edges between the same two nodes become one: bounds by messages are the better for it.
  void join_parallel() {
    std::map<std::pair<int, int>, std::vector<Edge>> between;
    for (Edge& edge : problem_.edges) {
      if (edge.from > edge.to) edge = reversed(edge);
      between[{edge.from, edge.to}].push_back(std::move(edge));
    }
    problem_.edges.clear();
    for (auto& [ends, edges] : between)
      problem_.edges.push_back(edges.size() == 1 ? std::move(edges[0]) : summed(edges));
  }

  static Edge reversed(const Edge& edge) {
    auto turned =
        std::make_shared<FactoredProblem::Matrix>(edge.matrix->columns, edge.matrix->rows);
    turned->cost = edge.matrix->transposed;
    turned->transposed = edge.matrix->cost;
    turned->forbids = edge.matrix->forbids;
    return {edge.to, edge.from, edge.scale, std::move(turned), edge.column, edge.row};
  }

  /// The choices of one end, by what all these edges name them: numbers from 0, and of each number
  /// a choice.
  static std::pair<std::vector<uint16_t>, std::vector<size_t>> named(
      const std::vector<Edge>& edges, std::vector<uint16_t> Edge::*names) {
    std::map<std::vector<uint16_t>, uint16_t> numbers;
    std::pair<std::vector<uint16_t>, std::vector<size_t>> out;
    for (size_t a = 0; a < (edges[0].*names).size(); ++a) {
      std::vector<uint16_t> all;
      for (const Edge& edge : edges) all.push_back((edge.*names)[a]);
      const auto [it, fresh] = numbers.emplace(std::move(all), numbers.size());
      out.first.push_back(it->second);
      if (fresh) out.second.push_back(a);
    }
    return out;
  }

  static Edge summed(const std::vector<Edge>& edges) {
    auto [row, rows] = named(edges, &Edge::row);
    auto [column, columns] = named(edges, &Edge::column);
    auto matrix = std::make_shared<FactoredProblem::Matrix>(rows.size(), columns.size());
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t c = 0; c < columns.size(); ++c) {
        double cost = 0;
        for (const Edge& edge : edges) cost += edge.cost(rows[r], columns[c]);
        matrix->set(r, c, cost);
      }
    }
    matrix->forbids = std::any_of(edges.begin(), edges.end(),
                                  [](const Edge& edge) { return edge.matrix->forbids; });
    return {edges[0].from, edges[0].to, 1, std::move(matrix), std::move(row), std::move(column)};
  }

  FactoredProblem& problem_;
  std::vector<int> decided_by_;            // by node; itself while it is there
  std::vector<std::vector<int>> choices_;  // by node: its own, by the choices of what decides it
};

}  // namespace

Contraction::Contraction(const FactoredProblem& problem) {
  FactoredProblem all = problem;
  Contracting contracting(all);
  contracting.run();
  choices_ = contracting.choices();
  std::vector<int> number(all.nodes.size(), -1);
  for (size_t i = 0; i < all.nodes.size(); ++i) {
    if (contracting.decided_by()[i] != static_cast<int>(i)) continue;
    number[i] = static_cast<int>(problem_.nodes.size());
    problem_.nodes.push_back(std::move(all.nodes[i]));
  }
  for (int i : contracting.decided_by()) node_.push_back(number[at(i)]);
  problem_.edges = std::move(all.edges);
  for (FactoredProblem::Edge& edge : problem_.edges) {
    edge.from = number[at(edge.from)];
    edge.to = number[at(edge.to)];
  }
}

Solution Contraction::expanded(const Solution& solution) const {
  Solution out;
  for (size_t i = 0; i < node_.size(); ++i) out.push_back(choices_[i][at(solution[at(node_[i])])]);
  return out;
}

std::optional<Solution> Contraction::contracted(const Solution& whole) const {
  std::vector<std::vector<bool>> fits;  // by node and choice: all that it decides is so
  for (const FactoredProblem::Node& node : problem_.nodes)
    fits.emplace_back(node.cost.size(), true);
  for (size_t i = 0; i < node_.size(); ++i) {
    std::vector<bool>& its = fits[at(node_[i])];
    for (size_t a = 0; a < its.size(); ++a) its[a] = its[a] && choices_[i][a] == whole[i];
  }
  Solution out;
  for (const std::vector<bool>& its : fits) {
    const auto first = std::find(its.begin(), its.end(), true);
    if (first == its.end()) return std::nullopt;
    out.push_back(static_cast<int>(first - its.begin()));
  }
  return out;
}

}  // namespace shardrun
