// Joining axes, and taking plans apart again.
#include "planner/meshes/merged_axes.h"

#include <algorithm>
#include <optional>

#include "base/at.h"
#include "planner/schedule/schedule.h"

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

/// `mesh` with its axes in the order of `first`; nullopt: collectives can tell the two apart.
std::optional<MergedMesh> in_order_of(const Mesh& first, const MergedMesh& merged,
                                      const Cluster& cluster) {
  const Mesh& mesh = merged.mesh;
  if (!cluster.regular(first) || !cluster.regular(mesh)) return std::nullopt;
  std::vector<int> left;
  for (int axis = 0; axis < mesh.axis_count(); ++axis) left.push_back(axis);
  std::vector<Mesh::Axis> axes;
  MergedMesh out;
  for (int axis = 0; axis < first.axis_count(); ++axis) {
    const GroupSpan span = cluster.span_of(first, std::vector{axis});
    const auto like = std::find_if(left.begin(), left.end(), [&](int other) {
      return cluster.span_of(mesh, std::vector{other}) == span;
    });
    if (like == left.end()) return std::nullopt;
    axes.push_back(mesh.axes()[at(*like)]);
    out.axes.push_back(merged.axes[at(*like)]);
    left.erase(like);
  }
  out.mesh = Mesh(std::move(axes));
  return out;
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

std::vector<std::vector<MergedMesh>> grouped(const std::vector<MergedMesh>& meshes,
                                             const Cluster& cluster) {
  std::vector<std::vector<MergedMesh>> groups;
  for (size_t m = 0; m < meshes.size(); ++m) {
    const MergedMesh& merged = meshes[(m + meshes.size() / 2) % meshes.size()];
    bool known = false;
    for (std::vector<MergedMesh>& group : groups) {
      std::optional<MergedMesh> like = in_order_of(group[0].mesh, merged, cluster);
      if (!like) continue;
      group.push_back(std::move(*like));
      known = true;
      break;
    }
    if (!known) groups.push_back({merged});
  }
  return groups;
}

Sharding refined(const Sharding& sharding, const MergedMesh& merged) {
  Sharding out = Sharding::replicated(sharding.dims.size());
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    for (int axis : sharding.dims[d]) {
      out.dims[d].append(merged.axes[at(axis)]);
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

std::vector<AskedOfAxis> asked_of_axes(const PlannerChoice& planner,
                                       const std::vector<std::string>& tactics, const Mesh& mesh) {
  std::vector<AskedOfAxis> out(at(mesh.axis_count()));
  for (const Cut& cut : parse_tactics(tactics, mesh)) {
    const size_t axis = cut.text.rfind('@'), digits = cut.text.find('/', axis);
    out[at(cut.axis)].tactics.emplace_back(
        cut.text.substr(0, axis), digits == std::string::npos ? "" : cut.text.substr(digits));
  }
  const std::vector<Baseline>& baselines = planner.baselines;
  for (size_t axis = 0; axis < out.size() && !baselines.empty(); ++axis)
    out[axis].baseline = baselines[std::min(axis, baselines.size() - 1)];
  return out;
}

bool joins_alike(const MergedMesh& merged, const std::vector<AskedOfAxis>& asked) {
  return std::ranges::all_of(merged.axes, [&](const std::vector<int>& run) {
    return std::ranges::all_of(run, [&](int axis) { return asked[at(axis)] == asked[at(run[0])]; });
  });
}

void ask_merged(const MergedMesh& merged, const std::vector<AskedOfAxis>& asked,
                PlannerChoice& planner, std::vector<std::string>& tactics) {
  planner.baselines.clear();
  tactics.clear();
  for (size_t a = 0; a < merged.axes.size(); ++a) {
    const AskedOfAxis& own = asked[at(merged.axes[a][0])];
    if (own.baseline) planner.baselines.push_back(*own.baseline);
    for (const auto& [target, digits] : own.tactics)
      tactics.push_back(target + '@' + merged.mesh.axes()[a].name + digits);
  }
}

}  // namespace shardrun
