// Joining the dims of a graph's values by the options of its nodes' rules.
#include "planner/space/dim_groups.h"

namespace shardrun {

DimGroups::DimGroups(const Graph& graph, const std::function<const SpmdRule&(NodeId)>& rule_of) {
  size_t items = 0;
  for (const Value& value : graph.values()) {
    first_.push_back(items);
    items += value.type.shape.size();
  }
  parent_.resize(items);
  std::iota(parent_.begin(), parent_.end(), size_t{0});
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const SpmdRule& rule = rule_of(static_cast<NodeId>(n));
    join_options(graph.nodes()[n], rule);
    join_uncut(graph, graph.nodes()[n], rule);
  }
  for (size_t i = 0; i < items; ++i) group_.push_back(static_cast<int>(root(i)));
}

size_t DimGroups::root(size_t item) {
  while (parent_[item] != item) item = parent_[item] = parent_[parent_[item]];
  return item;
}

void DimGroups::join(ValueId a, size_t dim_a, ValueId b, size_t dim_b) {
  const size_t x = root(first_[static_cast<size_t>(a)] + dim_a);
  const size_t y = root(first_[static_cast<size_t>(b)] + dim_b);
  parent_[std::max(x, y)] = std::min(x, y);
}

void DimGroups::join_options(const Node& node, const SpmdRule& rule) {
  for (const SpmdRule::Option& option : rule.options) {
    ValueId seen = kNoValue;
    size_t seen_dim = 0;
    const auto visit = [&](ValueId value, const Placement& placement) {
      if (placement.kind != Placement::Kind::shard) return;
      const auto dim = static_cast<size_t>(placement.dim);
      if (seen != kNoValue) join(seen, seen_dim, value, dim);
      seen = value;
      seen_dim = dim;
    };
    for (size_t k = 0; k < node.inputs.size(); ++k) visit(node.inputs[k], option.in[k]);
    for (size_t r = 0; r < node.outputs.size(); ++r) visit(node.outputs[r], option.out[r]);
  }
}

void DimGroups::join_uncut(const Graph& graph, const Node& node, const SpmdRule& rule) {
  const auto cut = [&](size_t position, bool result, size_t dim) {
    for (const SpmdRule::Option& option : rule.options) {
      const Placement& p = result ? option.out[position] : option.in[position];
      if (p.kind == Placement::Kind::shard && static_cast<size_t>(p.dim) == dim) return true;
    }
    return false;
  };
  for (size_t r = 0; r < node.outputs.size(); ++r) {
    const Shape& shape = graph.type(node.outputs[r]).shape;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      if (graph.type(node.inputs[k]).shape != shape) continue;
      for (size_t d = 0; d < shape.size(); ++d) {
        if (!cut(k, false, d) && !cut(r, true, d)) join(node.inputs[k], d, node.outputs[r], d);
      }
    }
  }
}

}  // namespace shardrun
