// What requests ask, as propagation takes it.
#include <set>

#include "base/at.h"
#include "planner/schedule/propagate.h"
#include "planner/space/constraints.h"

namespace shardrun {

/// What the ways that requests name make of operands and results.
void Constraints::find_ways(const RuleOf& rule_of) {
  const Colours colours(graph_, rule_of);
  for (auto& [id, cut] : cuts_) {
    const Node& node = graph_.node(id);
    const auto ways = colours.ways(id);
    SR_REQUIRE(cut.axes.size() <= ways.size(), invalid_input, cut.by, ": names ", cut.axes.size(),
               " ways, node '", node.name, "' (", node.op, ") can be cut in ", ways.size(),
               ", as shardrun rules lists");
    const auto axes = at(mesh_.axis_count());
    cut.way_of_axis.assign(axes, Propagation::kWhole);
    for (size_t way = 0; way < cut.axes.size(); ++way) {
      for (int axis : cut.axes[way]) cut.way_of_axis[at(axis)] = static_cast<int>(way);
    }
    cut.demand.in.assign(node.inputs.size(), std::vector<Placements>(axes, kReplicated));
    cut.demand.out.assign(node.outputs.size(), std::vector<Placements>(axes, kReplicated));
    for (size_t axis = 0; axis < axes; ++axis) {
      const int way = cut.way_of_axis[axis];
      if (way < 0) continue;
      for (size_t k = 0; k < node.inputs.size(); ++k)
        cut.demand.in[k][axis] = as_mask(ways[at(way)].in[k]);
      for (size_t r = 0; r < node.outputs.size(); ++r)
        cut.demand.out[r][axis] = as_mask(ways[at(way)].out[r]);
    }
  }
}

Required Constraints::required() const {
  Required out;
  std::set<ValueId> read;
  for (const auto& [place, pin] : operands_)
    read.insert(graph_.node(place.first).inputs[place.second]);
  const auto is_only_held = [&](ValueId id) {
    const Role role = graph_.value(id).role;
    return role == Role::state || (is_persistent(role) && read.count(id) > 0);
  };
  std::set<ValueId> next;  // what replaces those
  for (const auto& [held, made] : graph_.updates) {
    if (is_only_held(held)) next.insert(made);
  }
  for (const auto& [id, pin] : pins_)
    (is_only_held(id) || next.count(id) > 0 ? out.held : out.values).emplace_back(id, pin.sharding);
  for (const auto& [place, pin] : operands_)
    out.operands.push_back({place.first, place.second, pin.sharding});
  for (const auto& [id, cut] : cuts_) out.nodes.emplace_back(id, cut.way_of_axis);
  return out;
}

}  // namespace shardrun
