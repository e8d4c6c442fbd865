// Bucket elimination.
#include "planner/solver/elimination.h"

#include <algorithm>
#include <set>

#include "planner/solver/work.h"

namespace shardrun {
namespace {

/// A table over some nodes, row-major in the order of `scope` (ascending node numbers).
struct Factor {
  std::vector<int> scope;
  std::vector<double> table;
};

struct Elimination {
  int node;
  std::vector<int> scope;   // what its choice depends on
  std::vector<int> choice;  // row-major over scope
};

std::vector<int> plan_order(const Problem& problem, const EliminationLimits& limits) {
  const size_t count = problem.nodes.size();
  std::vector<std::set<int>> around(count);
  for (const Problem::Edge& edge : problem.edges) {
    around[static_cast<size_t>(edge.from)].insert(edge.to);
    around[static_cast<size_t>(edge.to)].insert(edge.from);
  }
  const auto size = [&](size_t i) { return static_cast<double>(problem.nodes[i].cost.size()); };
  const auto table = [&](size_t i) {
    double entries = 1;
    for (int j : around[i]) entries *= size(static_cast<size_t>(j));
    return entries;
  };
  std::vector<double> entries(count);
  for (size_t i = 0; i < count; ++i) entries[i] = table(i);
  std::vector<bool> done(count, false);
  std::vector<int> order;
  double work = 0;
  for (size_t step = 0; step < count; ++step) {
    if (limits.late && limits.late()) return {};
    size_t best = count;
    for (size_t i = 0; i < count; ++i) {
      if (!done[i] && (best == count || entries[i] < entries[best])) best = i;
    }
    work += entries[best] * size(best) * static_cast<double>(around[best].size() + 1);
    count_work(static_cast<double>(count));
    if (entries[best] > limits.table_entries || work > limits.work) return {};
    done[best] = true;
    order.push_back(static_cast<int>(best));
    const std::vector<int> neighbours(around[best].begin(), around[best].end());
    for (int j : neighbours) {
      std::set<int>& set = around[static_cast<size_t>(j)];
      set.erase(static_cast<int>(best));
      for (int k : neighbours) {
        if (k != j) set.insert(k);
      }
    }
    for (int j : neighbours) entries[static_cast<size_t>(j)] = table(static_cast<size_t>(j));
  }
  return order;
}

}  // namespace

std::optional<Solution> eliminate_all(const Problem& problem, const EliminationLimits& limits) {
  const size_t count = problem.nodes.size();
  const std::vector<int> order = plan_order(problem, limits);
  if (order.size() != count) return std::nullopt;
  const auto size = [&](int i) { return problem.nodes[static_cast<size_t>(i)].cost.size(); };

  std::vector<Factor> factors;
  std::vector<std::vector<size_t>> factors_of(count);
  const auto add_factor = [&](Factor factor) {
    for (int i : factor.scope) factors_of[static_cast<size_t>(i)].push_back(factors.size());
    factors.push_back(std::move(factor));
  };
  for (size_t i = 0; i < count; ++i) add_factor({{static_cast<int>(i)}, problem.nodes[i].cost});
  for (const Problem::Edge& edge : problem.edges) {
    Factor factor{{edge.from, edge.to}, edge.cost};
    if (edge.from > edge.to) {
      std::swap(factor.scope[0], factor.scope[1]);
      for (size_t x = 0; x < size(edge.from); ++x) {
        for (size_t y = 0; y < size(edge.to); ++y) {
          factor.table[y * size(edge.from) + x] = edge.cost[x * size(edge.to) + y];
        }
      }
    }
    add_factor(std::move(factor));
  }

  std::vector<Elimination> log;
  for (int node : order) {
    if (limits.late && limits.late()) return std::nullopt;
    const std::vector<size_t> mine = factors_of[static_cast<size_t>(node)];
    std::set<int> united;
    for (size_t f : mine) united.insert(factors[f].scope.begin(), factors[f].scope.end());
    united.erase(node);
    const std::vector<int> scope(united.begin(), united.end());
    // Strides of each factor along each scope node and along `node`.
    std::vector<std::vector<size_t>> strides(mine.size(), std::vector<size_t>(scope.size(), 0));
    std::vector<size_t> own(mine.size(), 0);
    for (size_t m = 0; m < mine.size(); ++m) {
      size_t stride = 1;
      const std::vector<int>& inner = factors[mine[m]].scope;
      for (size_t k = inner.size(); k-- > 0;) {
        if (inner[k] == node) {
          own[m] = stride;
        } else {
          strides[m][static_cast<size_t>(std::lower_bound(scope.begin(), scope.end(), inner[k]) -
                                         scope.begin())] = stride;
        }
        stride *= size(inner[k]);
      }
    }
    size_t entries = 1;
    for (int i : scope) entries *= size(i);
    Factor result{scope, std::vector<double>(entries)};
    Elimination record{node, scope, std::vector<int>(entries)};
    std::vector<size_t> digit(scope.size(), 0), offset(mine.size(), 0);
    std::vector<double> sum(size(node));
    count_work(static_cast<double>(entries * (sum.size() * mine.size() + 4)));
    for (size_t entry = 0; entry < entries; ++entry) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (size_t m = 0; m < mine.size(); ++m) {
        const double* table = factors[mine[m]].table.data() + offset[m];
        for (size_t a = 0; a < sum.size(); ++a) sum[a] += table[a * own[m]];
      }
      const auto best = std::min_element(sum.begin(), sum.end());
      result.table[entry] = *best;
      record.choice[entry] = static_cast<int>(best - sum.begin());
      for (size_t k = scope.size(); k-- > 0;) {
        ++digit[k];
        for (size_t m = 0; m < mine.size(); ++m) offset[m] += strides[m][k];
        if (digit[k] < size(scope[k])) break;
        for (size_t m = 0; m < mine.size(); ++m) offset[m] -= strides[m][k] * digit[k];
        digit[k] = 0;
      }
    }
    for (size_t f : mine) {
      for (int i : factors[f].scope) std::erase(factors_of[static_cast<size_t>(i)], f);
      factors[f].table = {};
    }
    log.push_back(std::move(record));
    if (!scope.empty()) {
      add_factor(std::move(result));
    } else if (result.table[0] == kInfeasible) {
      return std::nullopt;
    }
  }

  Solution solution(count, 0);
  for (size_t r = log.size(); r-- > 0;) {
    size_t index = 0;
    for (int i : log[r].scope)
      index = index * size(i) + static_cast<size_t>(solution[static_cast<size_t>(i)]);
    solution[static_cast<size_t>(log[r].node)] = log[r].choice[index];
  }
  return solution;
}

}  // namespace shardrun
