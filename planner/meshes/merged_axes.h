// Meshes with neighbouring axes joined: with fewer axes a search is quick, and its plans hold on
// the finer mesh, too. Where sizes divide they are the same there, rank by rank.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/mesh.h"
#include "graph/node_plan.h"
#include "planner/cost/cluster.h"
#include "planner/planner_choice.h"

namespace shardrun {

/// 2x4x8x2 with the middle two joined is 2x32x2, and its second axis stands for axes 1 and 2.
struct MergedMesh {
  Mesh mesh;
  std::vector<std::vector<int>> axes;  // by axis of it: those of the finer mesh, in order
};

/// Every mesh of `count` axes that joins neighbours among those of more than one rank, which must
/// be more than `count`.
std::vector<MergedMesh> merged_meshes(const Mesh& mesh, int count);

/// The same in groups. Meshes of a group differ in the order of their axes alone, as far as
/// collectives can tell, and all have that of the group's first: 2x2x4, and 2x4x2 with its last two
/// axes swapped. So a plan of the first, refined with any of them, holds on the finer mesh. The
/// first is one from the middle: on 2x2x2x2 its plans gave the same steps as those of all three.
std::vector<std::vector<MergedMesh>> grouped(const std::vector<MergedMesh>& meshes,
                                             const Cluster& cluster);

/// What is said of the merged mesh, of the finer one: cut by an axis is cut by those it stands for.
Sharding refined(const Sharding& sharding, const MergedMesh& merged);
NodePlan refined(NodePlan plan, const MergedMesh& merged);

/// What a planner's name and tactics ask of one mesh axis.
struct AskedOfAxis {
  std::optional<Baseline> baseline;
  std::vector<std::pair<std::string, std::string>> tactics;  // in front of @, and behind the axis
  friend bool operator==(const AskedOfAxis&, const AskedOfAxis&) = default;
};
/// Of each axis of the mesh. Throws invalid_input where a tactic cannot be read.
std::vector<AskedOfAxis> asked_of_axes(const PlannerChoice& planner,
                                       const std::vector<std::string>& tactics, const Mesh& mesh);
/// Does the merged mesh join only axes of which the same is asked?
bool joins_alike(const MergedMesh& merged, const std::vector<AskedOfAxis>& asked);
/// Asks that of the merged mesh.
void ask_merged(const MergedMesh& merged, const std::vector<AskedOfAxis>& asked,
                PlannerChoice& planner, std::vector<std::string>& tactics);

}  // namespace shardrun
