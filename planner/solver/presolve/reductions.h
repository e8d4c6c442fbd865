// Reducer: exact reductions of a Problem to a smaller one with the same optimum, and the way back.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "planner/solver/problem.h"

namespace shardrun {

/// Shrinks a Problem without losing its optimum. What is done, until nothing more applies:
///   - a strategy that is forbidden, or that every strategy of some neighbour forbids, goes;
///   - a strategy goes that another one of its node beats whatever the neighbours do:
///     c(a) - c(b) + sum over edges of min_j (e(a,j) - e(b,j)) >= 0, and b holds no more memory in
///     any claim (Goldstein 1994, "Efficient rotamer elimination"). Duplicates are a special case;
///   - parallel edges become one;
///   - if each strategy of i leaves one strategy of its neighbour j, j is merged into i;
///   - a node of degree 0, 1 or 2 whose memory does not depend on its strategy is eliminated:
///     its neighbours' edge gets min_a (c(a) + e(a,j) + e(a,k)), and that a is remembered;
///   - memory that cannot reach the limit whatever is chosen is forgotten.
/// Example: a chain x - y - z without a memory limit is reduced to nothing but its optimal cost.
class Reducer {
 public:
  /// `max_work` of run for a search that takes larger cores: eliminations cost next to nothing.
  static constexpr double kQuickWork = 2e4;

  explicit Reducer(const Problem& problem);

  /// Reduces as far as possible. An elimination is made only if the product of the strategies
  /// involved is at most `max_work`. False if some node has no strategy left, or the least bytes of
  /// all nodes exceed the limit at some time (nothing is feasible).
  /// If `late` (may be null) says so, it stops where it is: a core that is larger than it could be.
  bool run(double max_work, const std::function<bool()>& late = nullptr);

  /// What is left. Node 0 has one strategy and holds the costs and memory that are fixed, so that
  /// the core's cost of a solution is the original's cost of the expanded solution.
  const Problem& core() const { return core_; }

  /// Forbids strategies of a core node, e.g. by a bound; call run again afterwards.
  void remove(int core_node, const std::vector<bool>& removed);

  /// Forbids pairs of strategies: `pairs` as the edge's costs in the core.
  void forbid(int core_edge, const std::vector<bool>& pairs);

  Solution expand(const Solution& core_solution) const;
  /// The core's part of a solution of the original, or of one as good where a choice was beaten by
  /// another one. nullopt if the core has lost one of its choices otherwise.
  std::optional<Solution> restrict(const Solution& solution) const;

 private:
  struct WorkNode {
    bool alive = true, dirty = true;
    std::vector<double> cost;
    std::vector<int> label;                   // original strategy of each one left
    std::vector<std::pair<int, int>> beaten;  // labels: by which other one
    std::vector<Problem::Claim> claims;
    std::vector<int> edges;
    size_t size() const { return cost.size(); }
  };
  struct WorkEdge {
    bool alive = true;
    int a = 0, b = 0;
    std::vector<double> cost;  // [a][b]
    int other(int i) const { return i == a ? b : a; }
  };
  /// How a node's strategy follows from those of up to two others: choice[pos1[l1] * columns +
  /// pos2[l2]].
  struct Record {
    int node = 0, first = -1, second = -1;
    std::vector<int> pos1, pos2;  // by label; -1: was removed before
    size_t columns = 1;
    std::vector<int> choice;  // labels of `node`
  };

  WorkNode& at(int i) { return nodes_[static_cast<size_t>(i)]; }
  WorkEdge& edge_at(int e) { return edges_[static_cast<size_t>(e)]; }
  void touch(int i);
  void touch_around(int i);
  int find_edge(int i, int j) const;
  void add_edge(int i, int j, std::vector<double> cost);
  void detach(int e);
  std::vector<double> oriented(const WorkEdge& edge, int row_node) const;
  std::vector<int> positions(int i) const;
  void keep_only(int i, const std::vector<bool>& keep);
  bool prune_infeasible(int i);
  bool prune_dominated(int i);
  bool merge_determined(int i);
  bool eliminate(int i, double max_work);
  void settle_memory();
  void build_core();

  std::vector<WorkNode> nodes_;
  std::vector<WorkEdge> edges_;
  std::vector<std::string> names_;
  std::vector<size_t> original_sizes_;
  std::vector<Record> records_;
  std::vector<int> core_to_work_, core_edge_to_work_;
  Problem::Node fixed_;
  int64_t limit_;
  bool limited_ = false, fits_ = true;
  Problem core_;
};

}  // namespace shardrun
