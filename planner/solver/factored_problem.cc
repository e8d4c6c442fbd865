// Restricting a FactoredProblem, and writing it out.
#include "planner/solver/factored_problem.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/at.h"
#include "planner/solver/bytes_over_time.h"

namespace shardrun {
double raw_cost(const FactoredProblem& problem, const Solution& solution) {
  double sum = 0;
  for (size_t i = 0; i < problem.nodes.size(); ++i) sum += problem.nodes[i].cost[at(solution[i])];
  for (const FactoredProblem::Edge& edge : problem.edges)
    sum += edge.cost(at(solution[at(edge.from)]), at(solution[at(edge.to)]));
  return sum;
}

std::vector<int64_t> bytes_over_time(const FactoredProblem& problem, const Solution& solution) {
  return claimed_over_time(problem.nodes, solution);
}

int64_t peak_bytes(const FactoredProblem& problem, const Solution& solution) {
  return peak_of(bytes_over_time(problem, solution)).bytes;
}

int64_t least_peak_bytes(const FactoredProblem& problem) {
  return peak_of(least_over_time(problem.nodes)).bytes;
}

Kept all_kept(const FactoredProblem& problem) {
  Kept kept;
  for (const FactoredProblem::Node& node : problem.nodes) {
    kept.emplace_back(node.cost.size());
    std::iota(kept.back().begin(), kept.back().end(), 0);
  }
  return kept;
}

bool prune_impossible(const FactoredProblem& problem, Kept& kept) {
  for (size_t i = 0; i < kept.size(); ++i)
    std::erase_if(kept[i], [&](int a) { return problem.nodes[i].cost[at(a)] == kInfeasible; });
  // Mostly no edge forbids anything: only those that do are looked at again.
  std::vector<const FactoredProblem::Edge*> strict;
  for (const FactoredProblem::Edge& edge : problem.edges) {
    if (edge.matrix->forbids) strict.push_back(&edge);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const FactoredProblem::Edge* edge : strict) {
      std::vector<bool> row_used(edge->matrix->rows, false),
          column_used(edge->matrix->columns, false);
      for (int a : kept[at(edge->from)]) row_used[edge->row[at(a)]] = true;
      for (int b : kept[at(edge->to)]) column_used[edge->column[at(b)]] = true;
      std::vector<bool> row_good(row_used.size(), false), column_good(column_used.size(), false);
      for (size_t r = 0; r < row_used.size(); ++r) {
        if (!row_used[r]) continue;
        const float* costs = edge->matrix->cost.data() + r * edge->matrix->columns;
        for (size_t c = 0; c < column_used.size(); ++c) {
          if (!column_used[c] || costs[c] == std::numeric_limits<float>::infinity()) continue;
          row_good[r] = column_good[c] = true;
        }
      }
      changed |= std::erase_if(kept[at(edge->from)],
                               [&](int a) { return !row_good[edge->row[at(a)]]; }) > 0;
      changed |= std::erase_if(kept[at(edge->to)],
                               [&](int b) { return !column_good[edge->column[at(b)]]; }) > 0;
    }
  }
  return std::none_of(kept.begin(), kept.end(),
                      [](const auto& strategies) { return strategies.empty(); });
}

FactoredProblem restricted(const FactoredProblem& problem, const Kept& kept) {
  FactoredProblem out;
  for (size_t i = 0; i < kept.size(); ++i) {
    const FactoredProblem::Node& node = problem.nodes[i];
    FactoredProblem::Node less{node.name, {}, restricted(node.claims, kept[i]), node.place};
    for (int a : kept[i]) less.cost.push_back(node.cost[at(a)]);
    out.nodes.push_back(std::move(less));
  }
  // Rows and columns that are still named, by matrix.
  using Names = std::vector<uint16_t>;
  std::map<std::tuple<const FactoredProblem::Matrix*, Names, Names>,
           std::shared_ptr<const FactoredProblem::Matrix>>
      shared;
  const auto rename = [](const Names& names, const std::vector<int>& keep, size_t count,
                         Names& used) {
    std::vector<int> renamed(count, -1);
    Names out;
    for (int a : keep) {
      int& name = renamed[names[at(a)]];
      if (name < 0) {
        name = static_cast<int>(used.size());
        used.push_back(names[at(a)]);
      }
      out.push_back(static_cast<uint16_t>(name));
    }
    return out;
  };
  for (const FactoredProblem::Edge& edge : problem.edges) {
    FactoredProblem::Edge less{edge.from, edge.to, edge.scale, nullptr, {}, {}};
    Names rows, columns;
    less.row = rename(edge.row, kept[at(edge.from)], edge.matrix->rows, rows);
    less.column = rename(edge.column, kept[at(edge.to)], edge.matrix->columns, columns);
    auto& matrix = shared[{edge.matrix.get(), rows, columns}];
    if (!matrix) {
      auto made = std::make_shared<FactoredProblem::Matrix>(rows.size(), columns.size());
      for (size_t r = 0; r < rows.size(); ++r) {
        for (size_t c = 0; c < columns.size(); ++c)
          made->set(
              r, c,
              static_cast<double>(edge.matrix->cost[rows[r] * edge.matrix->columns + columns[c]]));
      }
      made->forbids = edge.matrix->forbids;
      matrix = std::move(made);
    }
    less.matrix = matrix;
    out.edges.push_back(std::move(less));
  }
  return out;
}

Problem dense(const FactoredProblem& problem) {
  Problem out;
  for (const FactoredProblem::Node& node : problem.nodes)
    out.nodes.push_back({node.name, node.cost, node.claims});
  std::map<std::pair<int, int>, size_t> ids;
  for (const FactoredProblem::Edge& edge : problem.edges) {
    const size_t rows = edge.row.size(), columns = edge.column.size();
    const auto [it, fresh] = ids.emplace(std::pair(edge.from, edge.to), out.edges.size());
    if (fresh) out.edges.push_back({edge.from, edge.to, std::vector<double>(rows * columns, 0.0)});
    double* table = out.edges[it->second].cost.data();
    for (size_t a = 0; a < rows; ++a) {
      const float* row = edge.matrix->cost.data() + edge.row[a] * edge.matrix->columns;
      for (size_t b = 0; b < columns; ++b)
        table[a * columns + b] += edge.scale * static_cast<double>(row[edge.column[b]]);
    }
  }
  return out;
}

}  // namespace shardrun
