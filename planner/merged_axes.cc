// Joining axes, and taking plans apart again.
#include "planner/merged_axes.h"

#include "base/at.h"

namespace shardrun {
namespace {

/// Splits `left` axes, from `next` on, into `count` runs behind `runs`.
void split(const std::vector<int>& axes, size_t next, int count,
           std::vector<std::vector<int>>& runs, std::vector<std::vector<std::vector<int>>>& out) {
  if (count == 0) {
    if (next == axes.size()) out.push_back(runs);
    return;
  }
  runs.emplace_back();
  for (size_t end = next; end < axes.size(); ++end) {
    runs.back().push_back(axes[end]);
    const std::vector<int> run = runs.back();
    split(axes, end + 1, count - 1, runs, out);
    runs.back() = run;
  }
  runs.pop_back();
}

}  // namespace

std::vector<MergedMesh> merged_meshes(const Mesh& mesh, int count) {
  std::vector<int> axes;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) {
    if (mesh.axis_size(axis) > 1) axes.push_back(axis);
  }
  std::vector<std::vector<std::vector<int>>> all;
  std::vector<std::vector<int>> runs;
  split(axes, 0, count, runs, all);
  std::vector<MergedMesh> out;
  for (std::vector<std::vector<int>>& merged : all) {
    std::vector<Mesh::Axis> joined;
    for (const std::vector<int>& run : merged) {
      Mesh::Axis axis{"", 1};
      for (int a : run) {
        axis.name += (axis.name.empty() ? "" : "*") + mesh.axes()[at(a)].name;
        axis.size *= mesh.axis_size(a);
      }
      joined.push_back(std::move(axis));
    }
    out.push_back({Mesh(std::move(joined)), std::move(merged)});
  }
  return out;
}

Sharding refined(const Sharding& sharding, const MergedMesh& merged) {
  Sharding out = Sharding::replicated(sharding.dims.size());
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    for (int axis : sharding.dims[d]) {
      const std::vector<int>& own = merged.axes[at(axis)];
      out.dims[d].insert(out.dims[d].end(), own.begin(), own.end());
    }
  }
  for (const Sharding::Partial& partial : sharding.partial) {
    for (int axis : merged.axes[at(partial.axis)]) {
      Sharding::Partial one = partial;
      one.axis = axis;
      out.partial.push_back(one);
    }
  }
  return out;
}

NodePlan refined(NodePlan plan, const MergedMesh& merged) {
  for (Sharding& sharding : plan.in) sharding = refined(sharding, merged);
  for (Sharding& sharding : plan.out) sharding = refined(sharding, merged);
  return plan;
}

}  // namespace shardrun
