// Strategies of a node on the whole mesh: the product over mesh axes of its rule's options.
#include "planner/space/strategy.h"

#include <algorithm>
#include <map>

#include "graph/node_exchanges.h"
#include "planner/cost/exchange_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/rules/placing.h"

namespace shardrun {
namespace {

bool sensible(const NodePlan& plan, bool result, size_t index, const TensorType& type,
              const Mesh& mesh, bool leave_empty) {
  const Sharding& sharding = (result ? plan.out : plan.in)[index];
  // max over one axis of sums over another is not the sum of maxima: one kind at a time.
  const Rows* rows = rows_of(plan, result, static_cast<int>(index));
  for (const auto& p : sharding.partial) {
    if (p.op != sharding.partial[0].op || (rows != nullptr && result && p.op != rows->op))
      return false;
  }
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    if (!leave_empty && !leaves_none_empty(type.shape[d], sharding.dims[d], mesh) &&
        !is_exchanged(plan, {result, static_cast<int>(index), static_cast<int>(d)})) {
      return false;
    }
  }
  return true;
}

bool divides(const SpmdRule::Option& option, const std::vector<Sharding>& in,
             const std::vector<Sharding>& out, const Mesh& mesh) {
  if (option.divisor == 0) return true;
  auto fits = [&](const std::vector<Placement>& placements,
                  const std::vector<Sharding>& shardings) {
    for (size_t i = 0; i < placements.size(); ++i) {
      if (placements[i].kind != Placement::Kind::shard) continue;
      int64_t parts = 1;
      for (int axis : shardings[i].dims[static_cast<size_t>(placements[i].dim)])
        parts *= mesh.axis_size(axis);
      if (option.divisor % parts != 0) return false;
    }
    return true;
  };
  return fits(option.in, in) && fits(option.out, out);
}

/// A user's shape rule may refuse what is left of a size after cutting (an odd one, say). The first
/// and the last two ranks along each axis have all the sizes that occur where no shard is empty.
bool shape_rule_agrees(const OpDef& def, const Node& node, std::span<const TensorType> in,
                       std::span<const TensorType> out, const NodePlan& plan, const Mesh& mesh,
                       bool leave_empty) {
  std::vector<Shape> in_shapes, out_shapes;
  for (const TensorType& t : in) in_shapes.push_back(t.shape);
  for (const TensorType& t : out) out_shapes.push_back(t.shape);
  const auto inside = [&](const std::vector<int64_t>& at) {
    for (size_t axis = 0; axis < at.size(); ++axis) {
      if (at[axis] > 1 && at[axis] + 2 < mesh.axis_size(static_cast<int>(axis))) return true;
    }
    return false;
  };
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    const std::vector<int64_t> at = mesh.coordinates(rank);
    if (!leave_empty && inside(at)) continue;
    try {
      const NodeBoxes boxes = node_boxes(plan, in_shapes, out_shapes, mesh, at);
      std::vector<TensorType> local_in, local_out;
      for (size_t i = 0; i < in.size(); ++i)
        local_in.push_back({in[i].dtype, box_shape(boxes.in[i])});
      for (size_t r = 0; r < out.size(); ++r)
        local_out.push_back({out[r].dtype, box_shape(boxes.out[r])});
      if (def.infer(node, local_in) != local_out) return false;
    } catch (const std::exception&) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<NodePlan> composed(const Node& node, std::span<const TensorType> in,
                                 std::span<const TensorType> out,
                                 const std::vector<const SpmdRule::Option*>& along,
                                 const Mesh& mesh, bool leave_empty) {
  NodePlan plan = replicated_node(in, out);
  for (size_t axis = 0; axis < along.size(); ++axis) {
    if (along[axis] != nullptr)
      place(plan, along[axis]->in, along[axis]->out, static_cast<int>(axis));
  }
  for (const SpmdRule::Option* option : along) {
    if (option != nullptr &&
        !(cuts_agree(plan, *option) && divides(*option, plan.in, plan.out, mesh)))
      return std::nullopt;
  }
  if (!can_run(node, in, out, plan, mesh, leave_empty)) return std::nullopt;
  return plan;
}

bool can_run(const Node& node, std::span<const TensorType> in, std::span<const TensorType> out,
             const NodePlan& plan, const Mesh& mesh, bool leave_empty) {
  if (!halos_agree(plan)) return false;
  for (size_t i = 0; i < in.size(); ++i) {
    if (!sensible(plan, false, i, in[i], mesh, leave_empty)) return false;
  }
  for (size_t r = 0; r < out.size(); ++r) {
    if (!sensible(plan, true, r, out[r], mesh, leave_empty)) return false;
  }
  const OpDef& def = op_def(node.op);
  return !def.foreign || shape_rule_agrees(def, node, in, out, plan, mesh, leave_empty);
}

Strategy priced(const Node& node, std::span<const TensorType> in, std::span<const TensorType> out,
                NodePlan plan, int64_t sharers, const Mesh& mesh, const Cluster& cluster) {
  const NodeTypes local = largest_types(plan, in, out, mesh);
  Strategy s;
  s.exchange_seconds = exchange_seconds(plan, in, out, mesh, cluster) +
                       route_seconds(plan, in, out, mesh, cluster) / static_cast<double>(sharers);
  s.seconds = kernel_seconds(node, local.in, local.out, cluster) + s.exchange_seconds;
  s.in = std::move(plan.in);
  s.out = std::move(plan.out);
  s.halos = std::move(plan.halos);
  s.blocks = std::move(plan.blocks);
  s.rows = std::move(plan.rows);
  return s;
}

bool next_choice(std::vector<size_t>& chosen, const std::vector<size_t>& counts) {
  for (size_t axis = chosen.size(); axis-- > 0;) {
    if (++chosen[axis] < counts[axis]) return true;
    chosen[axis] = 0;
  }
  return false;
}

bool leaves_none_empty(int64_t size, const Axes& axes, const Mesh& mesh) {
  std::vector<int64_t> extents = {size};
  for (int axis : axes) {
    std::vector<int64_t> next;
    for (int64_t extent : extents) {
      for (int64_t i = 0; i < mesh.axis_size(axis); ++i) {
        const int64_t part = shard_range(extent, mesh.axis_size(axis), i).size;
        if (part == 0) return false;
        if (std::find(next.begin(), next.end(), part) == next.end()) next.push_back(part);
      }
    }
    extents = std::move(next);
  }
  return true;
}

std::vector<Strategy> enumerate_strategies(
    const Node& node, std::span<const TensorType> in, std::span<const TensorType> out,
    const SpmdRule& rule, const Mesh& mesh, const Cluster& cluster, bool leave_empty,
    const std::function<int64_t(NodePlan&)>& count_rows,
    const std::function<bool(int, const SpmdRule::Option*)>& may_take) {
  std::vector<Strategy> strategies;
  std::map<std::pair<std::vector<Sharding>, std::vector<Sharding>>, size_t> known;
  // choices[axis]: nullptr replicates. An axis of one rank cuts nothing.
  std::vector<std::vector<const SpmdRule::Option*>> choices;
  std::vector<size_t> chosen(static_cast<size_t>(mesh.axis_count()), 0), counts;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    std::vector<const SpmdRule::Option*>& own = choices.emplace_back();
    const bool cuts = mesh.axis_size(axis) > 1;
    if (!cuts || !may_take || may_take(axis, nullptr)) own.push_back(nullptr);
    for (const SpmdRule::Option& option : rule.options) {
      if (cuts && (!may_take || may_take(axis, &option))) own.push_back(&option);
    }
    if (own.empty()) return strategies;
    counts.push_back(own.size());
  }
  do {
    std::vector<const SpmdRule::Option*> along;
    for (size_t axis = 0; axis < chosen.size(); ++axis)
      along.push_back(choices[axis][chosen[axis]]);
    std::optional<NodePlan> plan = composed(node, in, out, along, mesh, leave_empty);
    if (!plan) continue;
    const int64_t sharers = plan->rows.empty() ? 1 : count_rows(*plan);
    Strategy s = priced(node, in, out, std::move(*plan), sharers, mesh, cluster);
    auto [it, fresh] = known.emplace(std::pair(s.in, s.out), strategies.size());
    if (fresh) {
      strategies.push_back(std::move(s));
    } else if (s.seconds < strategies[it->second].seconds) {
      strategies[it->second] = std::move(s);
    }
  } while (next_choice(chosen, counts));
  return strategies;
}

}  // namespace shardrun
