// DimGroups: which dims of which values are cut together (TOAST's named dimensions, section 3).
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "graph/graph.h"
#include "planner/rules/discovery.h"

namespace shardrun {

/// Dims that some rule's option cuts at once are one group, through the whole graph. In y = x w,
/// with x [b, i] and w [i, o], the groups are {x0, y0}, {x1, w0} and {w1, y1}; a residual y + x
/// makes one of {x1, w0} and {w1, y1}. A dim that no option cuts passes to the result's dim of the
/// same place and size, if no option cuts that either: so layer_norm's last dim stays in its group.
class DimGroups {
 public:
  /// `rule_of(n)`: the rule of node n.
  DimGroups(const Graph& graph, const std::function<const SpmdRule&(NodeId)>& rule_of);

  int group(ValueId value, size_t dim) const {
    return group_[first_[static_cast<size_t>(value)] + dim];
  }
  int count() const { return static_cast<int>(group_.size()); }  // groups are below this

 private:
  size_t root(size_t item);
  void join(ValueId a, size_t dim_a, ValueId b, size_t dim_b);
  void join_options(const Node& node, const SpmdRule& rule);
  void join_uncut(const Graph& graph, const Node& node, const SpmdRule& rule);

  std::vector<size_t> first_;   // value -> its first dim's item
  std::vector<size_t> parent_;  // item -> item, while joining
  std::vector<int> group_;      // item -> group
};

}  // namespace shardrun
