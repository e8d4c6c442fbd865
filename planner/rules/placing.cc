// Cuts, windows, blocks and rows, one axis after the other.
#include "planner/rules/placing.h"

#include <algorithm>
#include <set>

#include "base/at.h"
#include "graph/node_exchanges.h"

namespace shardrun {
namespace {

void place(Sharding& sharding, const Placement& placement, int axis) {
  switch (placement.kind) {
    case Placement::Kind::replicate: break;
    case Placement::Kind::shard: sharding.dims[at(placement.dim)].push_back(axis); break;
    case Placement::Kind::partial: sharding.partial.push_back({axis, placement.op}); break;
  }
}

template <class T>
void add_once(std::vector<T>& list, T item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(std::move(item));
}

}  // namespace

NodePlan replicated_node(std::span<const TensorType> in, std::span<const TensorType> out) {
  NodePlan plan;
  for (const TensorType& t : in) plan.in.push_back(Sharding::replicated(t.shape.size()));
  for (const TensorType& t : out) plan.out.push_back(Sharding::replicated(t.shape.size()));
  return plan;
}

void place(NodePlan& plan, const std::vector<Placement>& in, const std::vector<Placement>& out,
           int axis) {
  for (size_t i = 0; i < in.size(); ++i) place(plan.in[i], in[i], axis);
  for (size_t r = 0; r < out.size(); ++r) place(plan.out[r], out[r], axis);
  NodeDim anchor{false, -1, 0};
  for (const bool result : {true, false}) {
    const std::vector<Placement>& placements = result ? out : in;
    for (size_t i = 0; i < placements.size() && anchor.index < 0; ++i) {
      if (placements[i].is_shard()) anchor = {result, static_cast<int>(i), placements[i].dim};
    }
  }
  for (const bool result : {false, true}) {
    const std::vector<Placement>& placements = result ? out : in;
    for (size_t i = 0; i < placements.size(); ++i) {
      const Placement& p = placements[i];
      const NodeDim of{result, static_cast<int>(i), p.dim};
      if (p.window) add_once(plan.halos, Halo{of, anchor, *p.window});
      if (p.rows_by >= 0)
        add_once(plan.rows, Rows{of, {false, p.rows_by, in[at(p.rows_by)].dim}, p.op});
      if (p.blocks.empty()) continue;
      Blocks blocks{of, {}};
      for (int operand : p.blocks) blocks.of.push_back({false, operand, in[at(operand)].dim});
      add_once(plan.blocks, blocks);
    }
  }
}

bool cuts_agree(const NodePlan& plan, const SpmdRule::Option& option) {
  std::optional<Axes> axes;
  for (const bool result : {false, true}) {
    const std::vector<Placement>& placements = result ? option.out : option.in;
    for (size_t i = 0; i < placements.size(); ++i) {
      if (placements[i].kind != Placement::Kind::shard) continue;
      const Axes own = axes_of(plan, {result, static_cast<int>(i), placements[i].dim});
      if (own != axes.value_or(own)) return false;
      axes = own;
    }
  }
  return true;
}

bool halos_agree(const NodePlan& plan) {
  if (!plan.exchanges()) return true;
  std::set<NodeDim> special;
  for (const Halo& halo : plan.halos) {
    if (!special.insert(halo.of).second || axes_of(plan, halo.of) != axes_of(plan, halo.anchor))
      return false;
  }
  for (const Blocks& blocks : plan.blocks) {
    const bool other = std::any_of(special.begin(), special.end(), [&](const NodeDim& dim) {
      return dim.result && dim.index == blocks.result.index;
    });
    if (other) return false;
    special.insert(blocks.result);
    for (const NodeDim& of : blocks.of) {
      if (axes_of(plan, of) != axes_of(plan, blocks.result) || special.count(of) > 0) return false;
    }
  }
  for (const Rows& rows : plan.rows) {
    const bool other = std::any_of(special.begin(), special.end(), [&](const NodeDim& dim) {
      return dim.result == rows.of.result && dim.index == rows.of.index;
    });
    if (other || axes_of(plan, rows.of) != axes_of(plan, rows.by)) return false;
    special.insert(rows.of);
  }
  return std::none_of(plan.halos.begin(), plan.halos.end(),
                      [&](const Halo& halo) { return special.count(halo.anchor) > 0; });
}

}  // namespace shardrun
