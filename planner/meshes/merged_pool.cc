// A search on each merged mesh, and what its plans give to the pool.
#include "planner/meshes/merged_pool.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "planner/meshes/merged_axes.h"
#include "planner/plan_search.h"

namespace shardrun {
namespace {

/// On more, strategies are combined from plans of meshes with so many.
constexpr int kMostSearchedAxes = 3;

std::vector<std::vector<MergedMesh>> searched_meshes(const Mesh& mesh, const Cluster& cluster,
                                                     const std::vector<AskedOfAxis>& asked) {
  std::vector<MergedMesh> all = merged_meshes(mesh, kMostSearchedAxes);
  if (std::ranges::adjacent_find(asked, std::not_equal_to<>()) == asked.end())
    return grouped(all, cluster);
  std::vector<std::vector<MergedMesh>> out;
  for (MergedMesh& merged : all) {
    if (joins_alike(merged, asked)) out.push_back({std::move(merged)});
  }
  return out;
}

/// What is asked of a group's first mesh.
PlanOptions asked_of(const MergedMesh& merged, const std::vector<AskedOfAxis>& asked,
                     const PlanOptions& options) {
  PlanOptions out = options;
  ask_merged(merged, asked, out.planner, out.tactics);
  out.requests.clear();
  out.pinned.clear();
  out.avoided.clear();
  // Claims will do: arenas and times are those of programs on the mesh itself.
  out.arena_use = nullptr;
  out.retime = out.retime_kept = nullptr;
  return out;
}

}  // namespace

StrategyPool merged_pool(const Graph& graph, const Mesh& mesh, const Cluster& cluster,
                         const PlanOptions& options, RuleCache& rules,
                         const std::function<void(const PlanReport&)>& add_time) {
  StrategyPool pool;
  const auto cuts = [](const Mesh::Axis& axis) { return axis.size > 1; };
  if (std::ranges::count_if(mesh.axes(), cuts) <= kMostSearchedAxes) return pool;
  const std::vector<AskedOfAxis> asked = asked_of_axes(options.planner, options.tactics, mesh);
  for (const std::vector<MergedMesh>& group : searched_meshes(mesh, cluster, asked)) {
    const PlanOptions coarse = asked_of(group[0], asked, options);
    PlanReport its;
    MeshTables tables(group[0].mesh, cluster);
    std::optional<PlanSearch> search;
    try {
      search.emplace(graph, tables, coarse, rules);
      search->open(its);
    } catch (const Error& error) {
      // What is wrong with a tactic is said of the mesh itself.
      if (coarse.tactics.empty() || error.kind() != ErrorKind::invalid_input) throw;
      continue;
    }
    search->loose();
    if (!search->fastest()) search->within(options.memory_limit, {options.solve_seconds}, its);
    add_time(its);
    for (const std::optional<LaidOut>& found : {search->fastest(), search->smallest()}) {
      if (!found) continue;
      for (const MergedMesh& merged : group) {
        for (const auto& [name, node] : found->plan.nodes)
          pool[name].push_back(refined(node, merged));
      }
    }
  }
  return pool;
}

}  // namespace shardrun
