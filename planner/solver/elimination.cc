// Bucket elimination.
#include "planner/solver/elimination.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <utility>

#include "planner/solver/deadline.h"

namespace shardrun {
namespace {

/// A table over some nodes, row-major in the order of `scope` (ascending node numbers).
struct Factor {
  std::vector<int> scope;
  std::vector<double> table;
};

struct Elimination {
  int node;
  std::vector<int> scope;        // what its choice depends on
  std::vector<uint16_t> choice;  // row-major over scope
};
constexpr size_t kMostChoices = std::numeric_limits<uint16_t>::max();

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
  std::set<std::pair<double, size_t>> left;  // by entries
  for (size_t i = 0; i < count; ++i) {
    if (problem.nodes[i].cost.size() > kMostChoices) return {};
    entries[i] = table(i);
    left.emplace(entries[i], i);
  }
  std::vector<int> order;
  double work = 0;
  for (size_t step = 0; step < count; ++step) {
    if (limits.late && limits.late()) return {};
    const size_t best = left.begin()->second;
    left.erase(left.begin());
    work += entries[best] * size(best) * static_cast<double>(around[best].size() + 1);
    count_work(static_cast<double>(count));
    if (entries[best] > limits.table_entries || work > limits.work) return {};
    order.push_back(static_cast<int>(best));
    const std::vector<int> neighbours(around[best].begin(), around[best].end());
    for (int j : neighbours) {
      std::set<int>& set = around[static_cast<size_t>(j)];
      set.erase(static_cast<int>(best));
      for (int k : neighbours) {
        if (k != j) set.insert(k);
      }
    }
    for (int j : neighbours) {
      const size_t i = static_cast<size_t>(j);
      left.erase({entries[i], i});
      entries[i] = table(i);
      left.emplace(entries[i], i);
    }
  }
  return order;
}

/// The tables that are left, and what was chosen of each node that went.
class Buckets {
 public:
  explicit Buckets(const Problem& problem) : problem_(problem), factors_of_(problem.nodes.size()) {
    for (size_t i = 0; i < problem.nodes.size(); ++i)
      add({{static_cast<int>(i)}, problem.nodes[i].cost});
    for (const Problem::Edge& edge : problem.edges) add(factor_of(edge));
  }

  /// Replaces the tables of a node by one of the best of its choices. False: there is none.
  bool eliminate(int node) {
    const std::vector<size_t> mine = factors_of_[static_cast<size_t>(node)];
    std::set<int> united;
    for (size_t f : mine) united.insert(factors_[f].scope.begin(), factors_[f].scope.end());
    united.erase(node);
    const std::vector<int> scope(united.begin(), united.end());
    size_t entries = 1;
    for (int i : scope) entries *= size(i);
    Factor result{scope, std::vector<double>(entries)};
    Elimination record{node, scope, std::vector<uint16_t>(entries)};
    minimise(mine, strides_of(mine, node, scope), result, record);
    for (size_t f : mine) {
      for (int i : factors_[f].scope) std::erase(factors_of_[static_cast<size_t>(i)], f);
      factors_[f].table = {};
    }
    log_.push_back(std::move(record));
    if (scope.empty()) return result.table[0] != kInfeasible;
    add(std::move(result));
    return true;
  }

  /// The best choices, once every node is gone.
  Solution solution() const {
    Solution solution(problem_.nodes.size(), 0);
    for (size_t r = log_.size(); r-- > 0;) {
      size_t index = 0;
      for (int i : log_[r].scope)
        index = index * size(i) + static_cast<size_t>(solution[static_cast<size_t>(i)]);
      solution[static_cast<size_t>(log_[r].node)] = log_[r].choice[index];
    }
    return solution;
  }

 private:
  /// Of each factor along each node of a scope, and along the node that goes.
  struct Strides {
    std::vector<std::vector<size_t>> along;
    std::vector<size_t> own;
  };

  size_t size(int i) const { return problem_.nodes[static_cast<size_t>(i)].cost.size(); }

  void add(Factor factor) {
    for (int i : factor.scope) factors_of_[static_cast<size_t>(i)].push_back(factors_.size());
    factors_.push_back(std::move(factor));
  }

  Factor factor_of(const Problem::Edge& edge) const {
    if (edge.from <= edge.to) return {{edge.from, edge.to}, edge.cost};
    return {{edge.to, edge.from}, transposed(edge.cost, size(edge.from), size(edge.to))};
  }

  Strides strides_of(const std::vector<size_t>& mine, int node,
                     const std::vector<int>& scope) const {
    Strides out{std::vector(mine.size(), std::vector<size_t>(scope.size(), 0)),
                std::vector<size_t>(mine.size(), 0)};
    for (size_t m = 0; m < mine.size(); ++m) {
      size_t stride = 1;
      const std::vector<int>& inner = factors_[mine[m]].scope;
      for (size_t k = inner.size(); k-- > 0;) {
        if (inner[k] == node) {
          out.own[m] = stride;
        } else {
          out.along[m][static_cast<size_t>(std::lower_bound(scope.begin(), scope.end(), inner[k]) -
                                           scope.begin())] = stride;
        }
        stride *= size(inner[k]);
      }
    }
    return out;
  }

  /// For each entry of the result the least sum of the factors over the node's choices.
  void minimise(const std::vector<size_t>& mine, const Strides& strides, Factor& result,
                Elimination& record) const {
    const std::vector<int>& scope = result.scope;
    const size_t entries = result.table.size();
    std::vector<size_t> digit(scope.size(), 0), offset(mine.size(), 0);
    std::vector<double> sum(size(record.node));
    count_work(static_cast<double>(entries * (sum.size() * mine.size() + 4)));
    for (size_t entry = 0; entry < entries; ++entry) {
      std::fill(sum.begin(), sum.end(), 0.0);
      for (size_t m = 0; m < mine.size(); ++m) {
        const double* table = factors_[mine[m]].table.data() + offset[m];
        for (size_t a = 0; a < sum.size(); ++a) sum[a] += table[a * strides.own[m]];
      }
      const auto best = std::min_element(sum.begin(), sum.end());
      result.table[entry] = *best;
      record.choice[entry] = static_cast<uint16_t>(best - sum.begin());
      for (size_t k = scope.size(); k-- > 0;) {
        ++digit[k];
        for (size_t m = 0; m < mine.size(); ++m) offset[m] += strides.along[m][k];
        if (digit[k] < size(scope[k])) break;
        for (size_t m = 0; m < mine.size(); ++m) offset[m] -= strides.along[m][k] * digit[k];
        digit[k] = 0;
      }
    }
  }

  const Problem& problem_;
  std::vector<Factor> factors_;
  std::vector<std::vector<size_t>> factors_of_;  // by node
  std::vector<Elimination> log_;
};

}  // namespace

std::optional<Solution> eliminate_all(const Problem& problem, const EliminationLimits& limits) {
  const std::vector<int> order = plan_order(problem, limits);
  if (order.size() != problem.nodes.size()) return std::nullopt;
  Buckets buckets(problem);
  for (int node : order) {
    if (limits.late && limits.late()) return std::nullopt;
    if (!buckets.eliminate(node)) return std::nullopt;
  }
  return buckets.solution();
}

}  // namespace shardrun
